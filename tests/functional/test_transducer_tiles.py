"""Tiles cover every cell once, and hold what the whole would."""

import pytest
import torch
from torch import Tensor

from magneto.functional.transducer_tiles import Joiner, log_probabilities, parts, to_gradient


def joiner(dtype: torch.dtype = torch.float32) -> Joiner:
    generator = torch.Generator().manual_seed(0)
    sizes = ((3, 5, 4), (3, 3, 4), (7, 4), (7,))
    drawn = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    return Joiner(*(tensor.to(dtype) for tensor in drawn), operand=dtype)


def logits_of(given: Joiner) -> Tensor:
    hidden = torch.tanh(given.encoder[:, :, None] + given.predictor[:, None])
    return torch.nn.functional.linear(hidden, given.weight, given.bias)


# Cells: one frame, two frames of one utterance, one utterance, two, all.
@pytest.mark.parametrize("cells,most", [(1, 3), (6, 6), (29, 15), (31, 30), (45, 45), (999, 45)])
def test_every_cell_is_in_one_tile(cells: int, most: int) -> None:
    given, count, sizes = joiner(), torch.zeros(3, 5), []
    expected = logits_of(given)
    for tile in given.tiles(cells):
        count[tile.utterances, tile.frames] += 1
        sizes.append(len(tile.logits))
        whole = expected[tile.utterances, tile.frames].flatten(0, 2)
        torch.testing.assert_close(tile.logits, whole)
    assert (count == 1).all() and max(sizes) == most


def test_types_are_float32_or_wider() -> None:
    for dtype, wide in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        (tile,) = joiner(dtype).tiles(1000)
        assert tile.logits.dtype == tile.hidden.dtype == wide


def test_log_probabilities_are_those_of_a_log_softmax() -> None:
    logits = 50 * torch.randn(6, 7, dtype=torch.float64)
    labels = torch.tensor([1, 2, 3, 4, 5, 6])
    expected = logits.log_softmax(1)
    blank, label, total = log_probabilities(logits.clone(), labels, 0)
    torch.testing.assert_close(blank, expected[:, 0])
    torch.testing.assert_close(label, expected[range(6), labels])
    torch.testing.assert_close(total, logits.logsumexp(1))


def test_the_gradient_is_that_of_the_two_log_probabilities() -> None:
    logits = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    labels, none = torch.tensor([1, 2, 3]), torch.tensor([0.0, 0.0, 0.0]).double()
    chances = (torch.tensor([0.25, 1.0, 0.0]).double(), torch.tensor([0.5, 0.0, 0.0]).double())
    scores = logits.log_softmax(1)
    loss = -(chances[0] * scores[:, 0] + chances[1] * scores[range(3), labels]).sum()
    (expected,) = torch.autograd.grad(loss, logits)
    total = logits.detach().logsumexp(1)
    found = to_gradient(logits.detach().clone(), total, labels, 0, *chances)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found[2], torch.zeros(7).double())  # no path: exactly nothing
    unknown = torch.full((3,), float("nan")).double()
    assert not to_gradient(torch.zeros(3, 7).double(), unknown, labels, 0, none, none).any()


def test_slices_cover_a_range() -> None:
    assert [list(range(10))[part] for part in parts(10, 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(parts(0, 4)) == []
