"""The benchmark compares like with like."""

import pytest
import torch

from benchmarks.contenders import CASES, CONTENDERS, build

CASE = CASES["tiny"]
CPU = torch.device("cpu")


def parameters(name: str) -> int:
    return sum(p.numel() for p in build(name, CASE, CPU).parameters())


def test_contenders_of_one_placement_have_the_same_parameters() -> None:
    pytest.importorskip("transformers")
    names = ("magneto pre", "torch nn.TransformerEncoder", "transformers GPT-2", "nanoGPT style")
    counts = {parameters(name) for name in names}
    assert len(counts) == 1
    pytest.importorskip("x_transformers")
    missing = counts.pop() - parameters("x-transformers")
    # Four bias vectors of attention per layer, and a bias for each layer norm.
    assert missing == CASE.width * (4 * CASE.layers + 2 * CASE.layers + 1)


@pytest.mark.parametrize("name", CONTENDERS)
def test_contenders_are_causal(name: str) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("x_transformers")
    if name == "torchscale":
        pytest.importorskip("torchscale.architecture.decoder")
    model = build(name, CASE, CPU).eval()
    tokens = torch.randint(CASE.vocab_size, (2, CASE.length))
    changed = tokens.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % CASE.vocab_size
    with torch.no_grad():
        first, second = model(tokens), model(changed)
    assert first.shape == (2, CASE.length, CASE.vocab_size)
    torch.testing.assert_close(first[:, :20], second[:, :20], atol=1e-5, rtol=0)
    assert (first[:, 20:] - second[:, 20:]).abs().max() > 1e-2
