"""The built-in sets and their voice: the same for the same integers, formants where they belong."""

import numpy as np
import pytest

from magneto.speech.config import NAMES, SpeechDataConfig, SyntheticConfig
from magneto.speech.synthetic import PHONES, Speaker, plan, speak, synthetic_table

FEW = SyntheticConfig(train_utterances=20, validation_utterances=10)
CONFIG = SpeechDataConfig(synthetic=FEW)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_and_other_speakers_are_of_the_training_set(name: str) -> None:
    one, other = (synthetic_table(name, CONFIG, seed, True) for seed in (1, 2))
    held, same = (synthetic_table(name, CONFIG, seed, False) for seed in (1, 2))
    assert (len(one), len(held), len({*one.values("id"), *held.values("id")})) == (20, 10, 30)
    assert one.digest != other.digest and held.digest == same.digest
    assert one.values("text") != other.values("text")
    speakers = [{each.speaker for each in table.values("audio")} for table in (one, held)]
    assert not speakers[0] & speakers[1]
    for row in (one[n] for n in range(4)):
        assert 1 <= len(row["text"].split()) <= 5
        sound, spoken = row["audio"].sound(16000), row["audio"]
        assert sound.problem == "" and np.isfinite(sound.samples).all()
        assert abs(len(sound.samples) / 16000 - spoken.seconds()) < 0.001
        assert np.array_equal(spoken.sound(16000).samples, sound.samples)


def test_words_and_noise_are_as_configured() -> None:
    two = SpeechDataConfig(synthetic=SyntheticConfig(words=(2, 2), snr=(0, 0), train_utterances=9))
    noisy = synthetic_table("spoken-digits", two, 1, True)
    assert {len(text.split()) for text in noisy.values("text")} == {2}
    quiet = SpeechDataConfig(synthetic=SyntheticConfig(words=(2, 2), snr=(90, 90)))
    clear = synthetic_table("spoken-digits", quiet, 1, True)
    for number in range(9):
        first, second = (each[number]["audio"].sound(16000).samples for each in (noisy, clear))
        scale = (first @ second) / (second @ second)
        noise = first - scale * second
        ratio = 10 * np.log10((scale * second).var() / noise.var())
        assert ratio == pytest.approx(0, abs=0.3)


CLEAR = Speaker(pitch=100.0, tract=1.0, rate=0.5, breath=0.0, tilt=1.0)


def band(samples: np.ndarray, low: float, high: float) -> float:
    """Return the share of the power that is between two frequencies."""
    power = np.abs(np.fft.rfft(samples)) ** 2
    frequencies = np.fft.rfftfreq(len(samples), 1 / 16000)
    return power[(frequencies >= low) & (frequencies < high)].sum() / power.sum()


@pytest.mark.parametrize("vowel", ["IY", "EH", "AA", "UW"])
def test_a_vowel_has_its_formants(vowel: str) -> None:
    first, second, _ = PHONES[vowel].formants
    random = np.random.default_rng(0)
    planned = plan(["word"], {"word": f"{vowel} {vowel} {vowel}"}, CLEAR, random)
    samples = speak(planned, CLEAR, 16000, random)
    around = sum(band(samples, 0.75 * f, 1.25 * f) for f in (first, second))
    between = band(samples, 1.25 * first, 0.75 * second) if second > 2 * first else 0.0
    assert around > 0.6 and between < 0.3
