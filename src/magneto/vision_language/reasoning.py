"""Visual reasoning: classification of a statement about two images as true or false.

Statements come from a table, from NLVR2's files (arXiv 1811.00491), or from the built-in scenes.
NLVR2 has a .json file for each split, with one JSON object per line. A statement has the identifier
SPLIT-SET-PAIR-SENTENCE and the label "True" or "False". The left image is SPLIT-SET-PAIR-img0.png,
and the right image is SPLIT-SET-PAIR-img1.png.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.files import existing_path, has_ending, unpacked_name, walk_files
from magneto.data.formats import read_file
from magneto.data.media import Files, MediaColumn
from magneto.data.problems import EMPTY, BadRecord, Counts, DataProblems
from magneto.data.sources import parse_source, standard_splits
from magneto.data.table import Table
from magneto.files import import_extra
from magneto.functional.cross_entropy import count_numbers, frequency_sums
from magneto.progress import SILENT, Progress
from magneto.training.task import Figure
from magneto.vision.images import ImageSplits
from magneto.vision_language.config import IMAGES, StatementDataConfig, VisualReasonerConfig
from magneto.vision_language.finetuning import PairTask
from magneto.vision_language.model import ANSWERS, VisualReasoner
from magneto.vision_language.scenes import scene_statements
from magneto.vision_language.tables import (
    find_columns,
    image_files,
    load_rows,
    read_each_split,
    read_tables,
    with_words,
)

SIDES = ("left", "right")
TRUTHS = {"true": 1, "yes": 1, "1": 1, "false": 0, "no": 0, "0": 0}
DUPLICATES = "statements left out because of a duplicate identifier"
UNLABELLED = "statements left out because of a missing label"
ENDINGS = (".json", ".jsonl")
# Names of the file of a split without its ending, in order of preference.
FILES = {
    "train": ("train", "training"),
    "validation": ("dev", "val", "valid", "validation"),
    "test": ("test1", "test"),
    "hidden": ("test2", "hidden"),
}


class VisualReasoning(PairTask):
    """Visual reasoning with a `VisualReasoner`. The loss is in nats per statement."""

    unit = words = rows = "statements"
    column, credit = "statement", "accuracy"
    images_together = IMAGES
    model_config: VisualReasonerConfig
    data_config: StatementDataConfig

    @cached_property
    def splits(self) -> ImageSplits:
        return load_statements(self.data_config, self.problems, self._progress)

    def build_model(self) -> VisualReasoner:
        return VisualReasoner(self.sized_config())

    @cached_property
    def truths(self) -> tuple[np.ndarray, np.ndarray]:
        splits = (self.splits.train, self.splits.validation)
        train, validation = (np.array(rows.values("truth"), np.int64) for rows in splits)
        return train, validation

    def targets(self, validation: bool, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(self.truths[validation][rows])

    def blank_targets(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.long)

    def nats(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="sum")

    def credits(self, logits: Tensor, targets: Tensor) -> Tensor:
        return logits.argmax(-1) == targets

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return "loss", "accuracy" and "consistency".

        A statement about an unreadable image counts as wrong. The metric "broken" counts the
        statements about unreadable images, and is absent if there are none.
        """
        rows, given = (torch.cat(parts).numpy() for parts in zip(*predictions, strict=True))
        sentences = self.splits.validation.take(rows).values("sentence_key")
        found = {
            "loss": sums["loss"] / sums["count"],
            "accuracy": sums["accuracy"] / sums["count"],
            "consistency": consistency(sentences, given == self.truths[True][rows]),
        }
        return found | ({"broken": sums["broken"]} if sums["broken"] else {})

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        truths, held = self.truths
        train, rows = count_numbers(truths, len(ANSWERS)), self.validation_rows(limit)
        given = np.full(len(rows), train.argmax())
        sums = frequency_sums(train, count_numbers(held[rows], len(ANSWERS)))
        sums |= {"accuracy": sums["right"], "broken": 0}
        return self.summarise(sums, [(torch.from_numpy(rows), torch.from_numpy(given))])

    def shares(self, logits: Tensor) -> tuple[Sequence[str], Tensor]:
        return ANSWERS, logits.softmax(1)


def figures(task: VisualReasoning, model: nn.Module) -> Sequence[Figure]:
    from magneto.vision_language.figures import attention_figure

    texts, (_, truths) = task.splits.validation.values("statement"), task.truths

    def heading(row: int, answer: int) -> str:
        return f"{texts[row]}   —   model: {ANSWERS[answer]}; label: {ANSWERS[truths[row]]}"

    return attention_figure(task, model, heading, SIDES)


def consistency(sentences: Sequence[str], right: np.ndarray) -> float:
    """Return the share of sentences that are classified correctly with every pair of images."""
    _, number = np.unique(np.array(sentences), return_inverse=True)
    wrong = np.bincount(number, weights=~right)
    return float((wrong == 0).mean())


def load_statements(
    config: StatementDataConfig, problems: DataProblems, progress: Progress = SILENT
) -> ImageSplits:
    """Load rows with the images "left" and "right", the text "statement", and "truth" (1 or 0).

    Statements with a common image have the same "group", which stays in one split.
    """
    counts = Counts()

    def tables(source: str) -> dict[str, Table]:
        files = statement_files(source)
        found = ({split: read_file(path, counts) for split, path in files.items()} if files
                 else read_tables(source, scene_statements, counts, progress))  # fmt: skip
        named = [split for split, table in found.items() if "identifier" in table.columns
                 and table.find("left", config.left_column) is None]  # fmt: skip
        if named:
            place = existing_path(config.image_folder or source)
            root = place if place.is_dir() else place.parent
            known = image_files(root, counts)
            found |= {split: nlvr2_table(found[split], root, known) for split in named}
        return read_each_split(found, statement_table, config, counts, wanted)

    wanted = {"dev": "validation"}.get(config.validation_split, config.validation_split)
    return load_rows(config, tables, problems, counts, wanted, SIDES, key="group")


def statement_files(source: str) -> dict[str, Path]:
    if parse_source(source).kind != "path" or not existing_path(source).is_dir():
        return {}
    folder = existing_path(source)
    stems = {stem: split for split, names in FILES.items() for stem in names}
    found: dict[str, Path] = {}
    paths = [path for path in walk_files(folder) if has_ending(path, ENDINGS)]
    # The repository of NLVR2 also has files of the older data set NLVR, which are ignored.
    newer = [path for path in paths if "nlvr2" in path.relative_to(folder).parts]
    for path in newer or paths:
        stem = Path(unpacked_name(path)).stem.lower()
        if stem in stems and found.setdefault(stem, path) != path:
            raise ValueError(f"{folder} has two files of {stem} statements, {found[stem]} and "
                             f"{path}: set data.source to the folder of one of them, and "
                             "data.image_folder to the folder of the images")  # fmt: skip
    return standard_splits(found, FILES)


def nlvr2_table(table: Table, folder: Path, known: Mapping[str, str]) -> Table:
    parts = [str(one).split("-") for one in table.columns["identifier"]]
    pairs = ["-".join(part[:3]) if len(part) == 4 else "" for part in parts]
    columns: dict[str, Any] = dict(table.columns)
    for side, name in enumerate(SIDES):
        names = [pair and f"{pair}-img{side}.png" for pair in pairs]
        columns[name] = Files(folder, [known.get(each, each) for each in names])
    columns["group"] = ["-".join(part[:2]) for part in parts]
    columns["sentence_key"] = [f"{'-'.join(part[:2])}-{part[-1]}" for part in parts]
    return replace(table, columns=columns)


def statement_table(table: Table, config: StatementDataConfig, counts: Counts) -> Table:
    images = {"left": config.left_column, "right": config.right_column}
    words = {"statement": config.statement_column, "truth": config.truth_column}
    table = find_columns(table, images, words, config.image_folder, counts)
    groups = table.columns.get("group")
    if groups is None:
        groups = groups_of([table.columns[side] for side in SIDES])
    seen: set[str] = set()

    def read(row: int) -> tuple[int, dict[str, Any]] | None:
        record = {name: column[row] for name, column in table.columns.items()}
        statement, label = record["statement"], TRUTHS.get(str(record["truth"]).strip().lower())
        if not isinstance(statement, str):
            raise BadRecord("no statement")
        statement, identifier = statement.strip(), record.get("identifier")
        if not statement or label is None:
            counts[EMPTY if label is not None else UNLABELLED] += 1
            return None
        if identifier in seen:
            counts.record(DUPLICATES, table.where, str(identifier))
            return None
        if identifier is not None:
            seen.add(identifier)
        sentence_key = record.get("sentence_key") or statement
        return row, {"statement": statement, "truth": label, "sentence_key": sentence_key,
                     "group": str(groups[row])}  # fmt: skip

    found = dict(table.read_each(table.rows.tolist(), read, counts))
    return with_words(table, SIDES, found, counts)


def groups_of(columns: Sequence[MediaColumn]) -> list[str]:
    """Return the name of each row's group.

    Rows that share an image, directly or through other rows, form one group.
    """
    sparse = import_extra("scipy.sparse", "vision", "grouping the statements needs scipy")
    keys = np.array([[column.key(row) for row in range(len(column))] for column in columns])
    names, numbers = np.unique(keys, return_inverse=True)
    numbers = numbers.reshape(keys.shape)
    links = numbers[:, (keys != "").all(0)]
    graph = sparse.coo_array((np.ones(links.shape[1]), tuple(links)), shape=(len(names),) * 2)
    _, group = sparse.csgraph.connected_components(graph, directed=False)
    _, first = np.unique(group, return_index=True)
    return names[first[group[numbers[0]]]].tolist()
