"""Utterances: what is known of each before it is heard, and what it is once it was read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from magneto.data.cache import content_digest
from magneto.data.contents import file_contents
from magneto.progress import SILENT, Progress
from magneto.speech.audio import Recording

# Of so many recordings of a split the files are in `recordings_digest`.
SAMPLED = 256


@dataclass(frozen=True, slots=True)
class Row:
    """An utterance that was not read yet.

    Attributes:
        id: Its name, one of a kind within its set.
        recording: Where its sound is.
        text: What is said.
        speaker: Who says it; "" if nobody knows.
    """

    id: str
    recording: Recording
    text: str
    speaker: str = ""


def recording_contents(rows: Sequence[Row], progress: Progress = SILENT) -> list[Any]:
    """Return what names the content of each row's recording, wherever it lies, as plain values."""
    files = [row.recording.file() for row in rows]
    there = list(dict.fromkeys(file for file in files if file is not None))
    contents = dict(zip(there, readable_contents(there, progress), strict=True))
    return [
        (contents[file] if file is not None else (), row.recording.state())
        for row, file in zip(rows, files, strict=True)
    ]


def readable_contents(files: Sequence[Path], progress: Progress) -> list[tuple[Any, ...]]:
    """Return size and digest of each file; nothing of one that can't be read."""
    try:
        return [found[1:] for found in file_contents(files, progress)]
    except OSError:
        if len(files) == 1:
            return [()]
        return [content for file in files for content in readable_contents([file], progress)]


@dataclass(frozen=True)
class Utterance:
    """An utterance.

    Attributes:
        id: Its name.
        samples: Mono, float32, at the data's sample rate.
        text: What is said.
        duration: Of the samples, in seconds.
        problem: What is wrong with it, as in `magneto.speech.audio`; "" if nothing.
    """

    id: str
    samples: np.ndarray
    text: str
    duration: float
    problem: str = ""


@dataclass(frozen=True)
class Utterances:
    """A split: its utterances, each read when it is asked for.

    Attributes:
        rows: Of the split.
        durations: Of each as its header says, in seconds; 0 where nothing could be learnt.
        problems: What is wrong with each as far as headers tell, "" where nothing is.
        sample_rate: To which they are brought, in Hz.
    """

    rows: Sequence[Row]
    durations: np.ndarray
    problems: Sequence[str]
    sample_rate: int

    def __len__(self) -> int:
        return len(self.rows)

    def utterance(self, number: int) -> Utterance:
        """Read an utterance; never raises for what is wrong with it."""
        row = self.rows[number]
        sound = row.recording.read(self.sample_rate)
        duration = len(sound.samples) / self.sample_rate
        return Utterance(row.id, sound.samples, row.text, duration, sound.problem)

    @property
    def texts(self) -> list[str]:
        """What is said in each."""
        return [row.text for row in self.rows]

    @cached_property
    def digest(self) -> str:
        """A name for the content: ids, transcripts and lengths."""
        known = json.dumps([(row.id, row.text) for row in self.rows])
        return content_digest(known.encode(), self.durations)

    @cached_property
    def recordings_digest(self) -> str:
        """A name for the sound: where in which files some recordings are, evenly chosen."""
        some = np.unique(np.linspace(0, max(len(self) - 1, 0), SAMPLED).astype(np.int64))
        rows = [self.rows[number] for number in some[: len(self)]]
        sounds = recording_contents([row for row in rows if row.recording.file() is not None])
        return content_digest(json.dumps(sounds, default=str).encode())

    def chosen(self, numbers: Sequence[int] | np.ndarray) -> Utterances:
        """Return some of them."""
        rows = [self.rows[number] for number in numbers]
        problems = [self.problems[number] for number in numbers]
        return Utterances(rows, self.durations[np.asarray(numbers, int)], problems,
                          self.sample_rate)  # fmt: skip
