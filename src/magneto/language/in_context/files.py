"""A suite's items from wherever they lie: a folder, a file, or the Hugging Face hub."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from magneto.config import ConfigError
from magneto.data.files import open_bytes
from magneto.data.sources import SURROGATES, import_datasets, loading
from magneto.language.in_context.suites import SUITES, Item, Record, Suite

ENDINGS = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".tsv", ".tsv.gz")
# Words in the names of files, and the split they stand for.
SPLITS = {
    "train": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test",
}  # fmt: skip


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
            a file of questions; hf:NAME[:CONFIG]; or None for the suite's place on the hub.

    Raises:
        ConfigError: If nothing is found, or more than one file could be meant.
        ValueError: If a record does not have the suite's fields; says which record of which file.
    """
    if data is None or data.startswith("hf:"):
        return _from_hub(suite, data.removeprefix("hf:") if data else suite.hub)
    path = Path(data).expanduser()
    if path.is_dir():
        files = _files(suite, path)
    elif path.is_file():
        files = {"": path}
    else:
        beside = path.parent if path.parent.is_dir() else Path(".")
        near = get_close_matches(path.name, [p.name for p in beside.iterdir()], n=1)
        hint = f"; did you mean {beside / near[0]}?" if near else ""
        raise ConfigError([f"--data: no file or folder {data}{hint}"])
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
    for path in sorted(p for p in folder.rglob("*") if p.name.endswith(ENDINGS)):
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
    """Yield the records of a .jsonl, .csv or .tsv file, each also with .gz.

    Raises:
        ValueError: If a line is not what the file's name says; names the line.
    """
    name = path.name.removesuffix(".gz")
    with open_bytes(path) as file:
        lines = _decoded(file, path)
        if not name.endswith(".jsonl"):
            yield from csv.DictReader(lines, delimiter="\t" if name.endswith(".tsv") else ",")
            return
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error.msg})") from error
            except RecursionError as error:
                raise ValueError(f"{path}, line {number}: nested too deeply") from error
            if not isinstance(record, dict):
                raise ValueError(f"{path}, line {number}: not a JSON object")
            yield _whole(record)


def _decoded(file: Iterable[bytes], path: Path) -> Iterator[str]:
    for number, raw in enumerate(file, 1):
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {number}: not UTF-8 ({error.reason})") from error


def _whole(value: Any) -> Any:
    """Return nested values with U+FFFD for halves of a character, which no tokenizer takes."""
    if isinstance(value, str):
        return SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: _whole(part) for key, part in value.items()}
    return [_whole(part) for part in value] if isinstance(value, list) else value


def parse_records(suite: Suite, records: Iterable[Record], source: Any) -> list[Item]:
    """Turn records into items. One that is wrong is an error: leaving it out changes the score."""
    items = []
    for number, record in enumerate(records, 1):
        try:
            items.append(suite.parse(record))
        except KeyError as error:
            raise ValueError(f"{source}, record {number}: no field {error}; {suite.name} has "
                             f"{suite.fields}") from error  # fmt: skip
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{source}, record {number}: {error}") from error
    if not items:
        raise ValueError(f"{source}: no records")
    return items


def _from_hub(suite: Suite, name: str) -> Questions:
    if not name:
        raise ConfigError([
            f"{suite.name} is not on the hub: give --data DIR_OR_FILE with records of "
            f"{suite.fields}"
        ])  # fmt: skip
    datasets = import_datasets()
    path, _, config = name.partition(":")
    with loading(f"hf:{name}"):
        splits: Any = datasets.load_dataset(path, config or None)
    split = next((split for split in suite.questions if split in splits), None)
    if split is None:
        raise ConfigError([f"hf:{name} has none of the splits {', '.join(suite.questions[:-1])}"])
    other = next((s for s in suite.demonstrations if s in splits and s != split), None)
    source, pool_source = f"hf:{name}, {split}", f"hf:{name}, {other}"
    return _questions(
        suite,
        parse_records(suite, splits[split], source),
        None if other is None else parse_records(suite, splits[other], pool_source),
        source,
        pool_source,
    )
