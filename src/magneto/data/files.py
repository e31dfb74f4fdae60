"""Reading of text files: decompression, lines, JSON objects, table rows, and error counts."""

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
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from magneto.config import LARGEST, abbreviate
from magneto.data.problems import (
    HALF_CHARACTERS,
    INVALID_UTF8,
    LONG_LINES,
    MALFORMED,
    NO_FILES,
    BadRecord,
    Counts,
    guarded,
    number_each,
)
from magneto.files import nearest_path, user_path

PACKINGS: dict[str, tuple[str, Any]] = {
    ".gz": ("gzip", gzip.GzipFile), ".xz": ("xz", lzma.LZMAFile), ".bz2": ("bzip2", bz2.BZ2File),
}  # fmt: skip
# First bytes of compressed files, and of files that are not text.
SIGNATURES = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\0": ".xz", b"BZh": ".bz2"}
NO_TEXT = {
    b"PK\x03\x04": "a zip archive", b"%PDF-": "a PDF", b"\x28\xb5\x2f\xfd": "a zstd file",
    b"7z\xbc\xaf": "a 7z archive", b"PAR1": "a Parquet table",
}  # fmt: skip
# Share of invalid UTF-8 above which a file is not text.
LARGEST_INVALID_SHARE = 0.3
# Endings that Python 3.11 to 3.13 can't read, and commands that unpack them.
UNREAD = {".zst": "zstd -d --rm"}
DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, OSError)
# Bytes unpacked at a time, and bytes that are checked for text.
BUFFER = 1 << 17
FIRST_BLOCK = 1 << 13
FEW_BYTES = 64
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def unpacked_name(path: Path) -> str:
    """Return a file's name without .gz, .xz, .bz2 or .zst at the end."""
    packed = path.suffix in PACKINGS or path.suffix in UNREAD
    return path.name.removesuffix(path.suffix) if packed else path.name


def has_ending(path: Path, endings: tuple[str, ...]) -> bool:
    """Return whether a path is a file whose name ends in one of `endings`.

    Upper case and a further ending such as .gz do not matter.
    """
    return unpacked_name(path).lower().endswith(endings) and os.path.isfile(path)


def existing_path(name: str) -> Path:
    """Return the path of a file or folder.

    Raises:
        FileNotFoundError: If the path is not a file or folder.
    """
    if not name.strip():
        raise FileNotFoundError("no path is given: name a file or a folder")
    path = user_path(name)
    if not os.path.exists(path):
        raise FileNotFoundError(f"no file or folder {name}{nearest_path(path)}")
    if not path.is_file() and not path.is_dir():  # a pipe or device may never end
        raise FileNotFoundError(f"{name} is neither a file nor a folder")
    return path


def walk_files(folder: Path, counts: Counts | None = None) -> Iterator[Path]:
    """Yield the files below a folder, sorted by name, with files before subfolders.

    Links to folders are followed, but no folder is visited twice. Hidden files and hidden folders
    are skipped. Pipes, sockets, devices, broken links and unreadable folders are counted.
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
                counts.record(NO_FILES, str(place), error.strerror or "can't be read")
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
                counts.record(NO_FILES, str(path), "not a regular file")
        waiting += reversed(folders)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: If the file is a pipe or device, which might never end.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return path.read_bytes()


@contextmanager
def open_text(path: Path) -> Iterator[io.BufferedReader]:
    """Open a UTF-8 text file, decompressed and without its byte-order mark.

    The first bytes of a file show whether gzip, xz or bzip2 compressed the file.

    Raises:
        ValueError: If the file has NUL bytes, is mostly invalid UTF-8, or is damaged. In a damaged
            compressed file, the error may come later, while the caller reads the file.
    """
    if path.suffix in UNREAD:
        raise ValueError(f"{path} is compressed: unpack it ({UNREAD[path.suffix]} {path.name})")
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
    for signature, kind in NO_TEXT.items():
        if block.startswith(signature):
            return f"it is {kind}"
    if b"\0" in block:
        return "it has NUL bytes"
    characters = block.decode("utf-8", errors="replace")
    replaced = characters.count("\ufffd") - block.count(b"\xef\xbf\xbd")  # less those in the file
    invalid = replaced / max(len(characters), 1)
    if len(block) < FEW_BYTES or invalid <= LARGEST_INVALID_SHARE:
        return ""
    return f"{invalid:.0%} of its first characters are invalid"


# Longest line, in bytes.
LINE_BYTES = 1 << 26
# JSON's escape of a lone surrogate, and the surrogate itself.
SPELT_HALF = re.compile(r"\\u[dD][89a-fA-F]")
HALF = re.compile("[\ud800-\udfff]")

# Endings of record files; the last two have a header.
RECORDS = (".jsonl", ".json", ".csv", ".tsv")

Record = dict[str, Any]
R = TypeVar("R")


def read_lines(path: Path, counts: Counts) -> Iterator[str]:
    """Yield the lines of a file with their line ends.

    A line of more than `LINE_BYTES` bytes is counted and replaced by an empty line.

    Raises:
        ValueError: If the file is damaged, is not text, or ends lines by carriage returns alone.
    """
    with open_text(path) as file:
        for number, raw in enumerate(iter(partial(file.readline, LINE_BYTES), b""), 1):
            if raw.endswith(b"\n"):
                yield decode_line(raw, counts, path, number)
                continue
            if number == 1 and b"\r" in raw.rstrip(b"\r"):
                raise ValueError(f"{path}: lines end in a carriage return alone. "
                                 "Convert the carriage returns to line feeds.")  # fmt: skip
            if len(raw) == LINE_BYTES:
                why = f"longer than {LINE_BYTES:,} bytes"
                counts.record(LONG_LINES, f"{path}, line {number}", why)
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(LINE_BYTES)
                raw = b"\n"
            yield decode_line(raw, counts, path, number)


def decode_line(raw: bytes, counts: Counts, path: Path, number: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        counts.record(INVALID_UTF8, f"{path}, line {number}", f"not UTF-8 ({error.reason})")
        return raw.decode("utf-8", errors="replace")


def parse_value(text: str, counts: Counts) -> Any:
    value = json.loads(text)
    if not SPELT_HALF.search(text):
        return value
    repaired = _without_surrogates(value)
    counts[HALF_CHARACTERS] += repaired != value
    return repaired


def _as_object(value: Any) -> Record:
    if not isinstance(value, dict):
        raise BadRecord("not a JSON object")
    return value


def number_rows(
    path: Path,
    rows: Iterable[list[str]],
    names: Sequence[str],
    counts: Counts,
    read: Callable[[Record], R | None],
) -> Iterator[tuple[int, R]]:
    """Yield the number of each table row, and the result of `read` for the row.

    `read` gets the row as a dict by column name. The header is row 1. Blank rows are skipped. Rows
    with too few or too many cells are counted as malformed.
    """

    def parse(cells: list[str]) -> R | None:
        if not any(cells):
            return None
        if len(cells) != len(names):
            raise BadRecord(f"{len(cells)} cells instead of {len(names)}")
        return read(dict(zip(names, cells, strict=True)))

    return number_each(rows, parse, counts, f"{path}, row", count(2))


def read_list(path: Path, key: str | None, counts: Counts) -> list[Any]:
    """Return the list that a JSON file contains.

    With `key`, the file contains an object, and the object has the list under this key. Lone
    surrogates are counted and become U+FFFD.

    Raises:
        ValueError: If the file is damaged or has no such list.
    """
    with open_text(path) as file:
        raw = file.read()
    with guarded(prefix=f"{path} is not JSON: "):
        found = json.loads(raw.decode())  # json accepts lone surrogates
    rows = found
    if key is not None:
        rows = found.get(key) if isinstance(found, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"{path} has no list" + (f' of "{key}"' if key else ""))
    if SPELT_HALF.search(raw.decode(errors="ignore")):
        with guarded(prefix=f"{path}: "):
            repaired = [_without_surrogates(row) for row in rows]
        counts[HALF_CHARACTERS] += sum(a != b for a, b in zip(repaired, rows, strict=True))
        return repaired
    return rows


def non_negative_integer(record: Any, key: str) -> int:
    value = _as_object(record).get(key)
    if type(value) is not int or not 0 <= value < LARGEST:
        raise BadRecord(f"{key} must be a whole number, 0 or more, not {abbreviate(value)}")
    return value


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return HALF.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(part) for key, part in value.items()}
    return [_without_surrogates(part) for part in value] if isinstance(value, list) else value


def read_tabs(path: Path, counts: Counts) -> Iterator[list[str]]:
    """Yield the rows of a tab-separated file.

    Quotation marks are ordinary characters, as in the files of the GLUE benchmark.
    """
    for line in read_lines(path, counts):
        yield line.rstrip("\r\n").split("\t")


def quoted_separator(path: Path) -> str:
    first = next(read_lines(path, Counts()), "")
    return next((character for character in ",;\t|" if character in first), ",")


def read_quoted(path: Path, counts: Counts) -> Iterator[list[str]]:
    csv.field_size_limit(LINE_BYTES)  # process-wide; the default of 131,072 is less than a book
    between = quoted_separator(path)
    rows = csv.reader(read_lines(path, counts), strict=True, delimiter=between)
    while True:
        first = rows.line_num + 1
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            why = str(error).replace("unexpected end of data", "unclosed quote")
            counts.record(MALFORMED, f"{path}, line {first}", why)
            counts[MALFORMED] += rows.line_num - first
            yield []  # blank, so that the next row is not taken for this one, or for the header


def is_table(path: Path) -> bool:
    return has_ending(path, (".csv", ".tsv"))


def open_table(path: Path, counts: Counts) -> tuple[list[str], Iterator[list[str]]]:
    cells = (read_quoted if has_ending(path, (".csv",)) else read_tabs)(path, counts)
    return [word.strip() for word in next(cells, [])], cells


def stream_records(
    path: Path, counts: Counts, read: Callable[[Record], R | None] = lambda record: record
) -> Iterator[R]:
    """Yield the result of `read` for each record of a file.

    The file's name ends in .tar, .jsonl, .json, .csv or .tsv. Files other than .tar may be
    compressed. A text file in a .tar file is a record with the field "text". Blank lines are
    skipped. Lone surrogates become U+FFFD, since no tokenizer accepts them.

    Raises:
        ValueError: If the file is damaged.
    """
    return (found for _, found in number_records(path, counts, read))


def unit_of(path: Path) -> str:
    """Return the kind of records in a file: "member", "row", "record" or "line"."""
    if path.suffix == ".tar":
        return "member"
    if is_table(path):
        return "row"
    return "record" if has_ending(path, (".json",)) and is_list(path) else "line"


def number_records(
    path: Path, counts: Counts, read: Callable[[Record], R | None]
) -> Iterator[tuple[int, R]]:
    """Yield each record's number in its file, and the result of `read`; see `stream_records`."""

    def parse_member(member: tuple[str, bool]) -> R | None:
        text, is_json = member
        return read(_as_object(parse_value(text, counts)) if is_json else {"text": text})

    def parse_line(line: str) -> R | None:
        return read(_as_object(parse_value(line, counts))) if line.strip() else None

    unit = unit_of(path)
    where, numbers = f"{path}, {unit}", count(1)
    if unit == "member":
        return number_each(_texts(path, counts), parse_member, counts, where, numbers)
    if unit == "row":
        header, cells = open_table(path, counts)
        return number_rows(path, cells, header, counts, read)
    if unit == "record":
        rows = read_list(path, None, counts)
        return number_each(rows, lambda row: read(_as_object(row)), counts, where, numbers)
    return number_each(read_lines(path, counts), parse_line, counts, where, numbers)


def is_list(path: Path) -> bool:
    """Return whether a JSON file is a list, such as a table of records."""
    with open_text(path) as file:
        return file.peek(1 << 12).lstrip()[:1] == b"["


def tar_members(shard: Path, counts: Counts) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """For each regular file in a tar file, yield the open tar file and the file's `TarInfo`.

    The rest of a damaged or incomplete tar file is skipped, and counted as a malformed record.
    Python's `tarfile` would stop at a damaged header without an error.
    """
    try:
        with guarded(), tarfile.open(shard, "r:") as file:
            end = shard.stat().st_size
            for member in file:
                vars(file)["members"] = []  # the reader would keep all of them
                if member.size < 0 or member.offset_data + member.size > end:
                    raise tarfile.ReadError("unexpected end of data")
                if member.isreg():
                    yield file, member
            assert file.fileobj is not None
            file.fileobj.seek(file.offset)
            if file.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise BadRecord(f"damaged at byte {file.offset:,}; the rest is skipped")
    except BadRecord as error:
        counts.record(MALFORMED, str(shard), str(error))


def _texts(shard: Path, counts: Counts) -> Iterator[tuple[str, bool]]:
    for file, member in tar_members(shard, counts):
        place, name = shard / member.name, member.name.lower()
        if not name.endswith((".json", ".txt")):
            continue
        if member.size > LINE_BYTES:
            counts.record(LONG_LINES, str(place), f"longer than {LINE_BYTES:,} bytes")
        elif opened := file.extractfile(member):
            yield decode_line(opened.read(), counts, place, 1), name.endswith(".json")
