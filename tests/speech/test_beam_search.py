"""Beam searches against enumeration of every sequence, against greedy, and alone against beside."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from magneto.speech import beam_search
from magneto.speech.beam import Beam, Grower
from magneto.speech.beam_search import AlignmentLengthBeamSearch, ModifiedBeamSearch
from magneto.speech.decoding import GreedySearch, Hypothesis, StreamingSearch
from magneto.speech.model import Transducer
from tests.speech.searching import Scripted, every_score, features, small_model

# More hypotheses than there are sequences: nothing is cut off.
WHOLE = 400


@pytest.mark.parametrize("predictor", ["lstm", "stateless"])
@pytest.mark.parametrize("seed", range(3))
def test_one_label_per_frame_is_exact_where_nothing_is_cut(predictor: str, seed: int) -> None:
    model = small_model(seed, predictor=predictor, vocab_size=4)
    encoded, lengths = features([3, 2], seed)
    search = ModifiedBeamSearch(width=WHOLE, count=WHOLE, normalise=0.0)
    for row, found in enumerate(search(model, encoded, lengths)):
        expected = every_score(model, encoded[row, : lengths[row]], int(lengths[row]), 1)
        assert {tuple(h.labels): h.score for h in found} == pytest.approx(expected, abs=1e-4)
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


@pytest.mark.parametrize("seed", range(3))
def test_any_number_of_labels_is_exact_where_nothing_is_cut(seed: int) -> None:
    model = small_model(seed, vocab_size=3)
    encoded, lengths = features([3, 2], seed)
    search = AlignmentLengthBeamSearch(
        width=WHOLE, count=WHOLE, normalise=0.0, labels_per_frame=4 / 3
    )
    for row, found in enumerate(search(model, encoded, lengths)):
        expected = every_score(model, encoded[row, : lengths[row]], [4, 2][row], None)
        assert {tuple(h.labels): h.score for h in found} == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("predictor", "seed"), [("lstm", 3), ("stateless", 1), ("stateless", 41)])
def test_a_beam_of_one_is_greedy(predictor: str, seed: int) -> None:
    model = small_model(seed, predictor=predictor)
    encoded, lengths = features([7, 0, 9, 1])
    one = ModifiedBeamSearch(width=1)(model, encoded, lengths)
    for mine, theirs in zip(one, GreedySearch(1)(model, encoded, lengths), strict=True):
        assert (mine[0].labels, mine[0].frames) == (theirs[0].labels, theirs[0].frames)
        assert mine[0].score == pytest.approx(theirs[0].score, abs=1e-3)
    other = AlignmentLengthBeamSearch(width=1, labels_per_frame=3.0)(model, encoded, lengths)
    compared = 0
    for mine, theirs in zip(other, GreedySearch(50)(model, encoded, lengths), strict=True):
        same = slice(len(mine[0].labels) - 1)  # the last may be the limit's doing
        assert mine[0].labels[same] == theirs[0].labels[same]
        assert mine[0].frames[same] == theirs[0].frames[same]
        compared += len(mine[0].labels[same])
    assert compared > 5


@pytest.mark.parametrize("search", [
    ModifiedBeamSearch(width=4, count=4), AlignmentLengthBeamSearch(width=4, count=4),
    GreedySearch(),
], ids=lambda search: type(search).__name__)  # fmt: skip
def test_alone_as_in_a_batch(search) -> None:
    model = small_model(4)
    encoded, lengths = features([8, 3, 11])
    together = search(model, encoded, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = search(model, encoded[row : row + 1, :length], lengths[row : row + 1])[0]
        assert [h.labels for h in alone] == [h.labels for h in together[row]]
        assert [h.frames for h in alone] == [h.frames for h in together[row]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[row]], abs=1e-3)


@pytest.mark.parametrize("normalise", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 3])
def test_stopping_early_changes_nothing(
    normalise: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = AlignmentLengthBeamSearch(width=4, count=count, normalise=normalise)
    steps: list[int] = []
    grown = Grower.grown

    def counted(grower: Grower, beam: Beam, *given: Tensor) -> Beam:
        steps[-1] += 1
        return grown(grower, beam, *given)

    monkeypatch.setattr(Grower, "grown", counted)
    monkeypatch.setattr(beam_search, "LOOK_EVERY", 1)
    both = []
    for settled in (AlignmentLengthBeamSearch._settled, nothing_grows):
        monkeypatch.setattr(AlignmentLengthBeamSearch, "_settled", settled)
        steps.append(0)
        encoded = [features([9, 4, 12], seed) for seed in range(6)]
        both.append([search(quiet_model(seed), *given) for seed, given in enumerate(encoded)])
    assert both[0] == both[1] and steps[0] < steps[1]


def test_two_that_are_still_to_become_one_are_waited_for() -> None:
    """Two of 0.31 each are behind one of 0.38 that has ended, and are one of 0.62 in the end."""

    def chances(said: tuple[int, ...], frame: int) -> dict[int, float]:
        if frame < 6 or said == (1, 2):
            return {0: 1.0}
        if said == ():
            return {0: 0.38, 1: 0.62} if frame == 6 else {0: 1.0}
        return {0: 0.5, 2: 0.5} if frame == 6 else {2: 1.0}

    model: Any = Scripted(chances, 5)
    search = AlignmentLengthBeamSearch(width=4, normalise=0.0)
    (found,) = search(model, torch.arange(8.0)[None, :, None], torch.tensor([8]))
    assert found[0].labels == [1, 2] and found[0].score == pytest.approx(math.log(0.62))


def quiet_model(seed: int) -> Transducer:
    """Return a model that mostly says blank, as trained ones do."""
    model = small_model(seed)
    with torch.no_grad():
        model.joiner.output.bias[0] += 8.0
    return model


def nothing_grows(_: object, beam: Beam, *others: object) -> bool:
    return not bool((beam.scores > -torch.inf).any())


def test_a_wider_beam_finds_no_worse() -> None:
    better = 0
    for seed in range(5):
        model = small_model(seed)
        encoded, lengths = features([12, 9], seed)
        for kind in (ModifiedBeamSearch, AlignmentLengthBeamSearch):
            narrow, wide = (
                [h[0].score for h in kind(width=w, normalise=0.0)(model, encoded, lengths)]
                for w in (1, 16)
            )
            better += sum(b - a > 1e-3 for a, b in zip(narrow, wide, strict=True))
            assert all(b > a - 1e-3 for a, b in zip(narrow, wide, strict=True))
    assert better > 5


@pytest.mark.parametrize(
    "search",
    [
        GreedySearch(3, 2), ModifiedBeamSearch(width=3, count=3),
        AlignmentLengthBeamSearch(width=3, count=3),
        AlignmentLengthBeamSearch(width=2, normalise=0.0),
    ],
    ids=repr,
)  # fmt: skip
def test_in_parts_as_at_once(search: StreamingSearch) -> None:
    """However the frames are cut; and a state can be gone on from twice."""
    for seed, predictor in enumerate(("lstm", "stateless")):
        model = small_model(seed, predictor=predictor)
        encoded, lengths = features([8, 3, 0, 11], seed)
        whole = search(model, encoded, lengths)
        assert sum(len(each[0].labels) for each in whole) > 3
        for cuts in ((3, 8), range(1, 11), (0, 11)):
            state = search.begin(model, lengths)
            for start, stop in pairwise([0, *cuts, 11]):
                there = (lengths - start).clamp(0, stop - start)
                search.advance(model, state, encoded[:, start:stop] + 1.0, there)
                state = search.advance(model, state, encoded[:, start:stop], there)
            assert alike(search.finish(model, state), whole), (seed, cuts)


def alike(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> bool:
    """Return whether labels, frames and scores are the same."""
    return all(
        (a.labels, a.frames) == (b.labels, b.frames) and a.score == pytest.approx(b.score, abs=1e-4)
        for one, other in zip(found, expected, strict=True)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("kind", [ModifiedBeamSearch, AlignmentLengthBeamSearch])
def test_fusion_adds_what_a_language_model_says(kind) -> None:
    """A model of pairs that allows nothing but 1 2 1 2: the transcript begins so."""
    model = small_model(1)
    encoded, lengths = features([11, 6])

    def pairs(labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        last = labels.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0] * (lengths > 0)
        chances = torch.full((len(labels), 5), -30.0)
        chances[torch.arange(len(labels)), torch.where(last == 1, 2, 1)] = 0.0
        return chances

    plain = kind(width=4)(model, encoded, lengths)
    fused = kind(width=4, fusion=pairs, fusion_weight=1.0)(model, encoded, lengths)
    written = [each[0].labels for each in fused]
    assert written != [each[0].labels for each in plain]
    assert all(labels == [1 + n % 2 for n in range(len(labels))] for labels in written)
    assert max(map(len, written)) > 1
