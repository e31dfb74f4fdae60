"""Data of text classification: readers of labelled texts, GLUE, and tokenised inputs.

An input is `<s> text </s>`, or `<s> text </s></s> pair </s>` (arXiv 1907.11692).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from magneto.config import abbreviate
from magneto.data.documents import docstrings
from magneto.data.files import (
    decode_line,
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
from magneto.data.problems import (
    EMPTY,
    BadRecord,
    Counts,
    join_words,
    number_each,
    quantity,
    read_each,
)
from magneto.data.sources import SPLIT_NAMES, check_builtin, held_out, parse_source
from magneto.data.table import Classes, Table, by_split, divide, table_of_columns, table_of_records
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
# The label is missing or, in regression, not a number.
UNLABELLED = "rows left out because of a missing or invalid label"
# Unknown labels in GLUE's files and on the hub; other files leave the label empty.
UNKNOWN = ("", "-", "-1")
# IMDB's folder of unlabelled texts.
WITHOUT_LABELS = ("unsup",)
# Rows of the built-in set are held out by the hash of this column, because the hash of the text
# decides its label.
SPLIT_KEY = "split key"

Splits = Mapping[str, Sequence[str]]


class TextPair(NamedTuple):
    """A text, or a pair of texts."""

    text: str
    pair: str | None = None


@dataclass(frozen=True)
class LabelledTexts:
    """Training and validation rows of a data configuration.

    Attributes:
        train: Training rows with columns "text", "label" and, for pairs, "pair".
        validation: Validation rows by set. The name of the first set is "". The name of MNLI's
            second set is "mismatched".
        labels: Class names in the order of the class numbers; empty for regression.
        counts: Number of rows that were read, and number of rows that were left out.
    """

    train: Table
    validation: dict[str, Table]
    labels: tuple[str, ...]
    counts: Counts


def read_texts(config: ClassificationDataConfig) -> LabelledTexts:
    """Read the training and the validation rows.

    Raises:
        FileNotFoundError: If a source does not exist.
        ValueError: If a column is missing, a split is empty, or a label is unknown.
    """
    counts, source, other = Counts(), config.source, None
    if config.validation_source is not None:
        # GLUE's test rows have no labels.
        held = VALIDATION if config.glue in GLUE else VALIDATION | {"test": SPLIT_NAMES["test"]}
        other = read_tables(config.validation_source, held, config, counts)
    evaluation_only = config.validation_source == source
    if other is not None and evaluation_only:
        splits = other
    else:
        splits = read_tables(source, TRAIN if other else TRAIN | VALIDATION, config, counts)
        if "train" not in splits:
            raise ValueError(f"{source} has no training split named train, only "
                             f"{', '.join(splits)}")  # fmt: skip
        _check_count(source, "training rows", splits["train"], config, counts)
    known = splits.get("train") or next(iter(splits.values()))
    key = SPLIT_KEY if SPLIT_KEY in known.columns else "text"
    train, held = divide(splits, other, config.validation_fraction, key, counts)
    validation = {"": held}
    if mismatched := (other or splits).get("mismatched"):
        validation["mismatched"] = mismatched
    if evaluation_only:
        train = held
    first = {"rows": held} if evaluation_only else {"training rows": train, "validation rows": held}
    checked = first | {f"{name} rows": rows for name, rows in validation.items() if name}
    for name, rows in checked.items():
        _check_count(source, name, rows, config, counts)
    labels = () if config.regression else _classes(config, known, counts)
    for name, rows in checked.items() if labels else ():
        if others := {*rows.values("label")} - {*labels}:
            some = ", ".join(map(repr, sorted(others)[:3]))
            which = "first classes" if len(labels) > 10 else "classes"
            raise ValueError(f"{source}: unknown labels in the {name} ({some}). The {which} are "
                             f"{', '.join(labels[:10])}.")  # fmt: skip
    return LabelledTexts(train, validation, labels, counts)


def _check_count(
    source: str, name: str, rows: Table, config: ClassificationDataConfig, counts: Counts
) -> None:
    if len(rows) < 1 + config.regression:
        why = " (a correlation needs two or more)" if len(rows) else ""
        number = quantity(len(rows), name) if len(rows) else f"no {name}"
        raise ValueError(f"{source} has {number}{why}: {counts.describe(ROWS)}")


def _classes(config: ClassificationDataConfig, table: Table, counts: Counts) -> tuple[str, ...]:
    column = table.columns["label"]
    names = column.names if isinstance(column, Classes) else sorted({*table.values("label")})
    labels = config.labels or tuple(names)
    if len(labels) < 2:
        raise ValueError(f"{config.source} has only one class, {', '.join(labels)}: "
                         f"{counts.describe(ROWS)}")  # fmt: skip
    return labels


def read_tables(
    source: str, splits: Splits, config: ClassificationDataConfig, counts: Counts
) -> dict[str, Table]:
    """Return the labelled texts of a source by split; a single file is the split "train".

    `splits` maps each split to the names that the split may have in a folder or on the hub.
    """
    named, task = parse_source(source), GLUE.get(config.glue)
    if named.kind == "builtin":
        check_builtin(named, NAMES, "labelled text")
        records = list(word_order())
        counts[ROWS] += len(records)
        return {"train": table_of_records(records, source)}
    if named.kind == "hf":
        tables = read_hub(named, splits)
    elif files := table_files(existing_path(source), splits, task):
        tables = {split: read_table(path, task, counts) for split, path in files.items()}
        tables = by_split(tables["train"], counts) if {*tables} == {"train"} else tables
    else:
        tables = read_source(source, counts, "text", layout=text_folders)
        tables = {split: table for split, table in tables.items() if split in splits} or tables
    if "test" in splits and "validation" in tables:
        tables.pop("test", None)
    unknown = UNKNOWN if task or named.kind == "hf" else UNKNOWN[:1]
    return {split: labelled_rows(table, config, unknown, counts) for split, table in tables.items()}


def table_files(path: Path, splits: Splits, task: GlueTask | None) -> dict[str, Path]:
    endings = (*RECORDS, ".txt") if task else RECORDS
    if not path.is_dir():
        return {"train": path} if has_ending(path, endings) else {}
    found = find_files(path, endings, splits)
    if "validation" in found:
        found.pop("test", None)
    files = [file for file in sorted(path.iterdir()) if has_ending(file, endings)]
    if files and not found:
        wanted = " or ".join(next(iter(splits.values())))
        names = ", ".join(Path(unpacked_name(file)).stem.lower() for file in files)
        raise ValueError(f"{path} has no file named {wanted}, only {names}")
    return found


def text_folders(folder: Path, counts: Counts) -> dict[str, Table]:
    """Return the texts of .txt files by split. The file train/good/1.txt has the label "good"."""

    def words_of(table: Table) -> Table:
        def read(number: int) -> dict[str, Any]:
            medium = table.columns["text"][number]
            text = decode_line(medium.read(), counts, Path(medium.name), 1)
            label = table.columns["label"][number]
            return {"text": text, "label": None if label in WITHOUT_LABELS else label}

        return table_of_records(
            list(read_each(table.rows, read, counts, f"{folder}, text")), table.where
        )

    inside = chain(folder.glob("*/*"), folder.glob("*/*/*"))
    if not any(has_ending(path, (".txt",)) for path in inside):
        return {}
    return {split: words_of(table) for split, table in read_folders(folder, "text", counts).items()}


def read_table(path: Path, task: GlueTask | None, counts: Counts) -> Table:
    benchmark = bool(task and task.regression and re.match(r"sts-.*\.csv", path.name))
    if task is None or not (benchmark or has_ending(path, (".tsv", ".txt"))):
        return read_file(path, counts)
    rows = list(read_tabs(path, counts))
    first = rows[0] if rows else []
    names, places = first, tuple(range(len(first)))
    if task.column_indices and not {*task.text} & {*first}:
        names = [task.text[0], *task.pair[:1], task.label[0]]
        # Tabs separate genre, file, year, number, score and two sentences in sts-train.csv.
        places = (5, 6, 4) if benchmark else task.column_indices
    start = int(names is first)

    def read(cells: list[str]) -> list[str] | None:
        if not any(cells):
            return None
        if len(cells) <= max(places):
            raise BadRecord(f"{len(cells)} cells, fewer than {max(places) + 1}")
        return [cells[place] for place in places]

    found = list(number_each(rows[start:], read, counts, f"{path}, row", count(1 + start)))
    columns = {name: [cells[n] for _, cells in found] for n, name in enumerate(names)}
    table = table_of_columns(columns, str(path), path.parent, "\t")
    return replace(table, numbers=[number for number, _ in found], unit="row")


def find_columns(table: Table, config: ClassificationDataConfig, *wanted: str) -> list[str | None]:
    """Return the column of each role in `wanted`, such as "text", "pair" or "label".

    If the data have no pairs, the column of "pair" is None.
    """
    found: list[str | None] = []
    for what in wanted:
        if task := GLUE.get(config.glue):
            names = getattr(task, what)
            name = next((name for name in names if name in table.columns), None)
            if names and name is None:
                columns = join_words([abbreviate(name) for name in table.columns]) or "none"
                raise ValueError(f"data.glue {config.glue} needs a column {names[0]!r}. The "
                                 f"columns of {table.where} are {columns}.")  # fmt: skip
        elif what == "pair":
            name = table.find(what, config.pair_column or "")
        else:
            free = [name for name in table.columns if name != config.pair_column]
            name = table.find(what, getattr(config, f"{what}_column"), free)
            if name is None:
                raise table.no_column(what, *(w for w in wanted if w not in (what, "pair")))
        found.append(name)
    return found


def rows_of(table: Table, names: Sequence[str | None]) -> Iterator[list[Any]]:
    columns = [[None] * len(table) if name is None else table.values(name) for name in names]
    return map(list, zip(*columns, strict=True))


def labelled_rows(
    table: Table, config: ClassificationDataConfig, unknown: Sequence[str], counts: Counts
) -> Table:
    """Return usable rows with the columns "text", "label" and, for pairs, "pair".

    A label in `unknown` counts as missing, unless `config.labels` contains it.
    """
    unknown = [word for word in unknown if word not in (config.labels or ())]

    def read(values: list[Any]) -> tuple[TextPair, str] | None:
        text, second, label = values
        pair = as_pair(text, second, config.paired)
        word, end = "" if label is None else str(label), config.label_delimiter
        word = (word.partition(end)[0] if end else word).strip()
        if is_empty(pair):
            counts[EMPTY] += 1
        elif not is_finite(word) if config.regression else word in unknown:
            counts[UNLABELLED] += 1
        else:
            counts[ROWS] += 1
            return pair, word
        return None

    names = find_columns(table, config, "text", "pair", "label")
    if names[-1] == "gold_label":  # SNLI's annotators may not agree
        unknown = [*unknown, "-"]
    table.check_one_class(names[-1] or "")
    kept = list(table.read_each(rows_of(table, names), read, counts))
    columns: dict[str, Any] = {"text": [pair.text for pair, _ in kept]}
    if config.paired:
        columns["pair"] = [pair.pair for pair, _ in kept]
    columns["label"] = [word for _, word in kept]
    known = table.columns[names[-1] or ""]
    if isinstance(known, Classes) and not config.label_delimiter:  # keep the order of the classes
        classes = [name.strip() for name in known.names]
        numbers = np.array([classes.index(name) for name in columns["label"]], np.int64)
        columns["label"] = Classes(numbers, classes)
    return table_of_columns(columns, table.where)


def as_pair(text: Any, pair: Any, paired: bool) -> TextPair:
    if not isinstance(text, str) or (paired and not isinstance(pair, str)):
        raise BadRecord("no text")
    return TextPair(text, pair if paired else None)


def is_empty(row: TextPair) -> bool:
    """Whether any text of the row has no visible character."""
    return not row.text.strip() or (row.pair is not None and not row.pair.strip())


def is_finite(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def pairs_of(table: Table) -> list[TextPair]:
    texts = table.values("text")
    pairs = table.values("pair") if "pair" in table.columns else [None] * len(table)
    return list(map(TextPair, texts, pairs))


def read_unlabelled(
    path: Path, config: ClassificationDataConfig, counts: Counts
) -> Iterator[TextPair]:
    """Yield the texts of a file without labels.

    The file is a table (.csv, .tsv, .jsonl or .json), or has one text per line. Empty texts are
    included, so that the n-th text belongs to the n-th line.
    """
    if not has_ending(path, RECORDS):
        yield from line_pairs(read_lines(path, counts), config.paired)
        return
    table = read_table(path, GLUE.get(config.glue), counts)

    def read(values: list[Any]) -> TextPair:
        text, pair = values
        return as_pair(text, pair, config.paired)

    rows = rows_of(table, find_columns(table, config, "text", "pair"))
    yield from table.read_each(rows, read, counts)


def line_pairs(lines: Iterable[str], paired: bool) -> Iterator[TextPair]:
    """Yield the text, or the tab-separated pair of texts, of each line."""
    for line in lines:
        text, _, pair = line.strip("\r\n").partition("\t" if paired else "\n")
        yield TextPair(text, pair if paired else None)


# Shortest and longest sentence of the built-in set, in words.
LEAST, MOST = 6, 20


def word_order() -> Iterator[dict[str, str]]:
    """Yield lower-case sentences, about half of them with shuffled words."""
    sentences: dict[str, None] = {}
    for document in docstrings():
        for sentence in re.split(r"(?<=[.!?;:])\s+|\n+", document):
            words = re.findall(r"[a-z0-9_'()-]+", sentence.lower())
            if LEAST <= len(words) <= MOST and len(set(words)) > LEAST // 2:
                sentences[" ".join(words)] = None
    for sentence in sentences:
        text, label = sentence, "as-written"
        if not held_out(sentence, 0.5):
            random, label = np.random.default_rng(list(sentence.encode())), "shuffled"
            while text == sentence:
                text = " ".join(random.permutation(sentence.split()))
        yield {"text": text, "label": label, SPLIT_KEY: f"validation:{text}"}


# Texts tokenised at a time.
BATCH = 1024


@dataclass(frozen=True)
class EncodedTexts:
    """Tokenised inputs.

    Attributes:
        tokens: Tokens of each input.
        second: Position of the second text in each input; the input's length if there is one text.
        truncated: Whether each input is truncated.
    """

    tokens: list[np.ndarray]
    second: np.ndarray
    truncated: list[bool]

    @property
    def lengths(self) -> np.ndarray:
        """Length of each input in tokens."""
        return np.array([len(row) for row in self.tokens])

    def batch(self, numbers: Sequence[int] | np.ndarray, pad: int) -> dict[str, Tensor]:
        """Return "tokens", "mask" and "token_types" of padded inputs, each (batch, length).

        Args:
            numbers: Indices of the inputs, (batch,).
            pad: Id of the padding token.
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
) -> EncodedTexts:
    tokens, second, truncated = [], [], []
    for start in range(0, len(rows), BATCH):
        piece = rows[start : start + BATCH]
        first = tokenizer.encode([row.text for row in piece])
        others = iter(tokenizer.encode([row.pair for row in piece if row.pair is not None]))
        for row, text in zip(piece, first, strict=True):
            pair = None if row.pair is None else next(others)
            input_tokens, begin, shortened = build_input(text, pair, tokenizer, config)
            tokens.append(np.array(input_tokens, np.int32))
            second.append(begin)
            truncated.append(shortened)
        progress.update("tokenising rows", start + len(piece), len(rows))
    return EncodedTexts(tokens, np.array(second), truncated)


def build_input(
    text: list[int], pair: list[int] | None, tokenizer: Tokenizer, config: ClassificationDataConfig
) -> tuple[list[int], int, bool]:
    """Return the tokens, the position of the second text, and whether text is truncated."""
    end = [tokenizer.end]
    if pair is None:
        available = config.input_length - 2
        tokens = [tokenizer.begin, *text[:available], *end]
        return tokens, len(tokens), len(text) > available
    between = end * (2 if config.separator == "double" else 1)
    available = config.input_length - 2 - len(between)
    truncated = len(text) + len(pair) > available
    if truncated:
        text = text[: max(available // 2, available - len(pair))]
        pair = pair[: available - len(text)]
    tokens = [tokenizer.begin, *text, *between]
    return [*tokens, *pair, *end], len(tokens), truncated


def label_values(table: Table, labels: tuple[str, ...]) -> np.ndarray:
    """Return class numbers (int64), or for regression the numeric labels (float32)."""
    if not labels:
        return np.array([float(label) for label in table.values("label")], np.float32)
    numbers = {label: number for number, label in enumerate(labels)}
    return np.array([numbers[label] for label in table.values("label")], np.int64)
