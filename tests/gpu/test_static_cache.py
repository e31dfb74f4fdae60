"""`generate` writes the same with a cache that grows and with one of fixed size."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from magneto.language.config import LanguageModelConfig  # noqa: E402
from magneto.language.models import LanguageModel  # noqa: E402

# Width, layers, heads and new tokens.
SCALES = {"cpu": (32, 2, 4, 12), "cuda": (512, 8, 8, 64)}


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "t5"])
def test_a_static_cache_changes_no_token(positions: str, device: torch.device) -> None:
    width, layers, heads, count = SCALES[device.type]
    torch.manual_seed(0)
    config = LanguageModelConfig(
        width=width, layers=layers, heads=heads, ffn_width=2 * width, vocab_size=300,
        positions=positions, tie_embeddings=False,
    )  # fmt: skip
    core = LanguageModel(config).to(device).eval()
    wrapped = hf.MagnetoForCausalLM(hf.MagnetoConfig.of(config), core).eval()
    tokens = torch.randint(1, 300, (3, 9), generator=torch.Generator().manual_seed(1)).to(device)
    mask = torch.ones_like(tokens)
    mask[0, :4] = 0
    settings = {"attention_mask": mask, "max_new_tokens": count, "do_sample": False}
    settings |= {"pad_token_id": 0, "eos_token_id": None}
    grown = wrapped.generate(tokens, **settings)
    static = wrapped.generate(tokens, cache_implementation="static", **settings)
    assert grown.shape == (3, 9 + count) and torch.equal(grown, static)
    assert grown[:, 9:].unique().numel() > count // 4
