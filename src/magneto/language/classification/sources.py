"""Where labelled texts come from: PATH, hf:NAME or builtin:NAME, and which part is held out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from magneto.data.counts import Counts
from magneto.data.files import existing_path, has_ending, unpacked_name
from magneto.data.sources import HubDataset, Source, check_builtin, parse_source
from magneto.data.splits import held_out
from magneto.language.classification.config import NAMES
from magneto.language.classification.files import (
    ENDINGS,
    UNKNOWN,
    Row,
    checked,
    pick,
    pick_columns,
    read_file,
)
from magneto.language.classification.glue import MISMATCHED, TRAIN, VALIDATION, Columns
from magneto.language.classification.word_order import word_order


@dataclass(frozen=True)
class LabelledText:
    """Rows of one split.

    Attributes:
        rows: In the order of their source.
        names: Labels in the order of their numbers, where the source has one.
    """

    rows: list[Row]
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Reader:
    """How rows are read.

    Attributes:
        columns: Where text, pair and label are.
        number: Whether labels must be numbers.
        counts: Filled while reading.
        glue: Whether files are GLUE's, where "-" and "-1" are no labels; as on the hub.
        labels: Classes that are known to be labels.
        until: What ends a label, as `label_until`.
    """

    columns: Columns
    number: bool
    counts: Counts
    glue: bool = False
    labels: Sequence[str] = ()
    until: str | None = None

    def read(self, source: str) -> LabelledText:
        """Read one file, one split of the hub, or a built-in set as a whole."""
        found = parse_source(source)
        if found.kind == "builtin":
            check_builtin(found, NAMES, "labelled text")
            rows = checked(((s.text, None, s.label) for s in word_order()), False, self.counts)
            return LabelledText(list(rows))
        if found.kind == "hf":
            return self._read_hub(found)
        unknown = self._unknown(UNKNOWN if self.glue else UNKNOWN[:1])
        rows = read_file(_file(source), self.columns, self.number, self.counts, unknown)
        return LabelledText(self._shortened(rows))

    def _shortened(self, rows: Iterable[Row]) -> list[Row]:
        """Cut labels at the mark that ends them."""
        if not self.until:
            return list(rows)
        return [replace(row, label=row.label.partition(self.until)[0]) for row in rows]

    def _unknown(self, words: Sequence[str]) -> list[str]:
        return [word for word in words if word not in self.labels]

    def _read_hub(self, source: Source) -> LabelledText:
        table = HubDataset(source).load(source.config, source.split or "train")
        names = pick_columns(table.column_names, self.columns, str(source))
        classes = getattr(table.features[names[2]], "names", None)

        def records() -> Iterator[tuple[Any, Any, Any]]:
            for row in table:
                label = row[names[2]]
                if classes and isinstance(label, int):
                    label = classes[label] if label >= 0 else None
                yield row[names[0]], row[names[1]] if names[1] else None, label

        unknown = self._unknown(UNKNOWN)
        rows = checked(records(), self.number, self.counts, unknown, str(source))
        return LabelledText(
            self._shortened(rows), tuple(classes) if classes and not self.until else None
        )


def find_splits(source: str) -> tuple[str, dict[str, str]]:
    """Return the training source and the validation sources that a source names.

    A file is a training set alone. A folder has GLUE's file names, or plain train and dev (or
    validation, val). A set of the hub (hf:NAME[:CONFIG[:SPLIT]]) has splits, unless one is named.

    Returns:
        Training source, and validation sources by name: "" and, for MNLI, "mismatched". No
        validation source means that rows are to be held out.

    Raises:
        FileNotFoundError: If there is no such path.
        ValueError: If a folder has no training file, or a set no training split.
    """
    found = parse_source(source)
    if found.kind == "builtin":
        check_builtin(found, NAMES, "labelled text")
        return source, {}
    if found.kind == "hf":
        if found.split:
            return source, {}
        names = HubDataset(found).splits(found.config)
        there = {name: f"hf:{found.name}:{found.config}:{name}" for name in names}
    elif existing_path(source).is_dir():
        there = _folder_splits(source)
    else:
        return str(_file(source)), {}
    train = pick(list(there), TRAIN)
    if train is None:
        raise ValueError(f"{source} has nothing named train (it has {', '.join(there)})")
    return there[train], validation_splits(there)


def find_validation(source: str) -> dict[str, str]:
    """Return the validation sources that a source names as one to validate on: all of a file."""
    named = parse_source(source)
    if named.kind == "hf" and not named.split:
        return find_splits(source)[1] or {"": source}
    if named.kind == "path" and existing_path(source).is_dir():
        there = _folder_splits(source)
        if found := validation_splits(there):
            return found
        raise ValueError(f"{source} has nothing named dev, val or validation "
                         f"(it has {', '.join(there)})")  # fmt: skip
    return {"": source}


def validation_splits(there: Mapping[str, str]) -> dict[str, str]:
    """Pick validation splits by name."""
    wanted = {"": pick(list(there), VALIDATION), "mismatched": pick(list(there), MISMATCHED)}
    return {name: there[found] for name, found in wanted.items() if found is not None}


def hold_out(rows: Sequence[Row], fraction: float) -> tuple[list[Row], list[Row]]:
    """Split rows in training and validation by a hash of their first text alone."""
    parts: tuple[list[Row], list[Row]] = ([], [])
    for row in rows:  # the prefix: a built-in set's labels are drawn by the hash without it
        parts[held_out("validation:" + row.text, fraction)].append(row)
    return parts


def _file(source: str) -> Path:
    path = existing_path(source)
    if not has_ending(path, ENDINGS):
        raise ValueError(f"{source} is no labelled text: a file ends in {', '.join(ENDINGS)} "
                         "(maybe with .gz or .xz)")  # fmt: skip
    return path


def _folder_splits(source: str) -> dict[str, str]:
    """Return a folder's files by their names without endings (GLUE's own have a dot in them)."""
    files = sorted(path for path in existing_path(source).iterdir() if has_ending(path, ENDINGS))
    if not files:
        raise ValueError(f"nothing to read in {source}: no file ends in {', '.join(ENDINGS)}")
    return {Path(unpacked_name(path)).stem: str(path) for path in files}
