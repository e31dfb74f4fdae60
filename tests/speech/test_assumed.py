"""The largest group of utterances that a recipe allows."""

from magneto.speech.assumed import longest_batch
from magneto.speech.config import SpeechDataConfig


def test_a_group_is_as_full_as_it_may_be() -> None:
    data = SpeechDataConfig(max_duration=10.0, max_frames=5000, max_cells=50_000)
    made = longest_batch(data)
    # 10 s are 1000 frames; 5 of them fit, and 50,000 cells are 10 for each frame, one the end's.
    assert tuple(made.features.shape) == (5, 1000, data.features.mel_bins)
    assert tuple(made.targets.shape) == (5, 9)
    assert made.sizes == [(1000, 9)] * 5
    assert made.frames == made.cells == 5000


def test_nobody_speaks_faster_than_may_be() -> None:
    data = SpeechDataConfig(max_duration=2.0, max_frames=200, max_cells=1e9, max_text_rate=20)
    assert tuple(longest_batch(data).targets.shape) == (1, 40)
