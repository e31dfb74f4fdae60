"""Recordings of a data set of the Hugging Face hub, decoded here and not by that library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magneto.data.counts import Counts
from magneto.data.problems import BadRecord, read_each
from magneto.data.sources import HubDataset, Source
from magneto.speech.audio import MISSING, NOTHING, Sound, header_seconds, read_sound
from magneto.speech.manifests import ID, SPEAKER, TEXT
from magneto.speech.utterances import Row


@dataclass(frozen=True, slots=True)
class HubRecording:
    """A recording in a table of the hub, as a file's bytes or its path.

    Attributes:
        table: A `datasets.Dataset` that gives sound without decoding it.
        column: Of the sound.
        number: Of the row.
    """

    table: Any
    column: str
    number: int

    def _file(self) -> str | bytes | None:
        found = self.table[self.number][self.column] or {}
        return found.get("bytes") or found.get("path")

    def seconds(self) -> tuple[float, str]:
        """Return the length by the header."""
        file = self._file()
        return header_seconds(file) if file else (0.0, MISSING)

    def read(self, sample_rate: int) -> Sound:
        """Return the samples."""
        file = self._file()
        return read_sound(file, sample_rate) if file else Sound(NOTHING, MISSING)

    def file(self) -> Path | None:
        """Return none."""
        return None

    def state(self) -> Any:
        """Return the name that the library gives the table's content, and the row."""
        return (self.table._fingerprint, self.number)


class HubSpeech:
    """A data set of the hub, or a folder like one, with a column of sound.

    Args:
        source: Of kind "hf".
    """

    def __init__(self, source: Source) -> None:
        self.source, self.dataset = source, HubDataset(source)
        self.splits = [source.split] if source.split else self.dataset.splits(source.config)

    def rows(self, split: str, counts: Counts) -> list[Row]:
        """Return the utterances of a split; rows without a transcript are counted.

        Raises:
            ValueError: If it has no column of sound, or none of text.
        """
        table = self.dataset.load(self.source.config, split)
        audio = self.dataset.library.Audio
        there = [name for name, kind in table.features.items() if isinstance(kind, audio)]
        text = next((name for name in TEXT if name in table.column_names), None)
        if not there or text is None:
            columns = ", ".join(table.column_names)
            raise ValueError(f"{self.source} has no column of sound, or none of text "
                             f"({', '.join(TEXT)}); it has {columns}")  # fmt: skip
        table = table.cast_column(there[0], audio(decode=False))
        known = {name: self._column(table, names) for name, names in (("id", ID), ("who", SPEAKER))}

        def row(numbered: tuple[int, Any]) -> Row:
            number, said = numbered
            if not isinstance(said, str):
                raise BadRecord("no text")
            id = known["id"][number] if known["id"] else f"{split}-{number}"
            speaker = known["who"][number] if known["who"] else ""
            return Row(str(id), HubRecording(table, there[0], number), said, str(speaker))

        where = f"{self.source} ({split}), row"
        return list(read_each(enumerate(table[text]), row, counts, where, first=0))

    def _column(self, table: Any, names: tuple[str, ...]) -> list[Any] | None:
        found = next((name for name in names if name in table.column_names), None)
        return None if found is None else list(table[found])
