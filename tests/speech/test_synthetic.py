"""Built-in sets: one utterance for the same integers, other speakers to validate on."""

import numpy as np
import pytest

from magneto.speech.config import NAMES, SpeechDataConfig, SyntheticConfig
from magneto.speech.synthetic import synthetic_rows

SMALL = SyntheticConfig(train_utterances=20, validation_utterances=10)
CONFIG = SpeechDataConfig(synthetic=SMALL)


@pytest.mark.parametrize("name", NAMES)
def test_rows(name: str) -> None:
    train, validation = (synthetic_rows(name, CONFIG, 1, split) for split in (True, False))
    assert (len(train), len(validation)) == (20, 10)
    assert len({row.id for row in [*train, *validation]}) == 30
    for row in train[:4]:
        assert 1 <= len(row.text.split()) <= 5
        sound, (seconds, problem) = row.recording.read(16000), row.recording.seconds()
        assert sound.problem == problem == "" and np.isfinite(sound.samples).all()
        assert abs(len(sound.samples) / 16000 - seconds) < 0.001
        assert np.array_equal(row.recording.read(16000).samples, sound.samples)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_is_of_the_training_set(name: str) -> None:
    one, other = (synthetic_rows(name, CONFIG, seed, True) for seed in (1, 2))
    assert [row.text for row in one] != [row.text for row in other]
    held = [synthetic_rows(name, CONFIG, seed, False) for seed in (1, 2)]
    assert held[0] == held[1]
    assert one[0].recording.state() != other[0].recording.state()
    assert held[0][0].recording.state() == held[1][0].recording.state()


def test_words_and_noise_are_as_configured() -> None:
    two = SpeechDataConfig(synthetic=SyntheticConfig(words=(2, 2), snr=(0, 0), train_utterances=9))
    rows = synthetic_rows("spoken-digits", two, 1, True)
    assert {len(row.text.split()) for row in rows} == {2}
    quiet = SpeechDataConfig(synthetic=SyntheticConfig(words=(2, 2), snr=(90, 90)))
    for noisy, clear in zip(rows, synthetic_rows("spoken-digits", quiet, 1, True), strict=False):
        first, second = (row.recording.read(16000).samples for row in (noisy, clear))
        scale = (first @ second) / (second @ second)
        noise = first - scale * second
        ratio = 10 * np.log10((scale * second).var() / noise.var())
        assert ratio == pytest.approx(0, abs=0.3)


def test_speakers_of_validation_are_others() -> None:
    train, held = (synthetic_rows("spoken-digits", CONFIG, 0, split) for split in (True, False))
    assert not {r.recording.speaker for r in train} & {r.recording.speaker for r in held}
