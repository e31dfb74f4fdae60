"""Parallel text in files: line pairs (a.en, a.de), .tsv, .jsonl and .tmx, each also with .gz.

A folder's files are told apart by name: what has "train", "val", "valid", "validation", "dev" or
"test" as a word in it is of that split, anything else is for training. Lines end at a line feed
and nowhere else, so that files stay aligned.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from itertools import combinations
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree

from magneto.data.parallel import PairCounts, Texts

LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
SPLIT = re.compile(r"(?:^|[._-])(train|validation|valid|val|dev|test)(?=$|[._\d-])")
SPLITS = {"train": "train", "test": "test"}
RECORD_ENDINGS = (".tsv", ".jsonl", ".tmx")
# Records looked at to find which languages a file has.
HEAD = 1000
XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


class LineFiles:
    """Files of one sentence a line, aligned by line number: STEM.LANGUAGE[.txt][.gz].

    Stems that differ in a last word "src" or "ref" only are one, as WMT names its test sets.

    Args:
        groups: Files by stem and language.
    """

    def __init__(self, groups: dict[str, dict[str, Path]]) -> None:
        self.groups = {stem: files for stem, files in groups.items() if len(files) > 1}
        self.languages = sorted({name for files in self.groups.values() for name in files})

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
            ValueError: If two files have different numbers of lines.
        """
        for stem, files in self.groups.items():
            if split_of(stem) == split and first in files and second in files:
                yield from _aligned(files[first], files[second], counts)


def _aligned(first: Path, second: Path, counts: PairCounts) -> Iterator[Texts]:
    with open_file(first) as one, open_file(second) as other:
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


class RecordFiles:
    """Files of records that hold a sentence in several languages: .tsv, .jsonl, .tmx.

    Args:
        paths: The files.
        wanted: Languages to look for; None for all that there are.
    """

    def __init__(self, paths: list[Path], wanted: tuple[str, ...] | None) -> None:
        self.files = paths
        self._pairs: dict[Path, set[tuple[str, str]]] = {}
        for path in paths:
            names: set[str] = set()
            for number, record in enumerate(records(path, PairCounts())):
                names |= record.keys()
                if number >= HEAD:
                    break
            names = names if wanted is None else names & set(wanted)
            self._pairs[path] = set(combinations(sorted(names), 2))
        self.languages = sorted({name for pair in self.pairs_of_all for name in pair})

    @property
    def pairs_of_all(self) -> set[tuple[str, str]]:
        """Pairs of languages of any file."""
        return {pair for pairs in self._pairs.values() for pair in pairs}

    def pairs(self, split: str) -> set[tuple[str, str]]:
        """Return the pairs of languages that a split has."""
        return {p for path, ps in self._pairs.items() if split_of(stem(path)) == split for p in ps}

    def read(self, first: str, second: str, split: str, counts: PairCounts) -> Iterator[Texts]:
        """Yield the sentences of a pair; records without both are passed over."""
        for path, pairs in self._pairs.items():
            if split_of(stem(path)) == split and tuple(sorted((first, second))) in pairs:
                for record in records(path, counts):
                    if first in record and second in record:
                        yield record[first], record[second]


def records(path: Path, counts: PairCounts) -> Iterator[dict[str, str]]:
    """Yield a file's records: sentences by language.

    Raises:
        ValueError: If a .tsv does not say its languages, or a .tmx is not XML.
    """
    name = path.name.removesuffix(".gz")
    read: Callable[[Path, PairCounts], Iterator[dict[str, str]]] = {
        ".tsv": _tsv, ".jsonl": _jsonl, ".tmx": _tmx,
    }[name[name.rindex(".") :]]  # fmt: skip
    yield from read(path, counts)


def _tsv(path: Path, counts: PairCounts) -> Iterator[dict[str, str]]:
    with open_file(path) as file:
        head = decoded(file.readline(), counts).split("\t")
        if all(LANGUAGE.fullmatch(cell) for cell in head) and len(set(head)) > 1:
            names = head
        else:
            named = re.search(r"(?:^|[._-])([a-z]{2,3})-([a-z]{2,3})(?=[._-])", path.name)
            if not named:
                raise ValueError(
                    f"{path} does not say its languages: begin it with a line en<TAB>de, "
                    "or name it like train.en-de.tsv"
                )
            names = list(named.groups())
            file.seek(0)
        for raw in file:
            cells = decoded(raw, counts).split("\t")
            if len(cells) == len(names):
                yield dict(zip(names, cells, strict=True))
            else:
                counts.bad_records += 1


def _jsonl(path: Path, counts: PairCounts) -> Iterator[dict[str, str]]:
    with open_file(path) as file:
        for raw in file:
            try:
                record = json.loads(decoded(raw, counts))
            except ValueError:
                record = None
            found = sentences(record)
            if len(found) > 1:
                yield found
            else:
                counts.bad_records += 1


def sentences(record: Any) -> dict[str, str]:
    """Return what a record has by language: of its "translation", else of itself."""
    if not isinstance(record, dict):
        return {}
    inner = record.get("translation", record)
    if not isinstance(inner, dict):
        return {}
    return {k: v for k, v in inner.items() if LANGUAGE.fullmatch(k) and isinstance(v, str)}


def _tmx(path: Path, counts: PairCounts) -> Iterator[dict[str, str]]:
    """Read translation units; "en-US" is en."""
    with open_file(path) as file:
        try:
            for _, element in ElementTree.iterparse(file):
                if element.tag.rpartition("}")[2] != "tu":
                    continue
                found: dict[str, str] = {}
                for variant in element.iter("tuv"):
                    code = variant.get(XML_LANGUAGE) or variant.get("lang") or ""
                    segment = variant.find("seg")
                    if segment is not None:
                        found[code.lower().split("-")[0]] = "".join(segment.itertext())
                element.clear()
                if len(found) > 1:
                    yield found
                else:
                    counts.bad_records += 1
        except ElementTree.ParseError as error:
            raise ValueError(f"{path} is not TMX: {error}") from error


def open_files(source: str, wanted: tuple[str, ...] | None) -> LineFiles | RecordFiles:
    """Find parallel text at a path: a file of records, a folder, or the stem of line pairs.

    In a folder, records are read only if it has no line pairs.

    Raises:
        FileNotFoundError: If there is nothing; names the nearest path.
        ValueError: If there are files, and none is parallel text.
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
    files = path.rglob("*") if folder else beside.glob(f"{path.name}.*")
    files = sorted(file for file in files if file.is_file())
    lines = LineFiles(_by_stem(files, wanted))
    if lines.groups:
        return lines
    held = [file for file in files if file.name.removesuffix(".gz").endswith(RECORD_ENDINGS)]
    if folder and held:
        return RecordFiles(held, wanted)
    if folder:
        raise ValueError(f"no parallel text in {source}: no a.en beside an a.de, and no file ends "
                         f"in {', '.join(RECORD_ENDINGS)}")  # fmt: skip
    near = get_close_matches(path.name, [p.name for p in beside.iterdir()], n=1)
    hint = f"; did you mean {beside / near[0]}?" if near else ""
    raise FileNotFoundError(f"no parallel text {source}{hint}")


def _by_stem(files: list[Path], wanted: tuple[str, ...] | None) -> dict[str, dict[str, Path]]:
    groups: dict[str, dict[str, Path]] = {}
    for file in files:
        whole, dot, language = file.name.removesuffix(".gz").removesuffix(".txt").rpartition(".")
        if dot and LANGUAGE.fullmatch(language) and (wanted is None or language in wanted):
            key = re.sub(r"(^|[._-])(src|ref)$", "", whole)
            groups.setdefault(str(file.parent / key), {})[language] = file
    return groups


def split_of(stem: str) -> str:
    """Return "train", "validation" or "test" for the name of a file."""
    found = SPLIT.search(stem.rpartition("/")[2])
    return SPLITS.get(found[1], "validation") if found else "train"


def stem(path: Path) -> str:
    """Return a file's name without its endings."""
    return path.name.removesuffix(".gz").rpartition(".")[0]


def open_file(path: Path) -> IO[bytes]:
    """Open a file, unpacking .gz."""
    return gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb")  # type: ignore[return-value]


def decoded(raw: bytes, counts: PairCounts) -> str:
    """Decode a line without its end; what is not UTF-8 becomes U+FFFD and is counted."""
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        counts.invalid_utf8 += 1
        return raw.decode("utf-8", errors="replace")
