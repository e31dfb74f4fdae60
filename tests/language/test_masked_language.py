"""The head guesses where it is asked, and nowhere else."""

from dataclasses import replace

import pytest
import torch

from magneto.functional.cross_entropy import IGNORED
from magneto.language.config import MaskedLanguageModelConfig
from magneto.language.models import MaskedLanguageModel
from magneto.theory.placement import PLACEMENTS

CONFIG = MaskedLanguageModelConfig(
    width=32, layers=2, heads=4, ffn_width=48, vocab_size=60, positions="learned"
)


def model(**changes) -> MaskedLanguageModel:
    torch.manual_seed(0)
    return MaskedLanguageModel(replace(CONFIG, **changes)).eval()


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    tokens = torch.randint(60, (3, 9))
    positions = torch.tensor([[0, 4, 8], [1, 2, 0], [3, 0, 0]])
    targets = torch.tensor([[5, 6, 7], [8, 9, IGNORED], [1, IGNORED, IGNORED]])
    return tokens, positions, targets


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_guesses_are_those_of_all_places(placement: str) -> None:
    net = model(placement=placement)
    tokens, positions, _ = batch()
    everywhere, there = net(tokens), net(tokens, positions=positions)
    assert everywhere.shape == (3, 9, 60) and there.shape == (3, 3, 60)
    for row in range(3):
        assert torch.allclose(there[row], everywhere[row, positions[row]], atol=1e-6)


@pytest.mark.parametrize("chunk", [0, 2, 100])
def test_the_loss_counts_real_targets_once(chunk: int) -> None:
    net = model(loss_chunk=chunk)
    tokens, positions, targets = batch()
    loss = net(tokens, positions=positions, targets=targets)
    real = targets != IGNORED
    shares = net(tokens, positions=positions).log_softmax(-1)[real]
    expected = -shares[torch.arange(6), targets[real]].sum()
    assert loss.count == 6 and loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.total.backward()
    held = net.text_encoder.embedding.table.weight.grad
    assert held is not None and held.isfinite().all() and held.abs().sum() > 0


def test_nothing_to_guess_costs_nothing() -> None:
    tokens, positions, targets = batch()
    loss = model()(tokens, positions=positions, targets=torch.full_like(targets, IGNORED))
    assert loss.total == 0 and loss.count == 0


def test_the_table_is_tied_and_no_gain_reaches_the_head() -> None:
    tied, free = model(), model(tie_embeddings=False)
    assert tied.head.vocabulary.weight is tied.text_encoder.embedding.table.weight
    assert free.head.vocabulary.weight is not free.text_encoder.embedding.table.weight
    wide = model(width=256, heads=4, layers=24)
    assert wide.head.dense.weight.std().item() == pytest.approx(256**-0.5, rel=0.03)
    assert wide.head.vocabulary.weight.std().item() == pytest.approx(256**-0.5, rel=0.03)
    assert not wide.head.dense.bias.any() and not wide.head.vocabulary.bias.any()


def test_a_vocabulary_is_needed() -> None:
    with pytest.raises(ValueError, match="vocab_size is not set"):
        model(vocab_size=None)
