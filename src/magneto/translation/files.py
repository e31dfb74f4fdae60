"""Parallel text in files: line pairs (a.en, a.de), .tsv and .jsonl, each maybe packed.

A folder's files are told apart by name: what has "train", "val", "valid", "validation", "dev" or
"test" as a word in it is of that split, anything else is for training. Lines end at a line feed
and nowhere else, so that files stay aligned.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from itertools import combinations, zip_longest
from pathlib import Path

from magneto.data.counts import Counts
from magneto.data.files import has_ending, unpacked_name, walk_files
from magneto.data.records import read_lines
from magneto.files import nearest_path, user_path
from magneto.translation.config import Texts
from magneto.translation.records import LANGUAGE, RECORD_ENDINGS, RecordFiles, bare, split_of

# Endings of two or three letters that are no languages.
NO_LANGUAGES = (
    "csv", "htm", "ini", "js", "log", "md", "out", "pdf", "png", "py", "rst", "sgm", "tgz", "tmp",
    "tmx", "tsv", "xml", "xz", "yml", "zip",
)  # fmt: skip


class LineFiles:
    """Files of one sentence a line, aligned by line number: STEM.LANGUAGE[.txt], maybe packed.

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

    def read(self, first: str, second: str, split: str, counts: Counts) -> Iterator[Texts]:
        """Yield the sentences of a pair.

        Raises:
            ValueError: If two files have different numbers of lines, or one is damaged.
        """
        for stem, files in self.groups.items():
            if split_of(stem) == split and first in files and second in files:
                yield from _aligned(files[first], files[second], counts)


def _aligned(first: Path, second: Path, counts: Counts) -> Iterator[Texts]:
    lines = zip_longest(read_lines(first, counts), read_lines(second, counts))
    for number, (one, other) in enumerate(lines):
        if one is None or other is None:
            longer, shorter = (first, second) if other is None else (second, first)
            raise ValueError(f"{longer} has more lines than {shorter}, which has {number}: "
                             "they are not aligned")  # fmt: skip
        yield bare(one), bare(other)


def open_files(
    source: str, wanted: tuple[str, ...] | None, sought: frozenset[str] = frozenset()
) -> LineFiles | RecordFiles:
    """Find parallel text at a path: a file of records, a folder, or the stem of line pairs.

    In a folder, records are read only if it has no line pairs, or none in a language of `sought`.

    Raises:
        FileNotFoundError: If there is nothing; names the nearest path.
        ValueError: If there are files, and none is parallel text, or one is there twice.
    """
    path = user_path(source)
    if os.path.isfile(path):
        if not has_ending(path, RECORD_ENDINGS):
            raise ValueError(
                f"{path}: give the stem of line pairs (a for a.en and a.de), a folder, "
                f"or a file that ends in {', '.join(RECORD_ENDINGS)}"
            )
        return RecordFiles([path], wanted)
    beside = path.parent if os.path.isdir(path.parent) else Path(".")
    folder = os.path.isdir(path)
    found = walk_files(path) if folder else beside.glob(f"{glob.escape(path.name)}.*")
    files = sorted(file for file in found if os.path.isfile(file))
    held = [file for file in files if has_ending(file, RECORD_ENDINGS)]
    groups = _by_stem(files, sought | set(wanted or ()))
    names = {name for by_language in groups.values() for name in by_language}
    if names & sought or (groups and not (sought and folder and held)):
        return LineFiles({stem: _single(found) for stem, found in groups.items()}, wanted)
    if folder and held:
        same: dict[str, list[Path]] = {}
        for file in held:
            same.setdefault(str(file.with_name(unpacked_name(file))), []).append(file)
        return RecordFiles(list(_single(same).values()), wanted)
    if folder:
        raise ValueError(f"no parallel text in {source}: no a.en beside an a.de, and no file ends "
                         f"in {', '.join(RECORD_ENDINGS)}")  # fmt: skip
    raise FileNotFoundError(f"no parallel text {source}{nearest_path(path)}")


def _by_stem(files: list[Path], named: frozenset[str]) -> dict[str, dict[str, list[Path]]]:
    """Return line files by stem and language, where a stem has two languages or more.

    An ending is a language if it looks like a code of one, or is `named` as one.
    """
    groups: dict[str, dict[str, list[Path]]] = {}
    for file in files:
        whole, dot, language = unpacked_name(file).removesuffix(".txt").rpartition(".")
        code = LANGUAGE.fullmatch(language) and language not in NO_LANGUAGES
        if dot and (code or language in named):
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
