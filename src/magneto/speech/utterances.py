"""Utterances: what is known of each before it is heard, and what it is once it was read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from magneto.data.cache import content_digest, file_states
from magneto.speech.audio import Recording

# Of so many recordings of a split, and so many bytes of each, is `recordings_digest`.
SAMPLED, BYTES = 256, 1 << 20


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


def recording_states(rows: Sequence[Row]) -> list[Any]:
    """Return what names each row's recording as plain values: its file's state, and which part."""
    files = [row.recording.file() for row in rows]
    there = list(dict.fromkeys(file for file in files if file is not None))
    states = dict(zip(there, file_states(there), strict=True))
    return [
        (states[file] if file is not None else (), row.recording.state())
        for row, file in zip(rows, files, strict=True)
    ]


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
        """A name for the sound of some recordings, evenly chosen, wherever their files lie."""
        some = np.unique(np.linspace(0, max(len(self) - 1, 0), SAMPLED).astype(np.int64))
        rows = [self.rows[number] for number in some[: len(self)]]
        states = json.dumps([row.recording.state() for row in rows], default=str)
        return content_digest(states.encode(), *(beginning(row.recording.file()) for row in rows))

    def chosen(self, numbers: Sequence[int] | np.ndarray) -> Utterances:
        """Return some of them."""
        rows = [self.rows[number] for number in numbers]
        problems = [self.problems[number] for number in numbers]
        return Utterances(rows, self.durations[np.asarray(numbers, int)], problems,
                          self.sample_rate)  # fmt: skip


def beginning(file: Path | None) -> bytes:
    """Return size and first bytes of a file; nothing of one that can't be read."""
    try:
        if file is None:
            return b""
        with file.open("rb") as opened:
            return f"{file.stat().st_size}:".encode() + opened.read(BYTES)
    except OSError:
        return b""
