"""Sequence to sequence: the loss, the shared table, the cache."""

import pytest
import torch

from magneto import EncoderDecoderCache
from magneto.translation.config import TranslationConfig
from magneto.translation.model import TranslationModel

SIZES = {"width": 32, "encoder_layers": 2, "decoder_layers": 3, "heads": 4, "ffn_width": 48}
SOURCE_MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])


def model(**changes) -> TranslationModel:
    torch.manual_seed(0)
    made = TranslationModel(
        TranslationConfig(**{**SIZES, "vocab_size": 60, "positions": "sinusoidal", **changes})
    )
    made.logits_bias.copy_(torch.randn(60))
    return made.eval()


def tokens(length: int) -> torch.Tensor:
    return torch.randint(60, (2, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("placement", ["post", "sub", "deepnorm"])
def test_decoding_in_steps_equals_reading_at_once(placement: str) -> None:
    made = model(placement=placement)
    source, target = tokens(6), tokens(5)
    memory = made.encode(source, SOURCE_MASK)
    cache = EncoderDecoderCache()
    steps = [
        made.decode(target[:, i : i + 1], memory, source_mask=SOURCE_MASK, cache=cache)
        for i in range(5)
    ]
    whole = made(source, target, SOURCE_MASK)
    assert (torch.cat(steps, 1) - whole).abs().max() <= 1e-5


def test_one_table_for_source_target_and_output() -> None:
    made = model()
    assert made.head.weight is made.embedding.table.weight
    names = [name for name, _ in made.named_parameters() if "head" in name or "table" in name]
    assert names == ["embedding.table.weight"]
