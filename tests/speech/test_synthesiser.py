"""The built-in voice: deterministic, as long as planned, with its formants where they belong."""

import numpy as np
import pytest

from magneto.speech.synthetic import (
    COMMANDS,
    DIGITS,
    PHONES,
    Speaker,
    draw_speaker,
    plan,
    planned_samples,
    speak,
)

CLEAR = Speaker(pitch=100.0, tract=1.0, rate=0.5, breath=0.0, tilt=1.0)


def spoken(words: str, lexicon=DIGITS, speaker=CLEAR, rate=16000, seed=0) -> np.ndarray:
    random = np.random.default_rng(seed)
    planned = plan(words.split(), lexicon, speaker, random)
    samples = speak(planned, speaker, rate, random)
    assert len(samples) == planned_samples(planned, rate)
    return samples


def test_every_word_has_known_phones() -> None:
    for lexicon in (DIGITS, COMMANDS):
        assert {phone for phones in lexicon.values() for phone in phones.split()} <= set(PHONES)
        assert len(set(lexicon.values())) == len(lexicon)


@pytest.mark.parametrize("rate", [8000, 16000, 22050])
def test_samples(rate: int) -> None:
    samples = spoken("one two three", rate=rate)
    assert samples.dtype == np.float32 and np.isfinite(samples).all()
    assert np.abs(samples).max() == pytest.approx(0.5)
    assert 1.5 < len(samples) / rate < 4


def test_the_same_integers_say_the_same() -> None:
    assert np.array_equal(spoken("four five"), spoken("four five"))
    assert not np.array_equal(spoken("four five", seed=1)[:5000], spoken("four five")[:5000])
    assert draw_speaker((1, 2)) == draw_speaker((1, 2)) != draw_speaker((1, 3))


def band(samples: np.ndarray, low: float, high: float) -> float:
    """Return the share of the power that is between two frequencies."""
    power = np.abs(np.fft.rfft(samples)) ** 2
    frequencies = np.fft.rfftfreq(len(samples), 1 / 16000)
    return power[(frequencies >= low) & (frequencies < high)].sum() / power.sum()


@pytest.mark.parametrize("vowel", ["IY", "EH", "AA", "UW"])
def test_a_vowel_has_its_formants(vowel: str) -> None:
    first, second, _ = PHONES[vowel].formants
    samples = spoken("word", {"word": f"{vowel} {vowel} {vowel}"})
    around = sum(band(samples, 0.75 * f, 1.25 * f) for f in (first, second))
    between = band(samples, 1.25 * first, 0.75 * second) if second > 2 * first else 0.0
    assert around > 0.6 and between < 0.3


def test_hissing_is_high_and_pitch_is_the_speakers() -> None:
    assert band(spoken("word", {"word": "S S S"}), 4000, 8000) > 0.9
    for pitch in (90.0, 180.0):
        speaker = Speaker(pitch=pitch, tract=1.0, rate=0.5, breath=0.0, tilt=1.0)
        samples = spoken("word", {"word": "AA AA AA"}, speaker)[4000:9000]
        correlation = np.correlate(samples, samples, "full")[len(samples) - 1 :]
        period = 60 + correlation[60:250].argmax()
        assert 16000 / period == pytest.approx(pitch, rel=0.12)


def test_slow_speakers_take_longer() -> None:
    fast = Speaker(pitch=100.0, tract=1.0, rate=1.5, breath=0.0, tilt=1.0)
    assert len(spoken("six seven")) > 2 * len(spoken("six seven", speaker=fast))
