"""Documents from wherever they lie: PATH, hf:NAME or builtin:NAME.

A path is a file or a folder of .txt, .jsonl and either with .gz. In plain text a document is a run
of paragraphs; a .jsonl line is a document. Nothing is dropped in silence: what is odd is counted.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

from magneto.config import ConfigError
from magneto.data import builtin
from magneto.data.cache import fingerprint
from magneto.data.files import open_bytes

ENDINGS = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")
# A document of plain text ends at the first blank line after so many characters.
DOCUMENT_CHARACTERS = 4096
# A longer line is cut, so that one file without line ends does not fill the memory.
LINE_BYTES = 1 << 20
# Halves of a character that JSON can spell (\ud83d), and UTF-8 and tokenizers can't.
SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass
class Counts:
    """What was met while reading.

    Attributes:
        documents: Documents given out.
        empty: Documents without a visible character, left out.
        invalid_utf8: Lines (or pieces of cut ones) with bytes that are not UTF-8, and records with
            halves of a character, which became U+FFFD.
        long_lines: Lines of plain text that were cut into pieces of a mebibyte.
        bad_records: Lines of .jsonl without the text field, or that are not JSON, left out.
    """

    documents: int = 0
    empty: int = 0
    invalid_utf8: int = 0
    long_lines: int = 0
    bad_records: int = 0

    def describe(self) -> str:
        """Say in words what was odd."""
        odd = {
            "empty documents left out": self.empty,
            "lines with invalid UTF-8 replaced": self.invalid_utf8,
            "over-long lines cut": self.long_lines,
            "bad records left out": self.bad_records,
        }
        words = [f"{count} {what}" for what, count in odd.items() if count]
        return f"{self.documents} documents" + (f" ({', '.join(words)})" if words else "")


def read_documents(source: str, field: str, counts: Counts) -> Iterator[str]:
    """Yield the documents of a source.

    Args:
        source: PATH, hf:NAME[:CONFIG[:SPLIT]] (the hub or a local folder) or builtin:NAME.
        field: Key of the text in .jsonl and Hugging Face records.
        counts: Filled while reading.

    Raises:
        FileNotFoundError: If there is no such path; names the nearest one.
        ValueError: If a name is unknown or a folder holds nothing to read.
    """
    for text in _raw_documents(source, field, counts):
        if text.strip():
            counts.documents += 1
            yield text
        else:
            counts.empty += 1


def _raw_documents(source: str, field: str, counts: Counts) -> Iterator[str]:
    if source.startswith("builtin:"):
        check_builtin(source)
        yield from builtin.docstrings()
    elif source.startswith("hf:"):
        yield from _hub_documents(source.removeprefix("hf:"), field, counts)
    else:
        for path in source_files(source):
            read = _records if ".jsonl" in path.name else _plain_documents
            with open_bytes(path) as file:
                yield from read(file, field, counts)


def check_builtin(source: str) -> None:
    """Raise ValueError if there is no such built-in text."""
    if source.removeprefix("builtin:") not in builtin.NAMES:
        raise ValueError(f"no built-in text {source!r}: there is {builtin.builtin_names()}")


def source_files(source: str) -> list[Path]:
    """List the files of a path source, in order.

    Raises:
        FileNotFoundError: If there is no such path.
        ValueError: If a folder holds nothing to read.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if not path.exists():
        beside = path.parent if path.parent.is_dir() else Path(".")
        near = get_close_matches(path.name, [p.name for p in beside.iterdir()], n=1)
        hint = f"; did you mean {beside / near[0]}?" if near else ""
        raise FileNotFoundError(f"no file or folder {source}{hint}")
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(ENDINGS))
    if not files:
        raise ValueError(f"nothing to read in {source}: no file ends in {', '.join(ENDINGS)}")
    return files


def source_fingerprint(source: str, field: str) -> str:
    """Name the content of a source: files by path, size and time of change, others by name."""
    if source.startswith("builtin:"):
        return fingerprint(source, field, sys.version_info[:3])
    name = source if source.startswith("hf:") else ""
    if name:
        folder = Path(name.removeprefix("hf:").split(":")[0])
        files = sorted(p for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else []
    else:
        files = source_files(source)
    stats = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return fingerprint(name, stats, field)


def _lines(file: IO[bytes], counts: Counts) -> Iterator[str]:
    """Yield decoded lines, with their line ends; a cut does not split a character."""
    held, whole = b"", True
    while piece := file.readline(LINE_BYTES):
        cut = len(piece) == LINE_BYTES and not piece.endswith(b"\n")
        counts.long_lines += cut and whole
        whole = not cut
        piece = held + piece
        end = _last_character(piece) if cut else len(piece)
        held = piece[end:]
        yield _decode(piece[:end], counts)
    if held:
        yield _decode(held, counts)


def _last_character(piece: bytes) -> int:
    """Return where the last character of UTF-8 bytes begins, which may be unfinished."""
    starts = (len(piece) - back for back in range(1, 5) if piece[-back] & 0xC0 != 0x80)
    return next(starts, len(piece))


def _decode(raw: bytes, counts: Counts) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        counts.invalid_utf8 += 1
        return raw.decode("utf-8", errors="replace")


def _plain_documents(file: IO[bytes], field: str, counts: Counts) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for line in _lines(file, counts):
        held.append(line)
        size += len(line)
        if (not line.strip() and size >= DOCUMENT_CHARACTERS) or size >= LINE_BYTES:
            yield "".join(held).strip("\n")
            held, size = [], 0
    if held:
        yield "".join(held).strip("\n")


def _records(file: IO[bytes], field: str, counts: Counts) -> Iterator[str]:
    for raw in file:
        if not raw.strip():
            continue
        try:
            text = json.loads(_decode(raw, counts))[field]
        except (ValueError, KeyError, TypeError, RecursionError):
            text = None
        if isinstance(text, str):
            text, halves = SURROGATES.subn("\ufffd", text)
            counts.invalid_utf8 += halves > 0
            yield text
        else:
            counts.bad_records += 1


def _hub_documents(name: str, field: str, counts: Counts) -> Iterator[str]:
    datasets = import_datasets()
    path, config, split = [*name.split(":"), "", ""][:3]
    with loading(f"hf:{name}"):
        rows: Any = datasets.load_dataset(
            path, config or None, split=split or "train", streaming=True
        )
    for row in rows:
        if isinstance(row.get(field), str):
            yield row[field]
        else:
            counts.bad_records += 1


@contextmanager
def loading(source: str) -> Iterator[None]:
    """Say in one line why a source of the hub can't be loaded, and what can be done offline.

    Raises:
        ConfigError: If it can't.
    """
    library = logging.getLogger("huggingface_hub")  # tells of every retry
    before = library.level
    library.setLevel(logging.ERROR)
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError([f"cannot load {source} ({first}); offline, give --data PATH"]) from error
    finally:
        library.setLevel(before)


def import_datasets() -> Any:
    """Import the datasets library, or say which extra has it."""
    try:
        import datasets
    except ImportError as error:
        message = "hf: sources need datasets: pip install 'foundation-transformers[hf]'"
        raise ModuleNotFoundError(message, name="datasets") from error
    return datasets
