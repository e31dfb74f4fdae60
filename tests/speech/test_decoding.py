"""Greedy label looping finds what plain greedy decoding finds, whatever stands beside it."""

import pytest
import torch

from magneto.speech.decoding import GreedySearch
from tests.speech.searching import features, plain_greedy, small_model

LENGTHS = [9, 0, 13, 1]


@pytest.mark.parametrize("predictor", ["lstm", "stateless"])
@pytest.mark.parametrize("most", [1, 2, 10])
@pytest.mark.parametrize("ahead", [1, 3])
def test_it_is_plain_greedy_decoding(predictor: str, most: int, ahead: int) -> None:
    model = small_model(3, predictor=predictor)
    encoded, lengths = features(LENGTHS)
    found = GreedySearch(most, ahead)(model, encoded, lengths)
    emitted = 0
    for row, (length, hypotheses) in enumerate(zip(LENGTHS, found, strict=True)):
        expected = plain_greedy(model, encoded[row, :length], most)
        assert (hypotheses[0].labels, hypotheses[0].frames) == (expected.labels, expected.frames)
        assert hypotheses[0].score == pytest.approx(expected.score, abs=1e-3)
        emitted += len(expected.labels)
    assert emitted > 5


def test_a_frame_may_hold_several_labels_up_to_the_cap() -> None:
    model = small_model(0)
    with torch.no_grad():
        model.joiner.output.bias[0] = -100.0  # never a blank
    encoded, lengths = features([4])
    found = GreedySearch(3)(model, encoded, lengths)[0][0]
    assert found.frames == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_nothing_to_decode() -> None:
    model = small_model()
    encoded, lengths = features([3, 2])
    assert GreedySearch()(model, encoded, lengths * 0) == [
        [type(GreedySearch()(model, encoded, lengths)[0][0])([], [], 0.0)] for _ in range(2)
    ]
