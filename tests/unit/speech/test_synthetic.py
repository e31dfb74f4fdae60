"""The built-in sets and their voice: the same for the same integers, formants where they belong."""

from dataclasses import replace

import numpy as np
import pytest

from magneto.speech.config import NAMES, SpeechDataConfig, SyntheticConfig
from magneto.speech.synthetic import (
    COMMANDS,
    DIGITS,
    PHONES,
    Speaker,
    _filtered,
    _phone_rows,
    _pulses,
    draw_speaker,
    plan,
    speak,
    synthetic_table,
)

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
    known = {"spoken-digits": DIGITS, "spoken-commands": COMMANDS}[name]
    words = {word for text in one.values("text") for word in text.split()}
    assert words <= known.keys() and len(words) > 7
    assert {len(text.split()) for text in one.values("text")} == {1, 2, 3, 4, 5}
    assert one.values("speaker") == [f"speaker-{each.speaker[-1]}" for each in one.values("audio")]
    for row in (one[n] for n in range(4)):
        assert 1 <= len(row["text"].split()) <= 5
        sound, spoken = row["audio"].sound(), row["audio"]
        assert sound.problem == "" and np.isfinite(sound.samples).all()
        assert abs(len(sound.samples) / 16000 - spoken.seconds()) < 0.001
        assert np.array_equal(spoken.sound().samples, sound.samples)


def test_words_and_noise_are_as_configured() -> None:
    two = SpeechDataConfig(synthetic=SyntheticConfig(words=(2, 2), snr=(0, 0), train_utterances=4))
    noisy = synthetic_table("spoken-digits", two, 1, True)
    assert {len(text.split()) for text in noisy.values("text")} == {2}
    quiet = SpeechDataConfig(
        synthetic=SyntheticConfig(words=(2, 2), snr=(90, 90), train_utterances=4)
    )
    clear = synthetic_table("spoken-digits", quiet, 1, True)
    peaks = [np.abs(row["audio"].sound().samples).max() for row in map(clear.__getitem__, range(4))]
    assert max(peaks) > 1.3 * min(peaks)  # some speak louder
    for number in range(4):
        first, second = (each[number]["audio"].sound().samples for each in (noisy, clear))
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


def spoken(phones: str, **changes: float) -> np.ndarray:
    random, speaker = np.random.default_rng(0), replace(CLEAR, **changes)
    return speak(plan(["word"], {"word": phones}, speaker, random), speaker, 16000, random)


def test_a_voice_has_its_pitch_its_tract_and_its_rate() -> None:
    for pitch, rate in ((100.0, 16000), (200.0, 8000)):
        speaker = replace(CLEAR, pitch=pitch)
        pulses = _pulses(250, rate // 125, speaker, rate, np.random.default_rng(0))
        assert {*pulses} == {0, 1} and pulses.sum() / 2 == pytest.approx(pitch, rel=0.12)  # in 2 s
    second = PHONES["EH"].formants[1]
    assert band(spoken("EH EH EH", tract=1.3), 1.15 * second, 1.45 * second) > 0.05
    assert band(spoken("EH EH EH"), 1.15 * second, 1.45 * second) < 0.03
    above = [band(spoken("AA AA AA", tilt=tilt), 2000, 3500) for tilt in (0.7, 1.2)]
    assert above[0] > 2 * above[1]
    assert np.ptp(spoken("AA AA AA", breath=0.06) - spoken("AA AA AA")) > 0.01
    for phones in ("AA", "K", "P"):  # the largest sample of stops is below 0
        assert np.abs(spoken(phones)).max() == pytest.approx(0.5)
    lengths = [len(spoken("AA AA AA", rate=rate)) / 16000 for rate in (0.5, 2.0)]
    # Three phones of 0.17 s at the average rate, and pauses of 0.05 to 0.25 s.
    assert 3 * 0.17 * 2 * 0.8 < lengths[0] < 3 * 0.17 * 2 * 1.25 + 0.9
    assert 3 * 0.17 / 2 * 0.8 < lengths[1] < 3 * 0.17 / 2 * 1.25 + 0.5


def test_frames_join_without_jumps() -> None:
    hop, frames = 80, 20
    samples = np.random.default_rng(0).standard_normal(hop * frames).astype(np.float32)
    same = _filtered(samples, np.ones((frames, 2 * hop + 1)), hop)
    assert same[hop:] == pytest.approx(samples[hop // 2 : -hop // 2], abs=1e-5)
    gains = np.repeat(np.arange(frames)[:, None] % 2, 2 * hop + 1, 1)
    switched = _filtered(np.ones_like(samples), gains, hop)
    assert np.ptp(switched) > 0.99 and np.abs(np.diff(switched)).max() < 2 / hop


def test_fricatives_hiss_stops_begin_with_silence_and_diphthongs_glide() -> None:
    assert band(spoken("S S S"), 3500, 8000) > 0.8 > 0.4 > band(spoken("P P P"), 3500, 8000)
    rows = _phone_rows("T", 20, np.random.default_rng(0))
    assert not rows[:10, 1].any() and (rows[10:, 1] > 0.3).all()
    rows = _phone_rows("AY", 20, np.random.default_rng(0))
    assert rows[0, 2:5] == pytest.approx((740, 1250, 2500), rel=0.06)
    assert rows[-1, 2:5] == pytest.approx((420, 2100, 2700), rel=0.06)


def test_speakers_with_high_voices_have_short_tracts() -> None:
    speakers = [draw_speaker((1, 2, number)) for number in range(300)]
    pitch, tract = (np.array([getattr(s, name) for s in speakers]) for name in ("pitch", "tract"))
    assert 85 <= pitch.min() < 100 and 190 < pitch.max() < 222
    assert 0.86 <= tract.min() < 0.9 and 1.14 < tract.max() < 1.2
    assert np.corrcoef(pitch, tract)[0, 1] > 0.7
