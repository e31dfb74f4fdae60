"""Open recordings and transcripts wherever they lie: PATH, hf:NAME or builtin:NAME."""

from __future__ import annotations

from typing import Any, Protocol

from magneto.data.counts import Counts
from magneto.data.sources import check_builtin, parse_source
from magneto.speech.config import NAMES, SpeechDataConfig
from magneto.speech.synthetic import VERSION, synthetic_rows
from magneto.speech.utterances import Row


class SpeechSource(Protocol):
    """Where utterances come from.

    Attributes:
        splits: Names of its splits; one that has none is "".
    """

    splits: list[str]

    def rows(self, split: str, counts: Counts) -> list[Row]:
        """Return the utterances of a split; records that make none are counted."""
        ...

    def state(self) -> Any:
        """Return what changes when its content may have changed, as plain values."""
        ...


class BuiltinSpeech:
    """Utterances that are made, not recorded."""

    def __init__(self, name: str, config: SpeechDataConfig, seed: int) -> None:
        self.name, self.config, self.seed = name, config, seed
        self.splits = ["train", "validation"]

    def rows(self, split: str, counts: Counts) -> list[Row]:
        """Return the utterances of a split."""
        return synthetic_rows(self.name, self.config, self.seed, split == "train")

    def state(self) -> Any:
        """Return all that they are made of."""
        return (VERSION, self.name, repr(self.config.synthetic), self.config.sample_rate, self.seed)


def open_speech(source: str, config: SpeechDataConfig, seed: int) -> SpeechSource:
    """Open a source of recordings and transcripts.

    Args:
        source: PATH, hf:NAME[:CONFIG[:SPLIT]] or builtin:NAME.
        config: Of the data.
        seed: Of built-in training sets.

    Raises:
        FileNotFoundError: If there is no such path; names the nearest.
        ValueError: If a name is unknown, or there are no transcripts at the path.
    """
    found = parse_source(source)
    if found.kind == "builtin":
        check_builtin(found, NAMES, "speech")
        return BuiltinSpeech(found.name, config, seed)
    raise ValueError(f"{source}: not yet")
