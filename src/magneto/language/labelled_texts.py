"""Labelled texts from wherever they lie, and as numbers, ready for an encoder.

Tables by split, columns by their usual names, GLUE. An input is `<s> text </s>`, or
`<s> text </s></s> pair </s>` (arXiv 1907.11692).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from magneto.config import shown
from magneto.data.documents import docstrings
from magneto.data.files import (
    decoded,
    existing_path,
    has_ending,
    read_lines,
    read_tabs,
    unpacked_name,
)
from magneto.data.formats import (
    RECORDS,
    find_files,
    read_file,
    read_folders,
    read_hub,
    read_source,
)
from magneto.data.problems import EMPTY, BadRecord, Counts, counted, listed, read_each
from magneto.data.sources import check_builtin, held_out, parse_source
from magneto.data.table import Classes, Table, by_split, divide, table_of, whole_table
from magneto.data.tokenizer import Tokenizer
from magneto.language.config import (
    GLUE,
    NAMES,
    TRAIN,
    VALIDATION,
    ClassificationDataConfig,
    GlueTask,
)
from magneto.progress import Progress

ROWS = "rows"
UNLABELLED = "rows without a label left out"  # or with one that is no number, where one is asked
# What GLUE's files and the hub write where a label is not known; other files leave it empty.
UNKNOWN = ("", "-", "-1")
# A folder of texts that have no label, in IMDB's.
WITHOUT_LABELS = ("unsup",)
# Column of the built-in set by which rows are held out: its labels are drawn by the text's hash.
HELD_BY = "held by"

Splits = Mapping[str, Sequence[str]]


class TextPair(NamedTuple):
    """A text, and the one to compare it with where there is one."""

    text: str
    pair: str | None = None


@dataclass(frozen=True)
class Texts:
    """What a configuration names, read.

    Attributes:
        train: Training rows: "text", "label" and, of pairs, "pair".
        validation: Validation rows by name: "", and "mismatched" for MNLI.
        labels: Classes in the order of their numbers; empty for numbers.
        counts: What was met while reading.
    """

    train: Table
    validation: dict[str, Table]
    labels: tuple[str, ...]
    counts: Counts


def read_texts(config: ClassificationDataConfig) -> Texts:
    """Read the training and the validation rows.

    Raises:
        FileNotFoundError: If there is no such path.
        ValueError: If columns are missing, a split is empty, or a validation label is not one of
            the training set's.
    """
    counts, source, other = Counts(), config.source, None
    if config.validation_source is not None:
        other = read_tables(config.validation_source, VALIDATION, config, counts)
    measured = config.validation_source == source  # no training: read once
    if other is not None and measured:
        there = other
    else:
        there = read_tables(source, TRAIN if other else TRAIN | VALIDATION, config, counts)
        if "train" not in there:
            raise ValueError(f"{source} has nothing named train (it has {', '.join(there)})")
        _check_count(source, "training rows", there["train"], config, counts)
    known = there.get("train") or next(iter(there.values()))
    key = HELD_BY if HELD_BY in known.columns else "text"
    train, held = divide(there, other, config.validation_fraction, key, counts)
    validation = {"": held}
    if mismatched := (other or there).get("mismatched"):
        validation["mismatched"] = mismatched
    splits = {f"{name or 'validation'} rows": rows for name, rows in validation.items()}
    splits = {"rows": train} if measured else {"training rows": train, **splits}
    for name, rows in splits.items():
        _check_count(source, name, rows, config, counts)
    labels = () if config.number else _classes(config, known, counts)
    for name, rows in splits.items() if labels else ():
        if others := {*rows.values("label")} - {*labels}:
            some = ", ".join(map(repr, sorted(others)[:3]))
            raise ValueError(f"{source}: the {name} have labels ({some}) that are not "
                             f"among {', '.join(labels[:10])}")  # fmt: skip
    return Texts(train, validation, labels, counts)


def _check_count(
    source: str, name: str, rows: Table, config: ClassificationDataConfig, counts: Counts
) -> None:
    if len(rows) < 1 + config.number:
        why = " (a correlation is of two or more)" if len(rows) else ""
        there = counted(len(rows), name) if len(rows) else f"no {name}"
        raise ValueError(f"{source} has {there}{why}: "
                         f"{counts.describe(ROWS)}")  # fmt: skip


def _classes(config: ClassificationDataConfig, table: Table, counts: Counts) -> tuple[str, ...]:
    column = table.columns["label"]
    named = column.names if isinstance(column, Classes) else sorted({*table.values("label")})
    found = config.labels or tuple(named)
    if len(found) < 2:
        raise ValueError(f"{config.source} has one label only: {', '.join(found)}; "
                         f"{counts.describe(ROWS)}")  # fmt: skip
    return found


def read_tables(
    source: str, splits: Splits, config: ClassificationDataConfig, counts: Counts
) -> dict[str, Table]:
    """Return the labelled texts of a source by split; a file is "train".

    Args:
        source: As `ClassificationDataConfig.source`.
        splits: Names of those that are read, of files and on the hub.
        config: Says what columns are called.
        counts: Told of rows, and of what is left out.

    Raises:
        FileNotFoundError: If there is no such path.
        ValueError: If a folder has no such split, or a table no such column.
    """
    named, task = parse_source(source), GLUE.get(config.glue)
    if named.kind == "builtin":
        check_builtin(named, NAMES, "labelled text")
        records = list(word_order())
        counts[ROWS] += len(records)
        return {"train": table_of(records, source)}
    if named.kind == "hf":
        there = read_hub(named, splits)
    elif files := table_files(existing_path(source), splits, task):
        there = {split: read_table(path, task, counts) for split, path in files.items()}
        there = by_split(there["train"], counts) if {*there} == {"train"} else there
    else:
        there = read_source(source, counts, "text", layout=text_folders)
        there = {split: table for split, table in there.items() if split in splits} or there
    unknown = UNKNOWN if task or named.kind == "hf" else UNKNOWN[:1]
    return {split: labelled(table, config, unknown, counts) for split, table in there.items()}


def table_files(path: Path, splits: Splits, task: GlueTask | None) -> dict[str, Path]:
    """Return the files of splits in a folder, or a file as "train"; none if there are no tables.

    Raises:
        ValueError: If there are tables, but none of a split.
    """
    endings = (*RECORDS, ".txt") if task else RECORDS
    if not path.is_dir():
        return {"train": path} if has_ending(path, endings) else {}
    found = find_files(path, endings, splits)
    files = [file for file in sorted(path.iterdir()) if has_ending(file, endings)]
    if files and not found:
        wanted = ", ".join(next(iter(splits.values())))
        names = ", ".join(Path(unpacked_name(file)).stem.lower() for file in files)
        raise ValueError(f"{path} has nothing named {wanted} (it has {names})")
    return found


def text_folders(folder: Path, counts: Counts) -> dict[str, Table]:
    """Return files of text, each labelled by the folder that it lies in; none without such folders.

    They lie in folders of classes, maybe in folders of splits: train/good/1.txt.
    """

    def words_of(table: Table) -> Table:
        def read(number: int) -> dict[str, Any]:
            medium = table.columns["text"][number]
            text = decoded(medium.read(), counts, Path(medium.name), 1)
            label = table.columns["label"][number]
            return {"text": text, "label": None if label in WITHOUT_LABELS else label}

        return table_of(list(read_each(table.rows, read, counts, f"{folder}, text")), table.where)

    inside = chain(folder.glob("*/*"), folder.glob("*/*/*"))
    if not any(has_ending(path, (".txt",)) for path in inside):
        return {}
    return {split: words_of(table) for split, table in read_folders(folder, "text", counts).items()}


def read_table(path: Path, task: GlueTask | None, counts: Counts) -> Table:
    """Return the records of a file; those of GLUE may lack a header, or have cells behind it."""
    if task is None or not unpacked_name(path).endswith((".tsv", ".txt")):
        return read_file(path, counts)
    rows = list(read_tabs(path, counts))
    first = rows[0] if rows else []
    names, places = first, tuple(range(len(first)))
    if task.places and not {*task.text} & {*first}:
        names = [task.text[0], *task.pair[:1], task.label[0]]
        places = task.places
    start = int(names is first)

    def read(cells: list[str]) -> list[str] | None:
        if not any(cells):
            return None
        if len(cells) <= max(places):
            raise BadRecord(f"{len(cells)} cells, not {max(places) + 1}")
        return [cells[place] for place in places]

    found = list(read_each(rows[start:], read, counts, f"{path}, row", first=1 + start))
    columns = {name: [cells[n] for cells in found] for n, name in enumerate(names)}
    return whole_table(columns, str(path), path.parent, "\t")


def find_columns(table: Table, config: ClassificationDataConfig, *wanted: str) -> list[str | None]:
    """Return the columns that have the text, the pair or the label; None for no pair.

    Raises:
        ValueError: If one is not there; says which are.
    """
    found: list[str | None] = []
    for what in wanted:
        if task := GLUE.get(config.glue):
            names = getattr(task, what)
            name = next((name for name in names if name in table.columns), None)
            if names and name is None:
                there = listed([shown(name) for name in table.columns]) or "none"
                raise ValueError(f"{table.where} has no column {names[0]!r} of data.glue "
                                 f"{config.glue} (it has {there})")  # fmt: skip
        elif what == "pair":
            name = table.find(what, config.pair_column or "")
        else:
            free = [name for name in table.columns if name != config.pair_column]
            name = table.find(what, getattr(config, f"{what}_column"), free)
            if name is None:
                raise table.no_column(what, *(w for w in wanted if w not in (what, "pair")))
        found.append(name)
    return found


def text_values(table: Table, config: ClassificationDataConfig, *more: str) -> Iterator[list[Any]]:
    """Yield text, pair (None if there is none) and what else is wanted of each row."""
    names = find_columns(table, config, "text", "pair", *more)
    columns = [[None] * len(table) if name is None else table.values(name) for name in names]
    return map(list, zip(*columns, strict=True))


def labelled(
    table: Table, config: ClassificationDataConfig, unknown: Sequence[str], counts: Counts
) -> Table:
    """Return the rows that have texts and a label, as "text", "label" and, of pairs, "pair".

    Args:
        table: With columns as their source names them.
        config: Says which has what.
        unknown: Words that stand for a label that is not known, unless they are labels.
        counts: Told of what is kept and of what is left out.
    """
    unknown = [word for word in unknown if word not in (config.labels or ())]

    def read(values: list[Any]) -> tuple[TextPair, str] | None:
        text, second, label = values
        pair = as_pair(text, second, config.paired)
        word = "" if label is None else str(label).strip()
        if is_empty(pair):
            counts[EMPTY] += 1
        elif not is_finite(word) if config.number else word in unknown:
            counts[UNLABELLED] += 1
        else:
            counts[ROWS] += 1
            return pair, word.partition(config.label_until)[0] if config.label_until else word
        return None

    rows = text_values(table, config, "label")
    found = list(read_each(rows, read, counts, f"{table.where}, record"))
    columns: dict[str, Any] = {"text": [pair.text for pair, _ in found]}
    if config.paired:
        columns["pair"] = [pair.pair for pair, _ in found]
    columns["label"] = [word for _, word in found]
    [label] = find_columns(table, config, "label")
    known = table.columns[label or ""]
    if isinstance(known, Classes) and not config.label_until:  # classes in the set's own order
        names = [name.strip() for name in known.names]
        numbers = np.array([names.index(name) for name in columns["label"]], np.int64)
        columns["label"] = Classes(numbers, names)
    return whole_table(columns, table.where)


def as_pair(text: Any, pair: Any, paired: bool) -> TextPair:
    """Return a record's texts; raise BadRecord unless there is one, or two of a pair."""
    if not isinstance(text, str) or (paired and not isinstance(pair, str)):
        raise BadRecord("no text")
    return TextPair(text, pair if paired else None)


def is_empty(row: TextPair) -> bool:
    """Return whether there is nothing to read in a text, or in one of two."""
    return not row.text.strip() or (row.pair is not None and not row.pair.strip())


def is_finite(word: str) -> bool:
    """Return whether a word is a finite number."""
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def pairs_of(table: Table) -> list[TextPair]:
    """Return the texts of labelled rows."""
    texts = table.values("text")
    pairs = table.values("pair") if "pair" in table.columns else [None] * len(table)
    return list(map(TextPair, texts, pairs))


def read_unlabelled(
    path: Path, config: ClassificationDataConfig, counts: Counts
) -> Iterator[TextPair]:
    """Yield the texts of a file, empty ones too, so that lines stay lines; labels are not read.

    Args:
        path: A table (.csv, .tsv, .jsonl or .json), or anything else with a text per line; maybe
            packed.
        config: Says which columns have text and pair.
        counts: Filled while reading.

    Raises:
        ValueError: If the file has no such column; names those it has.
    """
    if not has_ending(path, RECORDS):
        yield from line_pairs(read_lines(path, counts), config.paired)
        return
    table = read_table(path, GLUE.get(config.glue), counts)

    def read(values: list[Any]) -> TextPair:
        text, pair = values
        return as_pair(text, pair, config.paired)

    yield from read_each(text_values(table, config), read, counts, f"{table.where}, record")


def line_pairs(lines: Iterable[str], paired: bool) -> Iterator[TextPair]:
    """Yield a text per line; a tab is between the two of a pair."""
    for line in lines:
        text, _, pair = line.strip("\r\n").partition("\t" if paired else "\n")
        yield TextPair(text, pair if paired else None)


# Of built-in sentences, in words: shorter ones say too little, longer ones too much.
LEAST, MOST = 6, 20


def word_order() -> Iterator[dict[str, str]]:
    """Yield sentences, each once, half of them shuffled: no case or stop tells which."""
    found: dict[str, None] = {}
    for document in docstrings():
        for sentence in re.split(r"(?<=[.!?;:])\s+|\n+", document):
            words = re.findall(r"[a-z0-9_'()-]+", sentence.lower())
            if LEAST <= len(words) <= MOST and len(set(words)) > LEAST // 2:
                found[" ".join(words)] = None
    for sentence in found:
        text, label = sentence, "as-written"
        if not held_out(sentence, 0.5):
            random, label = np.random.default_rng(list(sentence.encode())), "shuffled"
            while text == sentence:
                text = " ".join(random.permutation(sentence.split()))
        yield {"text": text, "label": label, HELD_BY: f"validation:{text}"}


# Texts tokenised at a time.
BATCH = 1024


@dataclass(frozen=True)
class Inputs:
    """Texts as numbers.

    Attributes:
        tokens: Of each input.
        second: Where the second text begins in each; the length if there is none.
        cut: Whether each is shorter than its texts.
    """

    tokens: list[np.ndarray]
    second: np.ndarray
    cut: list[bool]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each input."""
        return np.array([len(row) for row in self.tokens])

    def batch(self, numbers: Sequence[int] | np.ndarray, pad: int) -> dict[str, Tensor]:
        """Return numbered inputs, padded: tokens, mask, token_types, all (batch, length).

        Args:
            numbers: Of the inputs, (batch,).
            pad: The token that fills up.
        """
        rows = [self.tokens[number] for number in numbers]
        lengths = np.array([len(row) for row in rows])
        place = np.arange(lengths.max())[None]
        mask = place < lengths[:, None]
        tokens = np.full(mask.shape, pad, np.int64)
        tokens[mask] = np.concatenate(rows)
        types = (place >= self.second[numbers][:, None]) & mask
        return {
            "tokens": torch.from_numpy(tokens),
            "mask": torch.from_numpy(mask),
            "token_types": torch.from_numpy(types.astype(np.int64)),
        }


def encode(
    rows: Sequence[TextPair],
    tokenizer: Tokenizer,
    config: ClassificationDataConfig,
    progress: Progress,
) -> Inputs:
    """Turn texts into numbers."""
    tokens, second, cut = [], [], []
    for start in range(0, len(rows), BATCH):
        piece = rows[start : start + BATCH]
        first = tokenizer.encode([row.text for row in piece])
        others = iter(tokenizer.encode([row.pair for row in piece if row.pair is not None]))
        for row, text in zip(piece, first, strict=True):
            pair = None if row.pair is None else next(others)
            made, begin, short = assemble(text, pair, tokenizer, config)
            tokens.append(np.array(made, np.int32))
            second.append(begin)
            cut.append(short)
        progress.update("tokenising rows", start + len(piece), len(rows))
    return Inputs(tokens, np.array(second), cut)


def assemble(
    text: list[int], pair: list[int] | None, tokenizer: Tokenizer, config: ClassificationDataConfig
) -> tuple[list[int], int, bool]:
    """Return an input's tokens, where its second text begins, and whether it was cut."""
    end = [tokenizer.end]
    if pair is None:
        room = config.max_length - 2
        made = [tokenizer.begin, *text[:room], *end]
        return made, len(made), len(text) > room
    between = end * (2 if config.separator == "double" else 1)
    room = config.max_length - 2 - len(between)
    cut = len(text) + len(pair) > room
    if cut:
        half = room // 2
        keep = max(half, room - len(pair))
        text = text[:keep]
        pair = pair[: room - len(text)]
    made = [tokenizer.begin, *text, *between]
    return [*made, *pair, *end], len(made), cut


def label_values(table: Table, labels: tuple[str, ...]) -> np.ndarray:
    """Return class numbers (int64), or the labels as numbers (float32) if there are no classes."""
    if not labels:
        return np.array([float(label) for label in table.values("label")], np.float32)
    numbers = {label: number for number, label in enumerate(labels)}
    return np.array([numbers[label] for label in table.values("label")], np.int64)
