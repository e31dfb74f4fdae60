"""Parallel text in files: line pairs (a.en, a.de), .tsv, .jsonl and .tmx, each also with .gz.

A folder's files are told apart by name: what has "train", "val", "valid", "validation", "dev" or
"test" as a word in it is of that split, anything else is for training. Lines end at a line feed
and nowhere else, so that files stay aligned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import combinations
from pathlib import Path

from magneto.data.files import open_bytes
from magneto.translation.config import PairCounts, Texts
from magneto.translation.records import (
    LANGUAGE,
    RECORD_ENDINGS,
    RecordFiles,
    decoded,
    split_of,
)

# Endings of two or three letters that are no languages.
NO_LANGUAGES = (
    "csv", "htm", "ini", "js", "log", "md", "out", "pdf", "png", "py", "rst", "sgm", "tgz", "tmp",
    "tmx", "tsv", "xml", "xz", "yml", "zip",
)  # fmt: skip


class LineFiles:
    """Files of one sentence a line, aligned by line number: STEM.LANGUAGE[.txt][.gz].

    Stems that differ in a last word "src" or "ref" only are one, as WMT names its test sets.

    Args:
        groups: Files by stem and language.
        wanted: Languages to use; None for all that there are.
    """

    def __init__(self, groups: dict[str, dict[str, Path]], wanted: tuple[str, ...] | None) -> None:
        self.languages = sorted({name for files in groups.values() for name in files})
        self.groups = {
            stem: {n: path for n, path in files.items() if wanted is None or n in wanted}
            for stem, files in groups.items()
        }

    @property
    def files(self) -> list[Path]:
        """All that is read."""
        return [path for files in self.groups.values() for path in files.values()]

    def pairs(self, split: str) -> set[tuple[str, str]]:
        """Return the pairs of languages that a split has."""
        groups = (files for stem, files in self.groups.items() if split_of(stem) == split)
        return {pair for files in groups for pair in combinations(sorted(files), 2)}

    def read(self, first: str, second: str, split: str, counts: PairCounts) -> Iterator[Texts]:
        """Yield the sentences of a pair.

        Raises:
            ValueError: If two files have different numbers of lines, or a .gz is damaged.
        """
        for stem, files in self.groups.items():
            if split_of(stem) == split and first in files and second in files:
                yield from _aligned(files[first], files[second], counts)


def _aligned(first: Path, second: Path, counts: PairCounts) -> Iterator[Texts]:
    with open_bytes(first) as one, open_bytes(second) as other:
        number = 0
        while True:
            lines = one.readline(), other.readline()
            if not all(lines):
                break
            number += 1
            yield decoded(lines[0], counts), decoded(lines[1], counts)
        if any(lines):
            longer, shorter = (first, second) if lines[0] else (second, first)
            raise ValueError(f"{longer} has more lines than {shorter}, which has {number}: "
                             "they are not aligned")  # fmt: skip


def open_files(
    source: str, wanted: tuple[str, ...] | None, sought: frozenset[str] = frozenset()
) -> LineFiles | RecordFiles:
    """Find parallel text at a path: a file of records, a folder, or the stem of line pairs.

    In a folder, records are read only if it has no line pairs, or none in a language of `sought`.

    Raises:
        FileNotFoundError: If there is nothing; names the nearest path.
        ValueError: If there are files, and none is parallel text, or one is there twice.
    """
    path = Path(source).expanduser()
    if path.is_file():
        if not path.name.removesuffix(".gz").endswith(RECORD_ENDINGS):
            raise ValueError(
                f"{path}: give the stem of line pairs (a for a.en and a.de), a folder, "
                f"or a file that ends in {', '.join(RECORD_ENDINGS)}"
            )
        return RecordFiles([path], wanted)
    beside = path.parent if path.parent.is_dir() else Path(".")
    folder = path.is_dir()
    found = path.rglob("*") if folder else beside.glob(f"{path.name}.*")
    files = sorted(file for file in found if file.is_file())
    held = [file for file in files if file.name.removesuffix(".gz").endswith(RECORD_ENDINGS)]
    groups = _by_stem(files)
    names = {name for by_language in groups.values() for name in by_language}
    if names & sought or (groups and not (sought and folder and held)):
        return LineFiles({stem: _single(found) for stem, found in groups.items()}, wanted)
    if folder and held:
        same: dict[str, list[Path]] = {}
        for file in held:
            same.setdefault(str(file).removesuffix(".gz"), []).append(file)
        return RecordFiles(list(_single(same).values()), wanted)
    if folder:
        raise ValueError(f"no parallel text in {source}: no a.en beside an a.de, and no file ends "
                         f"in {', '.join(RECORD_ENDINGS)}")  # fmt: skip
    near = get_close_matches(path.name, [p.name for p in beside.iterdir()], n=1)
    hint = f"; did you mean {beside / near[0]}?" if near else ""
    raise FileNotFoundError(f"no parallel text {source}{hint}")


def _by_stem(files: list[Path]) -> dict[str, dict[str, list[Path]]]:
    """Return line files by stem and language, where a stem has two languages or more."""
    groups: dict[str, dict[str, list[Path]]] = {}
    for file in files:
        whole, dot, language = file.name.removesuffix(".gz").removesuffix(".txt").rpartition(".")
        if dot and LANGUAGE.fullmatch(language) and language not in NO_LANGUAGES:
            key = re.sub(r"(^|[._-])(src|ref)$", "", whole)
            groups.setdefault(str(file.parent / key), {}).setdefault(language, []).append(file)
    return {stem: found for stem, found in groups.items() if len(found) > 1}


def _single(files: dict[str, list[Path]]) -> dict[str, Path]:
    """Return the one file there is of each.

    Raises:
        ValueError: If there are two, such as a.en and a.en.gz; names them.
    """
    for paths in files.values():
        if len(paths) > 1:
            raise ValueError(f"two files for one text: {paths[0]} and {paths[1]}; keep one")
    return {name: paths[0] for name, paths in files.items()}
