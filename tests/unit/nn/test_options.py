"""Each option of the backbone with some placements: training, drawing, one graph, recomputation."""

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import nn

from magneto import PLACEMENTS, Decoder, Encoder
from tests.unit.nn.grids import EVERY_PART, drawn_by_module, small_grid

OPTIONS: dict[str, dict[str, Any]] = {
    "drop_path": {"drop_path": 0.5},
    "layer_scale": {"layer_scale": 0.1},
    "relative_bias": {"grid_positions": "relative_bias", "positions": "learned", "max_length": 17},
    "shared_relative_bias": {"grid_positions": "shared_relative_bias"},
    "grid_rotary": {"grid_positions": "rotary", "reference_grid": 3, "positions": "sinusoidal"},
    "transformer_xl": {"positions": "transformer_xl"},
    "geglu": {"activation": "geglu"},
    "relu2": {"activation": "relu2"},
    "head_dim": {"head_dim": 12, "key_value_heads": 2},
    "windows": {"windows": (3, None)},
    "alibi": {"positions": "alibi"},
    "embedding_dropout": {"embedding_dropout": 0.3},
    "unbiased": {"unbiased": ("k", "out", "gate", "fc2")},
}
# Each option with a row, and each row with an option or two.
PAIRS = list(zip(OPTIONS, cycle(PLACEMENTS), strict=False))


def build(option: str, placement: str, **more: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder(small_grid(placement=placement, **OPTIONS[option], **more))


def run(model: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> Iterator[torch.Tensor]:
    """Return the output and every gradient."""
    torch.manual_seed(1)
    output = model(x, mask)
    (output * torch.linspace(-1, 1, 32)).square().sum().backward()
    yield output.detach()
    for parameter in model.parameters():
        assert parameter.grad is not None
        yield parameter.grad


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    return torch.randn(2, 17, 32), torch.arange(17) < torch.tensor([[17], [11]])


@pytest.mark.parametrize(("option", "placement"), PAIRS)
def test_it_trains_and_recomputes_the_same(option: str, placement: str) -> None:
    results, calls = [], []
    for recompute in (False, True):
        model = build(option, placement, checkpoint_activations=recompute)
        model.layers[1].register_forward_pre_hook(lambda *_: calls.append(1))
        results.append(list(run(model, *inputs())))
    assert len(calls) == 1 + 2, "the second time, the layer runs twice"
    plain, again = results
    assert all(tensor.isfinite().all() for tensor in plain)
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


@pytest.mark.parametrize(("option", "placement"), PAIRS)
def test_it_is_drawn_module_by_module(option: str, placement: str) -> None:
    """Built without memory and drawn later: no value is left as it was found."""
    model, built = drawn_by_module(lambda: build(option, placement)), build(option, placement)
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        torch.testing.assert_close(
            parameter.std(), built.get_parameter(name).std(), rtol=0.35, atol=1e-3
        )


TOGETHER = (
    "drop_path", "layer_scale", "geglu", "head_dim", "unbiased", "windows", "embedding_dropout",
)  # fmt: skip


@pytest.mark.parametrize(
    "positions", ["relative_bias", "shared_relative_bias", "grid_rotary", "transformer_xl"]
)
def test_options_compile_in_one_graph(positions: str) -> None:
    """Features of all that go together, of packed documents; other positions in one layer."""
    torch.compiler.reset()
    (x, mask), changes = inputs(), {"layers": 1, **OPTIONS[positions]}
    if positions == "relative_bias":
        mask = mask[:, None] & mask[..., None]
        for option in TOGETHER:
            changes |= {**OPTIONS[option], "layers": 2}
    model = Encoder(small_grid(placement="sub", **changes))
    compiled = torch.compile(model.features, fullgraph=True, backend="eager")
    torch.manual_seed(1)
    expected = model.features(x, (0,), mask)
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(x, (0,), mask), expected)


def test_every_part_of_a_placement_compiles_in_one_graph() -> None:
    torch.compiler.reset()
    model = Decoder(small_grid(placement=EVERY_PART, layers=1, positions="rotary"))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    x, mask = inputs()
    mask = mask[:, None] & mask[..., None]
    torch.testing.assert_close(compiled(x, mask), model(x, mask))
