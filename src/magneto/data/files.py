"""Files to read: found, unpacked, read as lines, objects and rows. What is odd is counted.

A line ends at a line feed and nowhere else; a carriage return before it belongs to the end.
"""

from __future__ import annotations

import bz2
import csv
import errno
import gzip
import io
import json
import lzma
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from magneto.config import LARGEST, shown
from magneto.data.problems import (
    HALF_CHARACTERS,
    INVALID_UTF8,
    LONG_LINES,
    MALFORMED,
    NO_FILES,
    BadRecord,
    Counts,
    guarded,
    read_each,
)
from magneto.files import nearest_path, user_path

PACKINGS: dict[str, tuple[str, Any]] = {
    ".gz": ("gzip", gzip.GzipFile), ".xz": ("xz", lzma.LZMAFile), ".bz2": ("bzip2", bz2.BZ2File),
}  # fmt: skip
# First bytes of packed files, whatever they are called; and of files that hold no text at all.
SIGNATURES = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\0": ".xz", b"BZh": ".bz2"}
NO_TEXT = {
    b"PK\x03\x04": "a zip archive", b"%PDF-": "a PDF", b"\x28\xb5\x2f\xfd": "packed by zstd",
    b"7z\xbc\xaf": "a 7z archive", b"PAR1": "a Parquet table",
}  # fmt: skip
# Share of characters that are not UTF-8 above which a file is taken for something else.
MOST_INVALID = 0.3
# Endings that no part of Python 3.11 to 3.13 can read, and what unpacks them.
UNREAD = {".zst": "zstd -d --rm"}
DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, OSError)
# Bytes unpacked at a time; and looked at to tell text from what is none.
BUFFER = 1 << 17
FIRST_BLOCK = 1 << 13
FEW_BYTES = 64
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def unpacked_name(path: Path) -> str:
    """Return a file's name without the ending of its packing."""
    packed = path.suffix in PACKINGS or path.suffix in UNREAD
    return path.name.removesuffix(path.suffix) if packed else path.name


def has_ending(path: Path, endings: tuple[str, ...]) -> bool:
    """Return whether a path is a file whose name, unpacked, has one of the endings."""
    return unpacked_name(path).endswith(endings) and os.path.isfile(path)


def existing_path(name: str) -> Path:
    """Return the path of a file or folder.

    Raises:
        FileNotFoundError: If there is none, but maybe a device; names the nearest.
    """
    if not name.strip():
        raise FileNotFoundError("no file or folder is named: the source is empty")
    path = user_path(name)
    if not os.path.exists(path):
        raise FileNotFoundError(f"no file or folder {name}{nearest_path(path)}")
    if not path.is_file() and not path.is_dir():  # a pipe or a device, which may never end
        raise FileNotFoundError(f"{name} is neither a file nor a folder")
    return path


def walk_files(folder: Path, counts: Counts | None = None) -> Iterator[Path]:
    """Yield the files below a folder, in the order of their names, those of a folder first.

    Links to folders are followed, and a folder is visited once, however many links lead to it.
    What is hidden is left out.

    Args:
        folder: Where to begin.
        counts: Told of what is no file: pipes, sockets, devices, links to nothing, and folders
            that can't be read.
    """
    visited = set()
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            found = place.stat()
            if (found.st_dev, found.st_ino) in visited:
                continue
            visited.add((found.st_dev, found.st_ino))
            with os.scandir(place) as opened:
                inside = sorted(opened, key=lambda entry: entry.name)
        except OSError as error:
            if counts is not None:
                counts.met(NO_FILES, str(place), error.strerror or "can't be read")
            continue
        folders = []
        for entry in inside:
            path = place / entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_file(follow_symlinks=False) or os.path.isfile(path):
                yield path
            elif os.path.isdir(path):
                folders.append(path)
            elif counts is not None:
                counts.met(NO_FILES, str(path), "no regular file")
        waiting += reversed(folders)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: If it can't be read, or is a pipe, a socket or a device: to open one may wait for
            ever.
        ValueError: If no path can be so.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return path.read_bytes()


@contextmanager
def open_text(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file that can be text in UTF-8, unpacked, behind a byte-order mark if there is one.

    What gzip, xz or bzip2 has packed is known by its first bytes, whatever it is called.

    Raises:
        ValueError: If its beginning is that of something else: has NUL bytes, or hardly any UTF-8;
            here or on reading on, if a packed file is cut off, damaged or can't be unpacked.
    """
    if path.suffix in UNREAD:
        raise ValueError(f"{path}: unpack it first ({UNREAD[path.suffix]} {path.name})")
    with path.open("rb") as raw:
        first = raw.read(8)
    packing = next((ending for bytes_, ending in SIGNATURES.items() if first.startswith(bytes_)),
                   path.suffix)  # fmt: skip
    kind, unpack = PACKINGS.get(packing, ("", io.FileIO))
    with io.BufferedReader(unpack(path, "rb"), BUFFER) as file:
        try:
            if file.peek(len(BYTE_ORDER_MARK)).startswith(BYTE_ORDER_MARK):
                file.read(len(BYTE_ORDER_MARK))
            if why := _no_text(file.peek(FIRST_BLOCK)[:FIRST_BLOCK]):
                raise ValueError(f"{path} is not text in UTF-8: {why}")
            yield file
        except DAMAGE as error:
            if not kind:
                raise
            raise ValueError(f"{path}: damaged {kind} file ({error})") from error


def _no_text(block: bytes) -> str:
    """Return why the first block of a file is no text, or nothing."""
    for signature, kind in NO_TEXT.items():
        if block.startswith(signature):
            return f"it is {kind}"
    if b"\0" in block:
        return "it has NUL bytes"
    characters = block.decode("utf-8", errors="replace")
    replaced = characters.count("\ufffd") - block.count(b"\xef\xbf\xbd")  # less the author's own
    invalid = replaced / max(len(characters), 1)
    if len(block) < FEW_BYTES or invalid <= MOST_INVALID:
        return ""
    return f"{invalid:.0%} of its first characters are not"


# A longer line would fill the memory.
LINE_BYTES = 1 << 26
# How JSON spells the half of a character, and the half itself.
SPELT_HALF = re.compile(r"\\u[dD][89a-fA-F]")
HALF = re.compile("[\ud800-\udfff]")

# Files of records; the last two name their columns in the first line.
RECORDS = (".jsonl", ".json", ".csv", ".tsv")

Record = dict[str, Any]
R = TypeVar("R")


def read_lines(path: Path, counts: Counts) -> Iterator[str]:
    """Yield the lines of a file with their ends; one that is too long is counted, and is empty.

    Raises:
        ValueError: If the file is damaged, or is no text in lines.
    """
    with open_text(path) as file:
        for number, raw in enumerate(iter(partial(file.readline, LINE_BYTES), b""), 1):
            if raw.endswith(b"\n"):
                yield decoded(raw, counts, path, number)
                continue
            if number == 1 and b"\r" in raw.rstrip(b"\r"):
                raise ValueError(f"{path}: its lines end in a carriage return alone; "
                                 "make them end in a line feed")  # fmt: skip
            if len(raw) == LINE_BYTES:
                why = f"longer than {LINE_BYTES:,} bytes"
                counts.met(LONG_LINES, f"{path}, line {number}", why)
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(LINE_BYTES)
                raw = b"\n"
            yield decoded(raw, counts, path, number)


def decoded(raw: bytes, counts: Counts, path: Path, number: int) -> str:
    """Decode a line; what is not UTF-8 becomes U+FFFD and is counted."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        counts.met(INVALID_UTF8, f"{path}, line {number}", f"not UTF-8 ({error.reason})")
        return raw.decode("utf-8", errors="replace")


def read_objects(
    path: Path, counts: Counts, read: Callable[[Record], R | None] = lambda record: record
) -> Iterator[R]:
    """Yield what is read of each JSON object of a file that has one per line.

    Blank lines are nothing. Halves of a character, which no tokenizer takes, become U+FFFD.

    Args:
        path: The file, maybe packed.
        counts: Told of lines that are no objects, and of those that can't be read.
        read: Of an object; see `read_each`. By default the object itself.
    """

    def parse(line: str) -> R | None:
        return read(parse_object(line, counts)) if line.strip() else None

    return read_each(read_lines(path, counts), parse, counts, f"{path}, line")


def parse_object(text: str, counts: Counts) -> Record:
    """Return an object of JSON; raises BadRecord or what json does if it is none."""
    return _is_object(parse_value(text, counts))


def parse_value(text: str, counts: Counts) -> Any:
    """Return a value of JSON, with U+FFFD for halves of a character; raises what json does."""
    value = json.loads(text)
    if not SPELT_HALF.search(text):
        return value
    whole = _whole(value)
    counts[HALF_CHARACTERS] += whole != value
    return whole


def _is_object(value: Any) -> Record:
    if not isinstance(value, dict):
        raise BadRecord("not a JSON object")
    return value


def read_rows(
    path: Path,
    rows: Iterable[list[str]],
    names: Sequence[str],
    counts: Counts,
    read: Callable[[Record], R | None] = lambda record: record,
) -> Iterator[R]:
    """Yield what is read of each row of a table, as an object with the names of its columns.

    Blank rows are nothing; one with another number of cells is malformed.

    Args:
        path: Of the table.
        rows: Its rows, without the names.
        names: Of its columns.
        counts: Told of malformed rows.
        read: Of an object; see `read_each`. By default the object itself.
    """

    def parse(cells: list[str]) -> R | None:
        if not any(cells):
            return None
        if len(cells) != len(names):
            raise BadRecord(f"{len(cells)} cells, not {len(names)}")
        return read(dict(zip(names, cells, strict=True)))

    return read_each(rows, parse, counts, f"{path}, row", first=2)


def read_list(path: Path, key: str | None, counts: Counts) -> list[Any]:
    """Return the list in a file of JSON; halves of a character in it become U+FFFD.

    Args:
        path: The file, maybe packed.
        key: Of the object that has the list; None where the file is the list.
        counts: Told of halves of a character.

    Raises:
        ValueError: If the file is damaged, or holds no such list.
    """
    with open_text(path) as file:
        raw = file.read()
    with guarded(prefix=f"{path} is not JSON: "):
        found = json.loads(raw.decode())  # json itself lets halves of a character through
    rows = found
    if key is not None:
        rows = found.get(key) if isinstance(found, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"{path} has no list" + (f' of "{key}"' if key else ""))
    if SPELT_HALF.search(raw.decode(errors="ignore")):
        with guarded(prefix=f"{path}: "):
            whole = [_whole(row) for row in rows]
        counts[HALF_CHARACTERS] += sum(a != b for a, b in zip(whole, rows, strict=True))
        return whole
    return rows


def whole_number(record: Any, key: str) -> int:
    """Return a number of an object, from 0: it is written as such, not as text or a fraction.

    Raises:
        BadRecord: If there is none under the key.
    """
    if not isinstance(record, dict):
        raise BadRecord("not a JSON object")
    value = record.get(key)
    if type(value) is not int or not 0 <= value < LARGEST:
        raise BadRecord(f"its {key} is no whole number: {shown(value)}")
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return HALF.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_whole(key): _whole(part) for key, part in value.items()}
    return [_whole(part) for part in value] if isinstance(value, list) else value


def read_tabs(path: Path, counts: Counts) -> Iterator[list[str]]:
    """Yield the rows of a table cut at tabs, where quotes are text, as in GLUE's files."""
    for line in read_lines(path, counts):
        yield line.rstrip("\r\n").split("\t")


def quoted_separator(path: Path) -> str:
    """Return what is between the cells of a .csv: ";" where its first line has these alone."""
    first = next(read_lines(path, Counts()), "")
    return ";" if ";" in first and "," not in first else ","


def read_quoted(path: Path, counts: Counts) -> Iterator[list[str]]:
    """Yield the rows of a table as spreadsheets write it: in quotes, cells may hold line ends.

    A row that can't be parsed is counted, by its lines, and the next is read: also all that follow
    a quote which is never closed. A blank line has no cells.
    """
    csv.field_size_limit(LINE_BYTES)  # of the whole process; else 131,072, where a book is more
    between = quoted_separator(path)
    rows = csv.reader(read_lines(path, counts), strict=True, delimiter=between)
    while True:
        first = rows.line_num + 1
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            why = str(error).replace("unexpected end of data", "a quote is never closed")
            counts.met(MALFORMED, f"{path}, line {first}", why)
            counts[MALFORMED] += rows.line_num - first


def is_table(path: Path) -> bool:
    """Return whether a file of records names its columns in the first line."""
    return unpacked_name(path).endswith((".csv", ".tsv"))


def open_table(path: Path, counts: Counts) -> tuple[list[str], Iterator[list[str]]]:
    """Return the names of a table's columns, and its rows."""
    is_quoted = unpacked_name(path).endswith(".csv")
    cells = read_quoted(path, counts) if is_quoted else read_tabs(path, counts)
    return [word.strip() for word in next(cells, [])], cells


def stream_records(
    path: Path, counts: Counts, read: Callable[[Record], R | None] = lambda record: record
) -> Iterator[R]:
    """Yield what is read of each record of a file, one after the other; a list is read whole.

    Args:
        path: One of `RECORDS`, maybe packed, or a .tar file, whose members of text have a "text".
        counts: Told of what can't be read.
        read: Of a record; see `read_each`. By default the record itself.

    Raises:
        ValueError: If the file is damaged.
    """
    if path.suffix == ".tar":

        def parse(member: tuple[str, bool]) -> R | None:
            text, is_json = member
            return read(parse_object(text, counts) if is_json else {"text": text})

        return read_each(_members(path, counts), parse, counts, f"{path}, member")
    if is_table(path):
        header, cells = open_table(path, counts)
        return read_rows(path, cells, header, counts, read)
    if unpacked_name(path).endswith(".json") and _is_list(path):
        rows = read_list(path, None, counts)
        return read_each(rows, lambda row: read(_is_object(row)), counts, f"{path}, record")
    return read_objects(path, counts, read)


def _is_list(path: Path) -> bool:
    with open_text(path) as file:
        return file.peek(1 << 12).lstrip()[:1] == b"["


def tar_members(file: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the files in a tar file, one after the other.

    Raises:
        tarfile.ReadError: If it is cut off.
        BadRecord: If a header is damaged: Python's own reader takes it for the end, and says
            nothing.
    """
    for member in file:
        vars(file)["members"] = []  # it would keep them all
        if member.isreg():
            yield member
    assert file.fileobj is not None
    file.fileobj.seek(file.offset)
    if file.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise BadRecord(f"damaged at byte {file.offset:,}: what follows is left out")


def _members(shard: Path, counts: Counts) -> Iterator[tuple[str, bool]]:
    """Yield the members of text or of JSON of a tar file, and whether they are of JSON."""
    try:
        with guarded(), tarfile.open(shard, "r:") as file:
            for member in tar_members(file):
                place, is_json = shard / member.name, member.name.lower().endswith(".json")
                if not (is_json or member.name.lower().endswith(".txt")):
                    continue
                if member.size > LINE_BYTES:
                    counts.met(LONG_LINES, str(place), f"longer than {LINE_BYTES:,} bytes")
                elif opened := file.extractfile(member):
                    yield decoded(opened.read(), counts, place, 1), is_json
    except BadRecord as error:
        counts.met(MALFORMED, str(shard), str(error))
