"""Sequence to sequence: the loss, the shared table, the cache."""

import pytest
import torch

from magneto import EncoderDecoderCache
from magneto.functional.cross_entropy import IGNORED
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


def test_source_padding_changes_nothing() -> None:
    made = model()
    source, target = tokens(6), tokens(5)
    alone = made(source[1:, :4], target[1:])
    assert (made(source, target, SOURCE_MASK)[1:] - alone).abs().max() <= 1e-5


@pytest.mark.parametrize("chunk", [0, 3])
def test_loss_is_the_summed_cross_entropy(chunk: int) -> None:
    made = model(loss_chunk=chunk)
    source, target, answers = tokens(6), tokens(5), tokens(5).flip(1)
    answers[0, 3:] = IGNORED
    loss = made(source, target, SOURCE_MASK, targets=answers)
    logits = made(source, target, SOURCE_MASK)
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), answers.flatten(), reduction="sum"
    )
    assert loss.count == 8
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.total.backward()
    assert made.embedding.table.weight.grad.abs().sum() > 0


def test_one_table_for_source_target_and_output() -> None:
    made = model()
    assert made.head.weight is made.embedding.table.weight
    names = [name for name, _ in made.named_parameters() if "head" in name or "table" in name]
    assert names == ["embedding.table.weight"]
