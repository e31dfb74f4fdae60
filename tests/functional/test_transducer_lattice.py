"""Sums over paths and the best path equal what enumerating the paths gives."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from magneto.functional.transducer_lattice import (
    Lattice,
    best_path,
    build_lattice,
    cells,
    forward_scores,
    log_likelihood,
    posteriors,
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
