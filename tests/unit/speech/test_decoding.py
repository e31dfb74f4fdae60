"""Searches against plain ones and enumeration; alone as in a batch, in parts as at once."""

from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from magneto.speech.decoding import GreedySearch, Hypothesis, ModifiedBeamSearch, Search
from magneto.speech.model import Transducer
from tests.unit.speech.small import small_model

LENGTHS = [9, 0, 13, 1]


def features(
    lengths: list[int], seed: int = 0, width: int = 16
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features as an encoder might give them, with noise where there is padding."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(len(lengths), max(lengths), width, generator=random), torch.tensor(lengths)


def after(model: Transducer, frame: torch.Tensor, labels: list[int]) -> torch.Tensor:
    """Return log-probabilities of the next symbol."""
    state = model.predictor(torch.tensor([labels], dtype=torch.long))[0, -1]
    return model.joiner.logits(*model.joiner(frame, state)).log_softmax(-1)


@torch.no_grad()
def plain_greedy(model: Transducer, encoded: torch.Tensor, most: int) -> Hypothesis:
    """Decode the (frames, width) of one utterance, frame by frame."""
    labels, frames, score = [], [], 0.0
    for number, frame in enumerate(encoded):
        for _ in range(most):
            chances = after(model, frame, labels)
            symbol = int(chances.argmax())
            score += float(chances[symbol])
            if symbol == 0:
                break
            labels.append(symbol)
            frames.append(number)
    return Hypothesis(labels, frames, score)


@torch.no_grad()
def every_score(model: Transducer, encoded: torch.Tensor) -> dict[tuple[int, ...], float]:
    """Return the log-probability of every sequence of labels, one at a frame, over all its paths.

    Args:
        model: Of the scores.
        encoded: (frames, width). A frame with a label ends without a blank.
    """

    @cache
    def chances(frame: int, labels: tuple[int, ...]) -> torch.Tensor:
        return after(model, encoded[frame], list(labels))

    found = {}
    for count in range(len(encoded) + 1):
        for labels in product(range(1, model.config.vocab_size), repeat=count):
            table = [[chances(frame, labels[:u]) for u in range(count + 1)]
                     for frame in range(len(encoded))]  # fmt: skip
            alpha = [0.0] + [-np.inf] * count
            for row in table:
                alpha = [
                    np.logaddexp(a + float(row[u][0]),
                        alpha[u - 1] + float(row[u - 1][labels[u - 1]]) if u else -np.inf)
                    for u, a in enumerate(alpha)
                ]  # fmt: skip
            found[labels] = alpha[count]
    return found


@pytest.mark.parametrize(
    ("predictor", "most", "ahead"),
    [("lstm", 1, 3), ("stateless", 2, 1), ("lstm", 10, 3)],
)
def test_it_is_plain_greedy_decoding(predictor: str, most: int, ahead: int) -> None:
    model = small_model(3, predictor=predictor)
    encoded, lengths = features(LENGTHS)
    found = GreedySearch(most, ahead)(model, encoded, lengths)
    narrow = ModifiedBeamSearch(width=1)(model, encoded, lengths)
    emitted = 0
    for row, (length, hypotheses) in enumerate(zip(LENGTHS, found, strict=True)):
        expected = plain_greedy(model, encoded[row, :length], most)
        assert (hypotheses[0].labels, hypotheses[0].frames) == (expected.labels, expected.frames)
        assert hypotheses[0].score == pytest.approx(expected.score, abs=1e-3)
        if most == 1:  # then a beam of one hypothesis is the same search
            near = pytest.approx(expected.score, abs=1e-3)
            assert narrow[row] == [Hypothesis(expected.labels, expected.frames, near)]
        emitted += len(expected.labels)
    assert emitted > 5


# More hypotheses than there are sequences: nothing is cut off.
WHOLE = 400


@pytest.mark.parametrize(("predictor", "seed"), [("lstm", 0), ("stateless", 1), ("lstm", 2)])
def test_one_label_per_frame_is_exact_where_nothing_is_cut(predictor: str, seed: int) -> None:
    model = small_model(seed, predictor=predictor, vocab_size=4)
    encoded, lengths = features([3, 2], seed)
    search = ModifiedBeamSearch(width=WHOLE, count=WHOLE)

    def dear(labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Each label costs 2 nats, and blank, which is not asked about, 99."""
        return torch.tensor([[-99.0, -2.0, -2.0, -2.0]]).expand(len(labels), -1)

    fused = replace(search, fusion=dear, fusion_weight=0.25)(model, encoded, lengths)
    for row, found in enumerate(search(model, encoded, lengths)):
        expected = every_score(model, encoded[row, : lengths[row]])
        assert {tuple(h.labels): h.score for h in found} == pytest.approx(expected, abs=1e-4)
        paid = {labels: score - 0.5 * len(labels) for labels, score in expected.items()}
        assert {tuple(h.labels): h.score for h in fused[row]} == pytest.approx(paid, abs=1e-4)
        ranked = [h.score / (len(h.labels) + 1) for h in found]
        assert ranked == pytest.approx(sorted(ranked, reverse=True))


@pytest.mark.parametrize("search", [GreedySearch(3, 2), ModifiedBeamSearch(width=3, count=3)])
def test_in_parts_as_at_once(search: Search) -> None:
    """However the frames are cut; and a state can be gone on from twice."""
    for seed, predictor in enumerate(("lstm", "stateless")):
        model = small_model(seed, predictor=predictor)
        encoded, lengths = features([6, 3, 0, 9], seed)
        whole = search(model, encoded, lengths)
        assert sum(len(each[0].labels) for each in whole) > 3
        for cuts in ((3, 6), range(1, 9), (0, 9)):
            state = search.begin(model, lengths)
            for start, stop in pairwise([0, *cuts, 9]):
                frames = (lengths - start).clamp(0, stop - start)
                search.advance(model, state, encoded[:, start:stop] + 1.0, frames)
                state = search.advance(model, state, encoded[:, start:stop], frames)
            for found, expected in zip(search.finish(model, state), whole, strict=True):
                for one, other in zip(found, expected, strict=True):
                    near = pytest.approx(other.score, abs=1e-4)
                    assert one == Hypothesis(other.labels, other.frames, near), (seed, cuts)


def test_fusion_adds_what_a_language_model_says() -> None:
    """A model of pairs that allows nothing but 1 2 1 2: the transcript begins so."""
    model = small_model(1)
    encoded, lengths = features([11, 6])

    def pairs(labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        last = labels.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0] * (lengths > 0)
        chances = torch.full((len(labels), 5), -30.0)
        chances[torch.arange(len(labels)), torch.where(last == 1, 2, 1)] = 0.0
        return chances

    plain = ModifiedBeamSearch(width=4)(model, encoded, lengths)
    search = ModifiedBeamSearch(width=4, fusion=pairs, fusion_weight=1.0)
    fused = search(model, encoded, lengths)
    written = [each[0].labels for each in fused]
    assert written != [each[0].labels for each in plain]
    assert all(labels == [1 + n % 2 for n in range(len(labels))] for labels in written)
    assert max(map(len, written)) > 1
    off = ModifiedBeamSearch(width=4, fusion=pairs, fusion_weight=0.0)(model, encoded, lengths)
    assert [each[0].labels for each in off] == [each[0].labels for each in plain]
