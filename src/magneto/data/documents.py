"""Documents of text sources: PATH, hf:NAME[:CONFIG[:SPLIT]] or builtin:docstrings.

A path is a file or a folder. A plain-text file is cut into documents of several paragraphs. In
files of records, each record is a document. The built-in source is the documentation of Python's
standard library.
"""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from magneto.config import abbreviate
from magneto.data.cache import cache_directory, create_cached, file_states, fingerprint, is_cached
from magneto.data.files import (
    RECORDS,
    decode_line,
    existing_path,
    has_ending,
    is_table,
    number_rows,
    open_table,
    open_text,
    stream_records,
    walk_files,
)
from magneto.data.problems import EMPTY, BadRecord, Counts, join_words, read_each
from magneto.data.sources import (
    HubDataset,
    check_builtin,
    find_source,
    hub_files,
    in_split,
    named_splits,
    paths_by_split,
    split_of,
)
from magneto.files import read_json, write_json

# WikiText's files are wiki.train.tokens and wiki.train.raw.
ENDINGS = (".txt", ".tokens", ".raw", *RECORDS, ".tar")
# Characters after which a document of plain text ends at the next blank line.
DOCUMENT_CHARACTERS = 4096
# Longest piece of a line: a file without line ends would fill the memory.
PIECE_BYTES = 1 << 20

# Units of a document in plain text.
PARAGRAPHS, LINE = "paragraphs", "line"

DOCUMENTS = "documents"
CUT_LINES = "over-long lines cut"


Documents = Callable[[Counts], Iterator[str]]
"""Function that yields a split's documents.

The argument of the function is a counter, which receives the numbers of yielded and skipped
documents."""


def read_documents(source: str, field: str, counts: Counts) -> Iterator[str]:
    splits = open_documents(source, field)
    return (splits.get("train") or next(iter(splits.values())))(counts)


def open_documents(source: str, field: str, unit: str = PARAGRAPHS) -> dict[str, Documents]:
    """Return, for each split of a source, a function that yields the split's documents.

    Splits come from the names of files and folders if these contain "train" and a second split,
    such as "test". Without such names, splits come from the records' field "split" if this field is
    "train" in some record. Otherwise, all documents belong to the split "train".

    Args:
        source: PATH, hf:NAME[:CONFIG[:SPLIT]] (the hub or a local folder) or builtin:NAME.
        field: Key of the text in records.
        unit: Length of a document in plain text: several "paragraphs", or one "line".

    Raises:
        FileNotFoundError: If the path does not exist. The message suggests the nearest path.
        ValueError: If a built-in source is unknown or a folder has no readable file. The returned
            functions raise ValueError if a file is damaged.
    """
    found = find_source(source)
    if found.kind == "builtin":
        check_builtin(found, BUILTIN, "text")
        return {"train": lambda counts: _counted(docstrings(), counts)}
    if found.kind == "hf":
        dataset = HubDataset(found)

        def rows(name: str, counts: Counts) -> Iterator[str]:
            loaded = dataset.stream(found.config, name)
            read = partial(_text, field=field, split="", counts=counts)
            return _counted(read_each(loaded, read, counts, f"{source}, row"), counts)

        chosen = dataset.chosen_splits(found.config)
        return {split: partial(rows, name) for split, name in chosen.items()}

    def texts(files: Sequence[Path], split: str, counts: Counts) -> Iterator[str]:
        each = (_file_documents(path, field, unit, split, counts) for path in files)
        return _counted(chain.from_iterable(each), counts)

    files = files_by_split(source)
    if {*files} == {"train"} and (named := named_splits(files["train"])):
        return {split: partial(texts, files["train"], split) for split in named}
    return {split: partial(texts, own, "") for split, own in files.items()}


def source_files(source: str, endings: tuple[str, ...]) -> list[Path]:
    path = existing_path(source)
    if path.is_file():
        return [path]
    files = sorted(file for file in walk_files(path) if has_ending(file, endings))
    if not files:
        raise ValueError(f"no readable file in {source}: none ends in {', '.join(endings)}")
    return files


def files_by_split(source: str) -> dict[str, list[Path]]:
    folder, files = existing_path(source), source_files(source, ENDINGS)
    words = [path.relative_to(folder).parts[0] if path != folder else "" for path in files]
    parts = paths_by_split(files, words)
    return parts if "train" in map(split_of, words) else {"train": files}


def _counted(texts: Iterable[str], counts: Counts) -> Iterator[str]:
    for text in texts:
        if text.strip():
            counts[DOCUMENTS] += 1
            yield text
        else:
            counts[EMPTY] += 1


def _file_documents(path: Path, field: str, unit: str, split: str, counts: Counts) -> Iterator[str]:
    read = partial(_text, field=field, split=split, counts=counts)
    if is_table(path):
        header, rows = open_table(path, counts)
        if header and field not in header:
            columns = join_words([abbreviate(name) for name in header])
            raise ValueError(f"{path} has no column {field!r} (columns: {columns}). Set "
                             "data.text_field. If the file has no header, add one as the first "
                             "line.")  # fmt: skip
        return (text for _, text in number_rows(path, rows, header, counts, read))
    if has_ending(path, (*RECORDS, ".tar")):
        return stream_records(path, counts, read)
    if split not in ("", "train"):
        return iter(())
    if unit == LINE:
        return (line.rstrip("\r\n") for line in _pieces(path, counts))
    return _plain_documents(path, counts)


def _text(record: Any, field: str, split: str, counts: Counts) -> str | None:
    if not in_split(record, split, counts):
        return None
    text = record.get(field)
    if not isinstance(text, str):
        raise BadRecord(f"no text in field {field!r}")
    return text


def _plain_documents(path: Path, counts: Counts) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for line in _pieces(path, counts):
        held.append(line)
        size += len(line)
        if (not line.strip() and size >= DOCUMENT_CHARACTERS) or size >= PIECE_BYTES:
            yield "".join(held).strip("\n")
            held, size = [], 0
    if held:
        yield "".join(held).strip("\n")


def _pieces(path: Path, counts: Counts) -> Iterator[str]:
    held, starts_line, number = b"", True, 0
    with open_text(path) as file:
        while piece := file.readline(PIECE_BYTES):
            number += starts_line
            cut = len(piece) == PIECE_BYTES and not piece.endswith(b"\n")
            if cut or held:
                counts[CUT_LINES] += cut and starts_line
                piece = held + piece
                end = _last_character(piece) if cut else len(piece)
                piece, held = piece[:end], piece[end:]
            starts_line = not cut
            yield decode_line(piece, counts, path, number)
    if held:
        yield decode_line(held, counts, path, number)


def _last_character(piece: bytes) -> int:
    starts = (len(piece) - back for back in range(1, 5) if piece[-back] & 0xC0 != 0x80)
    return next(starts, len(piece))


def documents_fingerprint(source: str, field: str, unit: str = PARAGRAPHS) -> str:
    """Return a digest of the paths, sizes and change times of a source's files.

    The digest also depends on `field` and `unit`. For a data set on the hub, the digest depends
    only on the arguments. For a built-in source, the digest depends only on `source`, `field` and
    the version of Python.
    """
    found = find_source(source)
    if found.kind == "builtin":
        return fingerprint(source, field, sys.version_info[:3])
    files = hub_files(found) if found.kind == "hf" else source_files(source, ENDINGS)
    place = source if found.kind == "hf" else ""
    return fingerprint(place, file_states(files), field, unit)


# Folders without prose: tests, vendored packages, removed tools.
EXCLUDED_FOLDERS = {
    "test",
    "tests",
    "site-packages",
    "dist-packages",
    "lib2to3",
    "__pycache__",
    "ensurepip",
}
BUILTIN = ("docstrings",)


def docstrings() -> list[str]:
    """Return the prose of the standard library's docstrings, one document per module."""
    version = sys.version_info[:3]
    held = cache_directory() / f"docstrings-{fingerprint(version, 'documents.json')}"
    if not is_cached(held):
        with create_cached(held) as temporary:
            write_json(temporary / "documents.json", list(_extract()))
    return read_json(held / "documents.json")


def _extract() -> Iterator[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if EXCLUDED_FOLDERS.isdisjoint(path.relative_to(root).parts[:-1]):
            prose = list(dict.fromkeys(_prose(path)))
            if prose:
                yield "\n\n".join(prose)


def _prose(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                if is_prose(paragraph):
                    yield " ".join(paragraph.split())


def is_prose(paragraph: str) -> bool:
    if ">>>" in paragraph or any(
        line.startswith(("    ", "\t", "|")) for line in paragraph.split("\n")
    ):
        return False
    letters = sum(c.isalpha() or c.isspace() for c in paragraph)
    return len(paragraph.split()) >= 5 and letters >= 0.85 * len(paragraph)
