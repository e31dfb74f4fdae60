"""Built-in speech data from a formant synthesiser; integer seeds determine each utterance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from magneto.data.media import MediaColumn
from magneto.data.table import Table, table_of_columns
from magneto.speech.audio import Waveform
from magneto.speech.config import SpeechDataConfig, SyntheticConfig


@dataclass(frozen=True)
class Phone:
    """Acoustic parameters of a phone.

    Attributes:
        voice: Strength of the voice, from 0 to 1.
        noise: Strength of the noise, from 0 to 1.
        formants: First three formants at the start, in Hz.
        seconds: Duration at the average speaking rate.
        end: First three formants at the end, in Hz; None if the formants do not change.
        hiss: Centre and width of the noise band, in Hz.
        closure: Share of a stop consonant's duration before the burst. In this part, the voice is
            weaker, and there is no noise.
    """

    voice: float
    noise: float
    formants: tuple[float, float, float]
    seconds: float
    end: tuple[float, float, float] | None = None
    hiss: tuple[float, float] = (2500.0, 3000.0)
    closure: float = 0.0


PHONES = {
    # Vowels and diphthongs.
    "IY": Phone(1.0, 0.0, (340, 2320, 3000), 0.15),
    "IH": Phone(1.0, 0.0, (430, 2030, 2680), 0.10),
    "EH": Phone(1.0, 0.0, (580, 1800, 2610), 0.13),
    "AE": Phone(1.0, 0.0, (590, 1950, 2600), 0.17),
    "AH": Phone(1.0, 0.0, (620, 1200, 2550), 0.12),
    "AA": Phone(1.0, 0.0, (750, 1300, 2520), 0.17),
    "AO": Phone(1.0, 0.0, (600, 950, 2500), 0.17),
    "UW": Phone(1.0, 0.0, (370, 950, 2300), 0.16),
    "EY": Phone(1.0, 0.0, (500, 2000, 2650), 0.17, end=(380, 2250, 2850)),
    "AY": Phone(1.0, 0.0, (740, 1250, 2500), 0.20, end=(420, 2100, 2700)),
    "OW": Phone(1.0, 0.0, (520, 950, 2400), 0.17, end=(400, 850, 2300)),
    "AW": Phone(1.0, 0.0, (740, 1300, 2500), 0.20, end=(430, 950, 2350)),
    # Glides, liquids and nasals.
    "W": Phone(0.7, 0.0, (320, 700, 2200), 0.08),
    "Y": Phone(0.7, 0.0, (290, 2250, 3000), 0.07),
    "R": Phone(0.7, 0.0, (390, 1200, 1650), 0.09),
    "L": Phone(0.7, 0.0, (370, 1050, 2800), 0.08),
    "N": Phone(0.45, 0.0, (280, 1450, 2500), 0.09),
    # Fricatives.
    "F": Phone(0.0, 0.16, (400, 1300, 2500), 0.12, hiss=(4500, 6000)),
    "TH": Phone(0.0, 0.12, (400, 1400, 2600), 0.11, hiss=(5500, 5000)),
    "S": Phone(0.0, 0.45, (400, 1600, 2600), 0.13, hiss=(6000, 2200)),
    "Z": Phone(0.3, 0.35, (350, 1600, 2600), 0.10, hiss=(6000, 2200)),
    "V": Phone(0.4, 0.10, (350, 1200, 2400), 0.08, hiss=(4500, 5000)),
    # Stops: silence, then a burst.
    "T": Phone(0.0, 0.40, (400, 1700, 2700), 0.10, hiss=(4500, 3500), closure=0.5),
    "K": Phone(0.0, 0.40, (400, 1700, 2300), 0.11, hiss=(2000, 1500), closure=0.5),
    "P": Phone(0.0, 0.30, (400, 1000, 2300), 0.10, hiss=(900, 1800), closure=0.6),
    "D": Phone(0.25, 0.25, (350, 1700, 2650), 0.08, hiss=(4000, 3500), closure=0.4),
    "G": Phone(0.25, 0.25, (350, 1800, 2300), 0.08, hiss=(2000, 1500), closure=0.4),
}

DIGITS = {
    "zero": "Z IH R OW",
    "one": "W AH N",
    "two": "T UW",
    "three": "TH R IY",
    "four": "F AO R",
    "five": "F AY V",
    "six": "S IH K S",
    "seven": "S EH V AH N",
    "eight": "EY T",
    "nine": "N AY N",
}
COMMANDS = {
    "yes": "Y EH S",
    "no": "N OW",
    "up": "AH P",
    "down": "D AW N",
    "left": "L EH F T",
    "right": "R AY T",
    "on": "AA N",
    "off": "AO F",
    "stop": "S T AA P",
    "go": "G OW",
    "back": "P AE K",
    "wait": "W EY T",
}


# Frame shift in seconds; a frame is twice as long.
HOP = 0.008
# Frames of the transition between phones.
GLIDE = 5
# Bandwidths of the three formants and of two fixed ones above them in Hz.
BANDWIDTHS = np.array([80.0, 110.0, 160.0, 250.0, 300.0])
HIGHER = (3500.0, 4500.0)
SILENT = Phone(0.0, 0.0, (500, 1500, 2500), 0.0)


@dataclass(frozen=True)
class Speaker:
    """Voice of a speaker.

    Attributes:
        pitch: Fundamental frequency in Hz.
        tract: Factor of the formant frequencies; a long vocal tract has a factor below 1.
        rate: Factor of the speaking rate.
        breath: Amount of noise in the voice.
        tilt: Exponent by which the voice weakens at high frequencies.
    """

    pitch: float
    tract: float
    rate: float
    breath: float
    tilt: float


def draw_speaker(seed: Sequence[int]) -> Speaker:
    random = np.random.default_rng(seed)
    high = random.random()  # high voices have short vocal tracts
    return Speaker(
        pitch=85.0 * 2.6 ** (0.7 * high + 0.3 * random.random()),
        tract=0.86 + 0.26 * high + 0.08 * random.random(),
        rate=random.uniform(0.75, 1.35),
        breath=random.uniform(0.0, 0.06),
        tilt=random.uniform(0.7, 1.2),
    )


Plan = list[tuple[str, int]]
"""Sequence of (phone, number of frames); the phone "" is silence."""


def plan(
    words: Sequence[str],
    lexicon: Mapping[str, str],
    speaker: Speaker,
    random: np.random.Generator,
) -> Plan:
    """Return the words' phones with pauses between the words."""
    made = [("", _frames(random.uniform(0.05, 0.25)))]
    for word in words:
        for name in lexicon[word].split():
            seconds = PHONES[name].seconds / speaker.rate * random.uniform(0.8, 1.25)
            made.append((name, max(_frames(seconds), 3)))
        made.append(("", _frames(random.uniform(0.03, 0.25) / speaker.rate)))
    return [*made, ("", _frames(0.08))]


def _frames(seconds: float) -> int:
    return max(round(seconds / HOP), 1)


def speak(
    planned: Plan, speaker: Speaker, sample_rate: int, random: np.random.Generator
) -> np.ndarray:
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
    """Return a phone's acoustic parameters in each frame, (frames, 7).

    The first two columns are the strengths of voice and noise. Three formants follow. The last two
    columns are the centre and the width of the noise band.
    """
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
    way = np.linspace(0, 1, frames)
    melody = 1 + random.uniform(-0.05, 0.2) * (0.5 - way)
    melody += 0.06 * np.sin(2 * np.pi * (random.uniform(0.5, 2) * way + random.random()))
    pitch = speaker.pitch * np.repeat(melody, hop)
    pitch *= 1 + 0.01 * random.standard_normal(len(pitch), np.float32)
    phase = np.cumsum(pitch / sample_rate)
    return np.diff(np.floor(phase), prepend=0).astype(np.float32)


def _resonance(formants: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Return the gain of the vocal tract at each frequency, (frames, frequencies)."""
    higher = np.tile(np.array(HIGHER, np.float32), (len(formants), 1))
    centres = np.concatenate([formants, higher], 1)[:, :, None].astype(np.float32)
    widths = BANDWIDTHS[:, None].astype(np.float32)
    # Two poles per formant, with gain 1 at 0 Hz.
    real = centres**2 - frequencies**2
    gains = centres**2 / np.sqrt(real**2 + (widths * frequencies) ** 2 + 1)
    return gains.prod(1)


def _filtered(samples: np.ndarray, gains: np.ndarray, hop: int) -> np.ndarray:
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


# Seed of the validation set, and streams of random numbers.
VALIDATION_SEED = 0
VALIDATION, TRAIN = 0, 1
WHAT, HOW = 0, 1
# Number of speakers of the training set, and of the validation set.
SPEAKERS = 200


@dataclass(frozen=True)
class Spoken:
    """Synthetic utterance. `lexicon` maps words to phones. `speaker` is the seed of the voice."""

    id: str
    seed: tuple[int, ...]
    words: tuple[str, ...]
    lexicon: Mapping[str, str] = field(repr=False)
    speaker: tuple[int, ...]
    config: SyntheticConfig
    sample_rate: int

    def seconds(self) -> float:
        planned, _ = self._plan(draw_speaker(self.speaker))
        return sum(frames for _, frames in planned) * int(HOP * self.sample_rate) / self.sample_rate

    def sound(self) -> Waveform:
        speaker = draw_speaker(self.speaker)
        planned, random = self._plan(speaker)
        samples = speak(planned, speaker, self.sample_rate, random)
        power = float((samples**2).mean()) * 10 ** (-random.uniform(*self.config.snr) / 10)
        noise = np.sqrt(power) * random.standard_normal(len(samples), np.float32)
        return Waveform((random.uniform(0.2, 1.0) * (samples + noise)).astype(np.float32))

    def _plan(self, speaker: Speaker) -> tuple[Plan, np.random.Generator]:
        random = np.random.default_rng([*self.seed, HOW])
        return plan(self.words, self.lexicon, speaker, random), random


class SpokenColumn(MediaColumn):
    """Column of utterances, synthesised on access."""

    def __init__(self, spoken: Sequence[Spoken]) -> None:
        self.spoken = spoken

    def __len__(self) -> int:
        return len(self.spoken)

    def __getitem__(self, number: int) -> Spoken:
        return self.spoken[number]

    def key(self, number: int) -> str:
        return self.spoken[number].id

    def read(self, number: int) -> bytes:
        return repr(self.spoken[number]).encode()

    def state(self) -> Any:
        return list(map(repr, self.spoken))


def synthetic_table(name: str, config: SpeechDataConfig, seed: int, train: bool) -> Table:
    """Return a built-in data set with columns "audio", "text", "id" and "speaker".

    `seed` determines the training set; the validation set is always the same.
    """
    synthetic = config.synthetic
    count = synthetic.train_utterances if train else synthetic.validation_utterances
    part = (TRAIN, seed) if train else (VALIDATION, VALIDATION_SEED)
    lexicon = {"spoken-digits": DIGITS, "spoken-commands": COMMANDS}[name]
    spoken = [draw_utterance(lexicon, config, (*part, number)) for number in range(count)]
    columns = {
        "audio": SpokenColumn(spoken),
        "text": [" ".join(each.words) for each in spoken],
        "id": [each.id for each in spoken],
        "speaker": [f"speaker-{each.speaker[-1]}" for each in spoken],
    }
    return table_of_columns(columns, f"builtin:{name}")


def draw_utterance(
    lexicon: Mapping[str, str], config: SpeechDataConfig, seed: tuple[int, ...]
) -> Spoken:
    random = np.random.default_rng([*seed, WHAT])
    synthetic, known = config.synthetic, list(lexicon)
    chosen = random.integers(len(known), size=random.integers(*synthetic.words, endpoint=True))
    words = tuple(known[number] for number in chosen)
    speaker = (*seed[:-1], int(random.integers(SPEAKERS)))
    id = f"{'train' if seed[0] == TRAIN else 'validation'}-{seed[-1]}"
    return Spoken(id, seed, words, lexicon, speaker, synthetic, config.sample_rate)
