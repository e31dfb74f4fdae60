"""A small formant synthesiser: words from phones, spoken by made-up speakers. Only numpy.

A train of pulses (the vocal folds) and noise (breath) are filtered frame by frame with the
resonances of the phone that is spoken, by multiplying short spectra, and added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from magneto.speech.phones import PHONES, Phone

# Seconds from one frame of the filter to the next; a frame is two of them long.
HOP = 0.008
# Frames over which parameters glide from phone to phone, as tongues do.
GLIDE = 5
# Widths of the three resonances and of two fixed ones above them, in Hz.
BANDWIDTHS = np.array([80.0, 110.0, 160.0, 250.0, 300.0])
HIGHER = (3500.0, 4500.0)
SILENT = Phone(0.0, 0.0, (500, 1500, 2500), 0.0)


@dataclass(frozen=True)
class Speaker:
    """A voice.

    Attributes:
        pitch: Of the voice, in Hz.
        tract: Length of the vocal tract's resonances against the table's: 0.85 for a long tract.
        rate: How fast it speaks, against the table.
        breath: How much noise is in the voice.
        tilt: How soft high harmonics are, as a power of the frequency.
    """

    pitch: float
    tract: float
    rate: float
    breath: float
    tilt: float


def draw_speaker(seed: Sequence[int]) -> Speaker:
    """Make up a speaker; the same integers, the same one."""
    random = np.random.default_rng(seed)
    high = random.random()  # small people have high voices and short tracts
    return Speaker(
        pitch=85.0 * 2.6 ** (0.7 * high + 0.3 * random.random()),
        tract=0.86 + 0.26 * high + 0.08 * random.random(),
        rate=random.uniform(0.75, 1.35),
        breath=random.uniform(0.0, 0.06),
        tilt=random.uniform(0.7, 1.2),
    )


Plan = list[tuple[str, int]]
"""Phones, or "" for silence, with the frames that each lasts."""


def plan(
    words: Sequence[str],
    lexicon: Mapping[str, str],
    speaker: Speaker,
    random: np.random.Generator,
) -> Plan:
    """Lay phones end to end, with pauses between words.

    Args:
        words: Of the lexicon.
        lexicon: Phones of each word, with spaces between.
        speaker: Who speaks.
        random: Of lengths and pauses.
    """
    made = [("", _frames(random.uniform(0.05, 0.25)))]
    for word in words:
        for name in lexicon[word].split():
            seconds = PHONES[name].seconds / speaker.rate * random.uniform(0.8, 1.25)
            made.append((name, max(_frames(seconds), 3)))
        made.append(("", _frames(random.uniform(0.03, 0.25) / speaker.rate)))
    return [*made, ("", _frames(0.08))]


def _frames(seconds: float) -> int:
    return max(round(seconds / HOP), 1)


def planned_samples(planned: Plan, sample_rate: int) -> int:
    """Return how many samples `speak` makes of a plan."""
    return sum(frames for _, frames in planned) * int(HOP * sample_rate)


def speak(
    planned: Plan, speaker: Speaker, sample_rate: int, random: np.random.Generator
) -> np.ndarray:
    """Speak phones.

    Args:
        planned: Which, and how long.
        speaker: Who speaks.
        sample_rate: In Hz.
        random: Of melody, of how clearly each phone is spoken, and of breath.

    Returns:
        float32 samples with a peak of 0.5.
    """
    table = np.concatenate([_phone_rows(name, frames, random) for name, frames in planned])
    smooth = np.ones(GLIDE) / GLIDE
    padded = np.pad(table, ((GLIDE // 2, GLIDE // 2), (0, 0)), mode="edge")
    table = np.stack([np.convolve(column, smooth, "valid") for column in padded.T], 1)
    voice, noise, formants, hiss = np.split(table.astype(np.float32), (1, 2, 5), axis=1)
    hop = int(HOP * sample_rate)
    pulses = _pulses(len(table), hop, speaker, sample_rate, random)
    breath = random.standard_normal(len(pulses), np.float32)
    frequencies = np.fft.rfftfreq(4 * hop, 1 / sample_rate).astype(np.float32)
    resonance = _resonance(formants * np.float32(speaker.tract), frequencies)
    resonance /= 1 + (frequencies / 300.0) ** np.float32(speaker.tilt)
    band = np.exp(-(((frequencies - hiss[:, :1]) / hiss[:, 1:]) ** 2))
    voiced = _filtered(pulses, resonance * voice, hop)
    breathy = band * noise + np.float32(speaker.breath) * resonance * voice
    spoken = voiced / (voiced.std() + 1e-9) + 2.0 * _filtered(breath, breathy, hop)
    return (0.5 * spoken / np.abs(spoken).max()).astype(np.float32)


def _phone_rows(name: str, frames: int, random: np.random.Generator) -> np.ndarray:
    """Return (frames, 7) of a phone: voice, noise, three formants, the noise's band."""
    phone = PHONES.get(name, SILENT)
    way = np.linspace(0, 1, frames)[:, None]
    start, end = np.array(phone.formants), np.array(phone.end or phone.formants)
    rows = np.empty((frames, 7))
    rows[:, :2] = np.array([phone.voice, phone.noise]) * random.uniform(0.8, 1.1)
    rows[: int(phone.closure * frames), :2] *= [0.3, 0.0]
    rows[:, 2:5] = (start + way * (end - start)) * random.uniform(0.95, 1.05, 3)
    rows[:, 5:] = phone.hiss
    return rows


def _pulses(
    frames: int, hop: int, speaker: Speaker, sample_rate: int, random: np.random.Generator
) -> np.ndarray:
    """Return the pulses of the vocal folds, with a melody that falls and wavers."""
    way = np.linspace(0, 1, frames)
    melody = 1 + random.uniform(-0.05, 0.2) * (0.5 - way)
    melody += 0.06 * np.sin(2 * np.pi * (random.uniform(0.5, 2) * way + random.random()))
    pitch = speaker.pitch * np.repeat(melody, hop)
    pitch *= 1 + 0.01 * random.standard_normal(len(pitch), np.float32)
    phase = np.cumsum(pitch / sample_rate)
    return np.diff(np.floor(phase), prepend=0).astype(np.float32)


def _resonance(formants: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Return the gain of a vocal tract, (frames, frequencies)."""
    higher = np.tile(np.array(HIGHER, np.float32), (len(formants), 1))
    centres = np.concatenate([formants, higher], 1)[:, :, None].astype(np.float32)
    widths = BANDWIDTHS[:, None].astype(np.float32)
    # Two poles each, with gain 1 at 0 Hz.
    real = centres**2 - frequencies**2
    gains = centres**2 / np.sqrt(real**2 + (widths * frequencies) ** 2 + 1)
    return gains.prod(1)


def _filtered(samples: np.ndarray, gains: np.ndarray, hop: int) -> np.ndarray:
    """Filter frames of two hops under a Hann window, and add them up where they overlap."""
    frames = len(gains)
    padded = np.pad(samples, (hop // 2, 2 * hop))
    pieces = np.lib.stride_tricks.sliding_window_view(padded, 2 * hop)[::hop][:frames]
    window = (0.5 - 0.5 * np.cos(np.pi * (np.arange(2 * hop) + 0.5) / hop)).astype(np.float32)
    made = np.fft.irfft(np.fft.rfft(pieces * window, 4 * hop) * gains, 4 * hop)
    result = np.zeros((frames + 3) * hop, np.float32)
    quarters = made.reshape(frames, 4, hop)
    for quarter in range(4):
        result[quarter * hop : (quarter + frames) * hop] += quarters[:, quarter].reshape(-1)
    return result[: len(samples)]
