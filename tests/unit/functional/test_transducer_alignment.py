"""An alignment of features is that of the logits they make; what does not fit is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from magneto.functional.transducer import (
    joiner_transducer_loss,
    next_labels,
    transducer_alignment,
    transducer_loss,
)
from magneto.functional.transducer_lattice import best_path, build_lattice

FRAMES, LABELS = torch.tensor([6, 2, 6]), torch.tensor([4, 0, 2])


def given() -> list[Tensor]:
    """Return features, weight, bias and targets (3, 4) over a vocabulary of 9."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((3, 6, 5), (3, 5, 5), (9, 5), (9,))
    features = [torch.randn(size, generator=generator, requires_grad=True) for size in sizes]
    return [*features, torch.randint(1, 9, (3, 4), generator=generator)]


@pytest.mark.parametrize("tile", [1, 11, 1000])
def test_the_best_path_and_probabilities(tile: int) -> None:
    *features, targets = given()
    found = transducer_alignment(*features, targets, FRAMES, LABELS, tile=tile)
    encoder, predictor, weight, bias = features
    hidden = torch.tanh(encoder[:, :, None] + predictor[:, None])
    scores = (hidden @ weight.T + bias).log_softmax(-1).detach()
    answers = torch.nn.functional.pad(targets, (0, 1))[:, None, :, None].expand(3, 6, 5, 1)
    lattice = build_lattice(scores[..., 0], scores.gather(-1, answers)[..., 0], FRAMES, LABELS)
    frames, score = best_path(lattice)
    assert torch.equal(found.frames, frames)
    torch.testing.assert_close(found.score, score, rtol=1e-6, atol=0)
    loss = joiner_transducer_loss(*features, targets, FRAMES, LABELS)
    torch.testing.assert_close(found.log_likelihood.float(), -loss.detach())
    assert (found.score <= found.log_likelihood + 1e-9).all()
    # Each label is emitted once, in one frame or another.
    inside = (torch.arange(5) < LABELS[:, None]).double()
    torch.testing.assert_close(found.emission.sum(1), inside)
    assert not found.occupancy[1, 2:].any() and not found.occupancy[2, :, 3:].any()
    torch.testing.assert_close(found.occupancy[:, 0, 0], torch.ones(3, dtype=torch.float64))
    assert not found.occupancy.requires_grad


def test_labels_stand_where_the_features_say() -> None:
    """A dimension of the features stands for each token: encoder and predictor both name it."""
    frames_of = [1, 1, 3]
    encoder, predictor = torch.full((1, 5, 4), -4.0), torch.full((1, 4, 4), -4.0)
    encoder[0, :, 0] = predictor[0, :, 0] = 0.4  # the blank, unless both name one
    for position, frame in enumerate(frames_of):
        encoder[0, frame, position + 1] = 4.0
        predictor[0, position, position + 1] = 4.0
    rest = (torch.tensor([[1, 2, 3]]), torch.tensor([5]), torch.tensor([3]))
    found = transducer_alignment(encoder, predictor, 20 * torch.eye(4), None, *rest)
    assert found.frames.tolist() == [frames_of]
    assert found.emission[0, [1, 1, 3], [0, 1, 2]].min() > 0.9


GIVEN: dict[str, Any] = {
    "logits": torch.zeros(2, 5, 4, 7),
    "targets": torch.ones(2, 3, dtype=torch.long),
    "logit_lengths": torch.tensor([5, 4]),
    "target_lengths": torch.tensor([3, 0]),
}


@pytest.mark.parametrize(
    "change,message",
    [
        ({"logits": torch.zeros(2, 5, 7)}, r"must be \(batch, time, labels \+ 1, vocabulary\)"),
        ({"logits": torch.zeros(2, 0, 4, 7)}, r"not \(2, 0, 4, 7\)"),
        ({"targets": torch.ones(2, 4, dtype=torch.long)}, r"must be \(batch, labels\), \(2, 3\)"),
        ({"logit_lengths": torch.tensor([5])}, "two lengths for each of the 2 utterances"),
        ({"logit_lengths": torch.tensor([6, 4])}, r"frames must be in \[0, 5\], not \[6, 4\]"),
        ({"target_lengths": torch.tensor([3, -1])}, r"labels must be in \[0, 3\], not \[3, -1\]"),
        ({"targets": torch.full((2, 3), 7)}, r"not the blank 0; \[7\] are not"),
        ({"targets": torch.zeros(2, 3, dtype=torch.long)}, r"\[0\] are not"),
        ({"blank": 7}, r"blank 7 must be in \[0, 7\)"),
        ({"tile": 0}, "tile 0 at least 1"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    assert transducer_loss(**GIVEN).isfinite().all()
    with pytest.raises(ValueError, match=message):
        transducer_loss(**{**GIVEN, **change})


@pytest.mark.parametrize("index,shape", [(0, (2, 5, 5)), (1, (3, 4, 6)), (2, (7, 5)), (2, (7,))])
def test_features_that_do_not_fit_each_other_are_named(index: int, shape: tuple[int]) -> None:
    tensors = [torch.zeros(2, 5, 6), torch.zeros(2, 4, 6), torch.zeros(7, 6)]
    rest = [GIVEN[key] for key in ("targets", "logit_lengths", "target_lengths")]
    assert joiner_transducer_loss(*tensors, None, *rest).isfinite().all()
    tensors[index] = torch.zeros(shape)
    with pytest.raises(ValueError, match="do not fit"):
        joiner_transducer_loss(*tensors, None, *rest)


def test_the_next_label_of_each_position() -> None:
    targets = torch.tensor([[4, 5, 6], [4, -100, 99]])
    found = next_labels(targets, torch.tensor([3, 1]))
    assert found.tolist() == [[4, 5, 6, 0], [4, 0, 0, 0]]
