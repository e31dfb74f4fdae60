"""Open recordings and transcripts wherever they lie: PATH, hf:NAME or builtin:NAME."""

from __future__ import annotations

from typing import Protocol

from magneto.data.counts import Counts
from magneto.data.sources import check_builtin, parse_source
from magneto.speech.config import NAMES, SpeechDataConfig
from magneto.speech.files import open_files
from magneto.speech.hub import HubSpeech
from magneto.speech.synthetic import synthetic_rows
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


class BuiltinSpeech:
    """Utterances that are made, not recorded."""

    def __init__(self, name: str, config: SpeechDataConfig, seed: int) -> None:
        self.name, self.config, self.seed = name, config, seed
        self.splits = ["train", "validation"]

    def rows(self, split: str, counts: Counts) -> list[Row]:
        """Return the utterances of a split."""
        return synthetic_rows(self.name, self.config, self.seed, split == "train")


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
    if found.kind == "hf":
        return HubSpeech(found)
    return open_files(source)
