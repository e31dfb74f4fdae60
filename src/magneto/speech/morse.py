"""Morse code as it sounds on the radio: text, keyed by a hand, faded, drifting, under noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from magneto.speech.data_config import SyntheticConfig

CODE = {
    "a": ".-", "b": "-...", "c": "-.-.", "d": "-..", "e": ".", "f": "..-.", "g": "--.",
    "h": "....", "i": "..", "j": ".---", "k": "-.-", "l": ".-..", "m": "--", "n": "-.", "o": "---",
    "p": ".--.", "q": "--.-", "r": ".-.", "s": "...", "t": "-", "u": "..-", "v": "...-",
    "w": ".--", "x": "-..-", "y": "-.--", "z": "--..", "0": "-----", "1": ".----", "2": "..---",
    "3": "...--", "4": "....-", "5": ".....", "6": "-....", "7": "--...", "8": "---..",
    "9": "----.", "/": "-..-.", "?": "..--..", ".": ".-.-.-", ",": "--..--", "=": "-...-",
}  # fmt: skip
# What is often sent, abbreviations included.
WORDS = (
    "cq", "de", "test", "the", "and", "you", "are", "is", "on", "in", "for", "it", "my", "name",
    "qth", "rst", "ur", "73", "88", "tu", "tnx", "fer", "qso", "hw", "cpy", "es", "ant",
    "dipole", "beam", "watts", "rig", "wx", "sunny", "rain", "cold", "hot", "temp", "age",
    "years", "here", "there", "good", "morning", "evening", "old", "man", "om", "yl", "call",
    "again", "pse", "agn", "qrm", "qrn", "qsb", "qsl", "qrz", "qsy", "up", "down", "band",
    "radio", "club",
)  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
# The band in which radio amateurs say how strong noise is, in Hz.
NOISE_BAND = 2500.0
# How long a tone takes to rise and to fall, in seconds: harder edges click.
EDGE = 0.005


def draw_text(random: np.random.Generator, words: tuple[int, int], letters: float = 0.0) -> str:
    """Make up what is sent: common words, call signs, groups of letters, numbers.

    Args:
        random: What it is drawn by.
        words: Fewest and most of them.
        letters: Chance that it is one letter or digit instead.
    """
    if letters and random.random() < letters:
        return str(random.choice(list(LETTERS + DIGITS)))
    return " ".join(_word(random) for _ in range(random.integers(words[0], words[1] + 1)))


def _word(random: np.random.Generator) -> str:
    kind = random.random()
    if kind < 0.5:
        return WORDS[random.integers(len(WORDS))]
    if kind < 0.7:  # a call sign, as dl3abc
        return f"{_letters(random, 2, 3)}{random.integers(10)}{_letters(random, 1, 4)}"
    if kind < 0.9:
        return _letters(random, 2, 6)
    return str(random.integers(1, 10 ** random.integers(1, 5)))


def _letters(random: np.random.Generator, least: int, most: int) -> str:
    """Return from `least` letters to one below `most`."""
    return "".join(LETTERS[n] for n in random.integers(26, size=random.integers(least, most)))


@dataclass(frozen=True)
class Keying:
    """When the key is down.

    Attributes:
        starts: Of the tones, in seconds.
        stops: Of the tones, in seconds.
        seconds: Of the whole, with silence before and after.
    """

    starts: np.ndarray
    stops: np.ndarray
    seconds: float


def key(text: str, random: np.random.Generator, config: SyntheticConfig) -> Keying:
    """Key a text by hand: at a speed that drifts, with dots and gaps that are never quite alike.

    A dot lasts 1.2 seconds divided by the words per minute; a dash 3 dots; gaps are 1 dot within a
    letter, 3 between letters and 7 between words.
    """
    dot = 1.2 / random.uniform(*config.wpm)
    drift = config.drift * random.uniform(-1, 1)
    unsteady = random.uniform(0.0, 0.08)
    tones: list[float] = []
    gaps: list[float] = [random.uniform(0.1, 0.5) / dot]
    for word in text.split(" "):
        for letter in word:
            for sign in CODE[letter]:
                tones.append(3.0 if sign == "-" else 1.0)
                gaps.append(1.0)
            gaps[-1] = 3.0
        gaps[-1] = 7.0
    gaps[-1] = random.uniform(0.1, 0.5) / dot
    down = np.array(tones) * (1 + unsteady * random.standard_normal(len(tones)).clip(-3, 3))
    up = np.array(gaps) * (1 + unsteady * random.standard_normal(len(gaps)).clip(-3, 3))
    lengths = np.empty(len(tones) + len(gaps))
    lengths[0::2], lengths[1::2] = up, down
    lengths *= dot * (1 + drift * np.linspace(0, 1, len(lengths)))
    ends = np.cumsum(lengths)
    return Keying(ends[:-1:2], ends[1::2], float(ends[-1]))


def sound(
    keying: Keying, random: np.random.Generator, config: SyntheticConfig, sample_rate: int
) -> np.ndarray:
    """Return float32 samples of keyed tones as a receiver gives them."""
    count = int(keying.seconds * sample_rate)
    times = np.arange(count) / sample_rate
    # How many edges lie before each sample says whether the key is down there.
    edges = np.stack([keying.starts, keying.stops], 1).reshape(-1)
    down = (np.searchsorted(edges, times, side="right") % 2).astype(np.float32)
    rise = max(int(EDGE * sample_rate), 1)
    shape = np.hanning(2 * rise + 1)
    strength = np.convolve(down, shape / shape.sum(), "same")
    slow = np.sin(2 * np.pi * (random.uniform(0.05, 0.5) * times + random.random()))
    strength *= 1 - config.fading * random.random() * (0.5 + 0.5 * slow)
    pitch = random.uniform(400, 1000)
    wander = config.drift * random.uniform(-1, 1) * np.linspace(0, 1, count)
    tone = np.sin(2 * np.pi * np.cumsum(pitch * (1 + wander)) / sample_rate + random.uniform(0, 6))
    power = 0.5 * 10 ** (-random.uniform(*config.snr) / 10)  # in the band; a full tone has 0.5
    power *= sample_rate / 2 / NOISE_BAND
    made = strength * tone + np.sqrt(power) * random.standard_normal(count)
    return (random.uniform(0.1, 0.5) * made / max(np.abs(made).max(), 1e-9)).astype(np.float32)
