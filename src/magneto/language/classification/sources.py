"""Where labelled texts come from: PATH, hf:NAME or builtin:NAME, and which part is held out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magneto.data.sources import import_datasets, loading, source_files
from magneto.data.splits import held_out
from magneto.language.classification.config import check_builtin
from magneto.language.classification.files import (
    ENDINGS,
    UNKNOWN,
    Row,
    RowCounts,
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
    """

    columns: Columns
    number: bool
    counts: RowCounts
    glue: bool = False
    labels: Sequence[str] = ()

    def read(self, source: str) -> LabelledText:
        """Read one file, one split of the hub, or a built-in set as a whole."""
        if source.startswith("builtin:"):
            check_builtin(source)
            rows = checked(((s.text, None, s.label) for s in word_order()), False, self.counts)
            return LabelledText(list(rows))
        if source.startswith("hf:"):
            return self._read_hub(source)
        unknown = self._unknown(UNKNOWN if self.glue else UNKNOWN[:1])
        rows = read_file(_file(source), self.columns, self.number, self.counts, unknown)
        return LabelledText(list(rows))

    def _unknown(self, words: Sequence[str]) -> list[str]:
        return [word for word in words if word not in self.labels]

    def _read_hub(self, source: str) -> LabelledText:
        table = _hub_table(source)
        names = pick_columns(table.column_names, self.columns, source)
        classes = getattr(table.features[names[2]], "names", None)

        def records() -> Iterator[tuple[Any, Any, Any]]:
            for row in table:
                label = row[names[2]]
                if classes and isinstance(label, int):
                    label = classes[label] if label >= 0 else None
                yield row[names[0]], row[names[1]] if names[1] else None, label

        rows = list(checked(records(), self.number, self.counts, self._unknown(UNKNOWN)))
        return LabelledText(rows, tuple(classes) if classes else None)


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
    if source.startswith("builtin:"):
        check_builtin(source)
        return source, {}
    if source.startswith("hf:"):
        path, config, split = [*source.removeprefix("hf:").split(":"), "", ""][:3]
        if split:
            return source, {}
        with loading(source):
            known = import_datasets().get_dataset_split_names(path, config or None)
        there = {name: f"hf:{path}:{config}:{name}" for name in known}
    elif Path(source).expanduser().is_dir():
        there = {_stem(path): str(path) for path in _folder_files(source)}
    else:
        return str(_file(source)), {}
    train = pick(list(there), TRAIN)
    if train is None:
        raise ValueError(f"{source} has nothing named train (it has {', '.join(there)})")
    return there[train], validation_splits(there)


def find_validation(source: str) -> dict[str, str]:
    """Return the validation sources that a source names as one to validate on: all of a file."""
    if source.startswith("hf:") and source.count(":") < 3:
        return find_splits(source)[1] or {"": source}
    if not source.startswith(("hf:", "builtin:")) and Path(source).expanduser().is_dir():
        there = {_stem(path): str(path) for path in _folder_files(source)}
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


def _hub_table(source: str) -> Any:
    path, config, split = [*source.removeprefix("hf:").split(":"), "", ""][:3]
    with loading(source):
        return import_datasets().load_dataset(path, config or None, split=split or "train")


def _file(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.is_dir():
        source_files(source)  # says which file is nearest
    if path.is_dir() or not _is_readable(path):
        raise ValueError(f"{source} is no labelled text: a file ends in {', '.join(ENDINGS)} "
                         "(maybe with .gz)")  # fmt: skip
    return path


def _folder_files(source: str) -> list[Path]:
    files = sorted(p for p in Path(source).expanduser().iterdir() if _is_readable(p))
    if not files:
        raise ValueError(f"nothing to read in {source}: no file ends in {', '.join(ENDINGS)}")
    return files


def _is_readable(path: Path) -> bool:
    return path.is_file() and path.name.removesuffix(".gz").endswith(ENDINGS)


def _stem(path: Path) -> str:
    """Return a file's name without its endings; GLUE's own has a dot in it."""
    return Path(path.name.removesuffix(".gz")).stem
