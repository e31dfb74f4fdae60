"""Sums over paths and the best path equal what enumerating the paths gives; tiles cover cells."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from magneto.functional.transducer_lattice import (
    Joiner,
    Lattice,
    best_path,
    build_lattice,
    cells,
    forward_scores,
    log_likelihood,
    log_probabilities,
    parts,
    posteriors,
    to_gradient,
)

FRAMES, LABELS = torch.tensor([4, 1, 3, 2]), torch.tensor([3, 3, 0, 1])


def numbers() -> Tensor:
    """Return log p(blank) and log p(label), (2, 4, 4, 4), with nonsense in the padding."""
    generator = torch.Generator().manual_seed(0)
    found = torch.rand(2, 4, 4, 4, generator=generator, dtype=torch.float64).log()
    for utterance, (time, count) in enumerate(zip(FRAMES, LABELS, strict=True)):
        found[:, utterance, time:] = found[:, utterance, :, count + 1 :] = float("nan")
        found[1, utterance, :, count] = 7.0
    return found


def lattice() -> Lattice:
    return build_lattice(*numbers(), FRAMES, LABELS)


def paths(utterance: int) -> dict[tuple[int, ...], float]:
    """Return the log-probability of each path, by the frames of its labels."""
    (blank, label), found = numbers()[:, utterance].tolist(), {}
    time, count = int(FRAMES[utterance]), int(LABELS[utterance])
    for frames in itertools.combinations_with_replacement(range(time), count):
        total = sum(label[t][u] for u, t in enumerate(frames))
        out = [sum(frame <= t for frame in frames) for t in range(time)]
        found[frames] = total + sum(blank[t][u] for t, u in enumerate(out))
    return found


def test_cells_of_a_diagonal_have_one_sum() -> None:
    time, width = 3, 4
    diagonals = torch.arange(time + width - 1)[:, None, None].expand(-1, 2, width).contiguous()
    expected = torch.arange(time)[:, None] + torch.arange(width)
    assert torch.equal(cells(diagonals), expected.expand(2, -1, -1))


def test_the_log_likelihood_is_that_of_all_paths() -> None:
    found = log_likelihood(lattice(), forward_scores(lattice()))
    expected = [math.log(sum(map(math.exp, paths(i).values()))) for i in range(4)]
    torch.testing.assert_close(found.tolist(), expected)


def test_posteriors_are_shares_of_the_paths() -> None:
    by_blank, by_label = posteriors(lattice(), forward_scores(lattice()))
    for utterance in range(4):
        expected = torch.zeros(2, 4, 4, dtype=torch.float64)
        weights = {frames: math.exp(score) for frames, score in paths(utterance).items()}
        for frames, weight in weights.items():
            for u, t in enumerate(frames):
                expected[1, t, u] += weight / sum(weights.values())
            for t in range(int(FRAMES[utterance])):
                u = sum(frame <= t for frame in frames)
                expected[0, t, u] += weight / sum(weights.values())
        torch.testing.assert_close(by_blank[utterance], expected[0])
        torch.testing.assert_close(by_label[utterance], expected[1])


def test_the_best_path_is_the_likeliest() -> None:
    frames, scores = best_path(lattice())
    for utterance in range(4):
        known = paths(utterance)
        best = max(known, key=known.__getitem__)
        assert frames[utterance].tolist() == [*best, *[-1] * (3 - len(best))]
        assert scores[utterance].item() == pytest.approx(known[best])


@pytest.mark.parametrize("bad", [-torch.inf, float("nan")])
def test_without_a_path_there_is_no_frame_and_no_posterior(bad: float) -> None:
    blank, label = numbers()
    label[0, :, 1] = bad
    broken = build_lattice(blank, label, FRAMES, LABELS)
    scores = forward_scores(broken)
    assert not log_likelihood(broken, scores)[0].isfinite()
    for one, other in zip(posteriors(broken, scores), posteriors(lattice(), scores), strict=True):
        assert not one[0].any() and torch.equal(one[1:], other[1:])
    frames, total = best_path(broken)
    assert frames[0].tolist() == [-1, -1, -1] and not total[0].isfinite()
    assert torch.equal(frames[1:], best_path(lattice())[0][1:])


def test_thousands_of_nats_keep_their_digits() -> None:
    """In float32 a sum of 4000 nats has steps of 2e-4, and gradients have errors as large."""
    time, count = 400, 60
    blank = label = torch.full((1, time, count + 1), -10.0, dtype=torch.float64)
    long = build_lattice(blank, label, torch.tensor([time]), torch.tensor([count]))
    scores = forward_scores(long)
    # All paths are alike, so there are as many as ways to set the labels before the last blank.
    ways = math.lgamma(time + count) - math.lgamma(count + 1) - math.lgamma(time)
    assert log_likelihood(long, scores).item() == pytest.approx(ways - 4600, abs=1e-9)
    by_blank, by_label = posteriors(long, scores)
    torch.testing.assert_close(by_blank.sum(2), torch.ones(1, time, dtype=torch.float64))
    torch.testing.assert_close(by_label.sum(1)[:, :-1], torch.ones(1, count, dtype=torch.float64))


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
