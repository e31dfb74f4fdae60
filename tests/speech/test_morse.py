"""Morse code is keyed as the tables say, and can be read back from the sound."""

import numpy as np
import pytest

from magneto.speech import morse
from magneto.speech.data_config import SyntheticConfig

STEADY = {"fading": 0.0, "drift": 0.0}
RATE = 8000


def keyed(text: str, seed: int = 0, **options) -> morse.Keying:
    config = SyntheticConfig(**{**STEADY, **options})
    return morse.key(text, np.random.default_rng(seed), config)


def sounded(text: str, seed: int = 0, **options) -> np.ndarray:
    config = SyntheticConfig(**{**STEADY, "snr": (60, 60), **options})
    random = np.random.default_rng(seed)
    return morse.sound(morse.key(text, random, config), random, config, RATE)


def test_the_code_has_no_two_alike() -> None:
    assert len(set(morse.CODE.values())) == len(morse.CODE) == 41
    assert set("".join(morse.WORDS)) <= set(morse.CODE)


def test_paris_takes_a_minute_over_the_words_per_minute() -> None:
    """PARIS with the gap after it is 50 dots, by definition."""
    for speed in (10, 25):
        keying = keyed("paris paris", wpm=(speed, speed))
        tones = sum(len(morse.CODE[c]) for c in "paris")
        assert keying.starts[tones] - keying.starts[0] == pytest.approx(60 / speed, rel=0.1)


def test_dots_dashes_and_gaps() -> None:
    keying = keyed("ab", wpm=(12, 12))  # a dot is 0.1 s
    assert (keying.stops - keying.starts).round(1).tolist() == pytest.approx(
        [0.1, 0.3, 0.3, 0.1, 0.1, 0.1], abs=0.1
    )
    gaps = keying.starts[1:] - keying.stops[:-1]
    assert gaps[1] > 2 * gaps[0] and gaps[1] == pytest.approx(0.3, rel=0.3)


def read_back(samples: np.ndarray, dot: float) -> str:
    """Decode by loudness alone: what a clear signal lets anybody do."""
    spectrum = np.abs(np.fft.rfft(samples))
    pitch = np.fft.rfftfreq(len(samples), 1 / RATE)[spectrum.argmax()]
    mixed = samples * np.exp(-2j * np.pi * pitch * np.arange(len(samples)) / RATE)
    width = int(0.25 * dot * RATE)
    strength = np.abs(np.convolve(mixed, np.ones(width) / width, "same"))
    down = np.concatenate([[0], strength > 0.5 * strength.max(), [0]]).astype(int)
    starts, stops = np.flatnonzero(np.diff(down) > 0), np.flatnonzero(np.diff(down) < 0)
    signs = [
        "-" if stop - start > 2 * dot * RATE else "."
        for start, stop in zip(starts, stops, strict=True)
    ]
    letters = {code: letter for letter, code in morse.CODE.items()}
    text, code = "", ""
    for sign, gap in zip(signs, [*(starts[1:] - stops[:-1]) / (dot * RATE), 99], strict=True):
        code += sign
        if gap > 2:
            text, code = text + letters[code] + (" " if 5 < gap < 99 else ""), ""
    return text


def test_a_clear_signal_can_be_read_back() -> None:
    for seed, text in enumerate(["cq de dl3abc", "the quick 73", "ur rst 599 = qth berlin?"]):
        samples = sounded(text, seed, wpm=(20, 20))
        assert samples.dtype == np.float32 and np.abs(samples).max() <= 0.5
        assert read_back(samples, 0.06) == text


def test_noise_is_as_strong_as_it_says() -> None:
    """The ratio is that of a held tone to the noise in 2500 Hz."""
    held = morse.Keying(np.array([0.0]), np.array([8.0]), 16.0)
    config = SyntheticConfig(**STEADY, snr=(3, 3))
    samples = morse.sound(held, np.random.default_rng(1), config, RATE)
    signal_and_noise, noise = samples[: 8 * RATE].var(), samples[9 * RATE :].var()
    in_band = noise * 2500 / (RATE / 2)
    assert 10 * np.log10((signal_and_noise - noise) / in_band) == pytest.approx(3, abs=0.3)


def test_fading_and_drift_change_the_sound() -> None:
    plain = sounded("cq cq cq de", 3)
    assert len(sounded("cq cq cq de", 3, fading=0.9)) == len(plain)
    assert len(sounded("cq cq cq de", 3, drift=0.2)) != len(plain)
    assert np.array_equal(sounded("cq cq cq de", 3), plain)
    faded = [np.abs(sounded("ttttttttt", seed, fading=0.9)) for seed in range(10)]
    pieces = [[part.max() for part in np.array_split(each, 8)] for each in faded]
    assert min(min(each[1:7]) / max(each) for each in pieces) < 0.5


def test_texts() -> None:
    texts = [morse.draw_text(np.random.default_rng(n), (2, 4)) for n in range(300)]
    assert {len(text.split()) for text in texts} == {2, 3, 4}
    assert set("".join(texts)) - {" "} <= set(morse.CODE)
    assert len(set(texts)) > 290


def test_a_share_of_the_texts_is_one_letter_or_digit() -> None:
    texts = [morse.draw_text(np.random.default_rng(n), (3, 4), 0.5) for n in range(400)]
    single = [text for text in texts if len(text) == 1]
    assert 150 < len(single) < 250
    assert set(single) == set(morse.LETTERS + morse.DIGITS)
    assert all(len(text.split()) >= 3 for text in texts if len(text) > 1)
