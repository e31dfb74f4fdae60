"""A suite's items from wherever they lie: a folder, a file, or the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magneto.config import ConfigError
from magneto.data.counts import NothingWrong
from magneto.data.files import has_ending, unpacked_name, walk_files
from magneto.data.problems import BadRecord, guarded
from magneto.data.records import read_objects, read_quoted
from magneto.data.sources import HubDataset, parse_source
from magneto.data.splits import SPLITS
from magneto.files import nearest_path, user_path
from magneto.language.in_context.suites import SUITES, Item, Record, Suite

ENDINGS = (".jsonl", ".csv", ".tsv")


@dataclass(frozen=True)
class Questions:
    """The items of a suite.

    Attributes:
        suite: What they are.
        items: The questions, in the order of their source.
        pool: What demonstrations are drawn from; None if there is but one split, so that they are
            drawn from the other questions.
        source: Where the questions were read, for a person.
        pool_source: Where demonstrations are drawn from, for a person.
    """

    suite: Suite
    items: list[Item]
    pool: list[Item] | None
    source: str
    pool_source: str


def load_questions(suite: Suite, data: str | None) -> Questions:
    """Read a suite.

    Args:
        suite: Of `SUITES`.
        data: A folder, searched with all folders in it for files that the suite's names occur in;
            a file of questions; hf:NAME[:CONFIG[:SPLIT]]; or None for the suite's place on the hub.

    Raises:
        ConfigError: If nothing is found, or more than one file could be meant.
        ValueError: If a record does not have the suite's fields; says which record of which file.
    """
    if data is None or data.startswith("hf:"):
        return _from_hub(suite, data or f"hf:{suite.hub}")
    path = user_path(data)
    if os.path.isdir(path):
        files = _files(suite, path)
    elif os.path.isfile(path):
        files = {"": path}
    else:
        raise ConfigError([f"--data: no file or folder {data}{nearest_path(path)}"])
    split = _question_split(suite, files, path)
    pool = next((files[s] for s in suite.demonstrations if s in files and s != split), None)
    return _questions(
        suite,
        parse_records(suite, read_records(files[split]), files[split]),
        None if pool is None else parse_records(suite, read_records(pool), pool),
        str(files[split]),
        str(pool),
    )


def _questions(
    suite: Suite, items: list[Item], pool: list[Item] | None, source: str, pool_source: str
) -> Questions:
    where = "the other questions" if pool is None else pool_source
    return Questions(suite, items, pool, source, where)


def _files(suite: Suite, folder: Path) -> dict[str, Path]:
    """Return the suite's files in a folder, by split."""
    found: dict[str, Path] = {}
    for path in sorted(p for p in walk_files(folder) if has_ending(p, ENDINGS)):
        # The original StoryCloze files are all called cloze_test, whichever split they hold.
        name = str(path.relative_to(folder)).lower().replace("cloze_test", "storycloze")
        words = re.split(r"[^a-z0-9]+", name)
        if not set(words) & set(suite.aliases):
            continue
        split = next((SPLITS[word] for word in reversed(words) if word in SPLITS), "")
        if split in found:
            which = f"{split or 'question'} files for {suite.name}"
            raise ConfigError([f"--data: two {which}: {found[split]} and {path}; give one"])
        found[split] = path
    return found


def _question_split(suite: Suite, files: dict[str, Path], data: Path) -> str:
    split = next((split for split in suite.questions if split in files), None)
    if split is None:
        others = [name for name, other in SUITES.items() if data.is_dir() and _files(other, data)]
        have = f" (it has {', '.join(others)})" if others else ""
        names = " or ".join(f"{alias}.jsonl" for alias in suite.aliases)
        raise ConfigError([
            f"--data: no questions of {suite.name} in {data}{have}: needs a file such as {names}, "
            f"with the fields {suite.fields}"
        ])  # fmt: skip
    return split


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a .jsonl, .csv or .tsv file, each maybe packed.

    Raises:
        ValueError: If a line is not what the file's name says; names the line.
    """
    name, counts = unpacked_name(path), NothingWrong()
    if name.endswith(".jsonl"):
        yield from read_objects(path, counts)
        return
    rows = read_quoted(path, "\t" if name.endswith(".tsv") else ",", counts)
    names = next(rows, [])
    for row in rows:
        if row:
            yield dict(zip(names, row, strict=False))


def parse_records(suite: Suite, records: Iterable[Record], source: Any) -> list[Item]:
    """Turn records into items. One that is wrong is an error: leaving it out changes the score."""
    items = []
    for number, record in enumerate(records, 1):
        try:
            with guarded():
                items.append(suite.parse(record))
        except BadRecord as error:
            raise ValueError(f"{source}, record {number}: {error}; {suite.name} has "
                             f"{suite.fields}") from error  # fmt: skip
    if not items:
        raise ValueError(f"{source}: no records")
    return items


def _from_hub(suite: Suite, name: str) -> Questions:
    if name == "hf:":
        raise ConfigError([
            f"{suite.name} is not on the hub: give --data DIR_OR_FILE with records of "
            f"{suite.fields}"
        ])  # fmt: skip
    source = parse_source(name)
    splits = HubDataset(source).load(source.config, None)
    wanted = (source.split,) if source.split else suite.questions
    split = next((split for split in wanted if split in splits), None)
    if split is None:
        asked = ", ".join(name for name in wanted if name)
        raise ConfigError([f"{name} has none of the splits {asked}"])
    other = next((s for s in suite.demonstrations if s in splits and s != split), None)
    where, pool_where = f"{name}, {split}", f"{name}, {other}"
    return _questions(
        suite,
        parse_records(suite, splits[split], where),
        None if other is None else parse_records(suite, splits[other], pool_where),
        where,
        pool_where,
    )
