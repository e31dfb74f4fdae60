"""The built-in utterances: each is a function of integers, and needs no recorded voice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from magneto.speech.audio import Sound
from magneto.speech.config import SpeechDataConfig
from magneto.speech.data_config import SyntheticConfig
from magneto.speech.phones import COMMANDS, DIGITS
from magneto.speech.synthesiser import Plan, Speaker, draw_speaker, plan, planned_samples, speak
from magneto.speech.utterances import Row

# Of what is validated on, in every run; and of the streams of random numbers.
VALIDATION_SEED = 0
VALIDATION, TRAIN = 0, 1
WHAT, HOW = 0, 1
# Speakers of a training set and of a validation set, who are others.
SPEAKERS = 200


@dataclass(frozen=True)
class Spoken:
    """Words spoken by the synthesiser.

    Attributes:
        seed: Integers of the utterance.
        words: What is spoken.
        lexicon: Phones of the words.
        speaker: Integers of the speaker.
        config: What it is like.
        sample_rate: In Hz.
    """

    seed: tuple[int, ...]
    words: tuple[str, ...]
    lexicon: Mapping[str, str]
    speaker: tuple[int, ...]
    config: SyntheticConfig
    sample_rate: int

    def seconds(self) -> tuple[float, str]:
        """Return how long it takes."""
        planned, _ = self._plan(draw_speaker(self.speaker))
        return planned_samples(planned, self.sample_rate) / self.sample_rate, ""

    def read(self, sample_rate: int) -> Sound:
        """Speak it, with noise behind it."""
        speaker = draw_speaker(self.speaker)
        planned, random = self._plan(speaker)
        samples = speak(planned, speaker, sample_rate, random)
        power = float((samples**2).mean()) * 10 ** (-random.uniform(*self.config.snr) / 10)
        noise = np.sqrt(power) * random.standard_normal(len(samples), np.float32)
        return Sound((random.uniform(0.2, 1.0) * (samples + noise)).astype(np.float32))

    def file(self) -> Path | None:
        """Return none."""
        return None

    def state(self) -> Any:
        """Return all that it is made of."""
        return (self.seed, self.words, self.speaker, repr(self.config), self.sample_rate)

    def _plan(self, speaker: Speaker) -> tuple[Plan, np.random.Generator]:
        random = np.random.default_rng([*self.seed, HOW])
        return plan(self.words, self.lexicon, speaker, random), random


def synthetic_rows(name: str, config: SpeechDataConfig, seed: int, train: bool) -> list[Row]:
    """Return the rows of a built-in set.

    Args:
        name: "spoken-digits" or "spoken-commands".
        config: How many, and what they are like.
        seed: Of the training set; the validation set is always the same.
        train: Whether the training set is wanted.
    """
    synthetic = config.synthetic
    count = synthetic.train_utterances if train else synthetic.validation_utterances
    part = (TRAIN, seed) if train else (VALIDATION, VALIDATION_SEED)
    lexicon = {"spoken-digits": DIGITS, "spoken-commands": COMMANDS}[name]
    return [_spoken(lexicon, config, (*part, number)) for number in range(count)]


def _id(seed: tuple[int, ...]) -> str:
    return f"{'train' if seed[0] == TRAIN else 'validation'}-{seed[-1]}"


def _spoken(lexicon: Mapping[str, str], config: SpeechDataConfig, seed: tuple[int, ...]) -> Row:
    random = np.random.default_rng([*seed, WHAT])
    synthetic, known = config.synthetic, list(lexicon)
    chosen = random.integers(len(known), size=random.integers(*synthetic.words, endpoint=True))
    words = tuple(known[number] for number in chosen)
    speaker = (*seed[:-1], int(random.integers(SPEAKERS)))
    spoken = Spoken(seed, words, lexicon, speaker, synthetic, config.sample_rate)
    return Row(_id(seed), spoken, " ".join(words), f"speaker-{speaker[-1]}")
