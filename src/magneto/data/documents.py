"""Documents from wherever they lie: PATH, hf:NAME[:CONFIG[:SPLIT]] or builtin:NAME.

A path is a file or a folder of .txt and .jsonl, each maybe packed. In plain text a document is a
run of paragraphs; a .jsonl line is a document. Nothing is left out in silence: what is odd is
counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from magneto.data import builtin
from magneto.data.cache import file_states, fingerprint
from magneto.data.counts import EMPTY, Counts
from magneto.data.files import open_text, source_files
from magneto.data.problems import BadRecord, read_each
from magneto.data.records import decoded, read_objects
from magneto.data.sources import HubDataset, check_builtin, hub_files, parse_source

ENDINGS = (".txt", ".jsonl")
# A document of plain text ends at the first blank line after so many characters.
DOCUMENT_CHARACTERS = 4096
# A longer line is cut, so that one file without line ends does not fill the memory.
PIECE_BYTES = 1 << 20

# What a document of plain text is.
PARAGRAPHS, LINE = "paragraphs", "line"

DOCUMENTS = "documents"
CUT_LINES = "over-long lines cut"


def read_documents(
    source: str, field: str, counts: Counts, unit: str = PARAGRAPHS
) -> Iterator[str]:
    """Yield the documents of a source.

    Args:
        source: PATH, hf:NAME[:CONFIG[:SPLIT]] (the hub or a local folder) or builtin:NAME.
        field: Key of the text in .jsonl and Hugging Face records.
        counts: Filled while reading.
        unit: What a document of plain text is: a run of paragraphs, or a line.

    Raises:
        FileNotFoundError: If there is no such path; names the nearest one.
        ValueError: If a name is unknown, a folder holds nothing to read or a file is damaged.
    """
    for text in _all_documents(source, field, counts, unit):
        if text.strip():
            counts[DOCUMENTS] += 1
            yield text
        else:
            counts[EMPTY] += 1


def _all_documents(source: str, field: str, counts: Counts, unit: str) -> Iterator[str]:
    found = parse_source(source)
    if found.kind == "builtin":
        check_builtin(found, builtin.NAMES, "text")
        yield from builtin.docstrings()
    elif found.kind == "hf":
        rows = HubDataset(found).load(found.config, found.split or "train", streaming=True)
        yield from read_each(rows, partial(_text, field=field), counts, f"{source}, row")
    else:
        for path in source_files(source, ENDINGS):
            if ".jsonl" in path.name:
                yield from read_objects(path, counts, partial(_text, field=field))
            elif unit == LINE:
                yield from (line.rstrip("\r\n") for line in _pieces(path, counts))
            else:
                yield from _plain_documents(path, counts)


def _text(record: Any, field: str) -> str:
    text = record.get(field)
    if not isinstance(text, str):
        raise BadRecord(f"no text in {field!r}")
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
    """Yield decoded lines, with their ends; a cut of a long one does not split a character."""
    held, whole, number = b"", True, 0
    with open_text(path) as file:
        while piece := file.readline(PIECE_BYTES):
            number += whole
            cut = len(piece) == PIECE_BYTES and not piece.endswith(b"\n")
            if cut or held:
                counts[CUT_LINES] += cut and whole
                piece = held + piece
                end = _last_character(piece) if cut else len(piece)
                piece, held = piece[:end], piece[end:]
            whole = not cut
            yield decoded(piece, counts, path, number)
    if held:
        yield decoded(held, counts, path, number)


def _last_character(piece: bytes) -> int:
    """Return where the last character of UTF-8 bytes begins, which may be unfinished."""
    starts = (len(piece) - back for back in range(1, 5) if piece[-back] & 0xC0 != 0x80)
    return next(starts, len(piece))


def documents_fingerprint(source: str, field: str, unit: str = PARAGRAPHS) -> str:
    """Name the content of a source: files by their states, others by name."""
    found = parse_source(source)
    if found.kind == "builtin":
        return fingerprint(source, field, sys.version_info[:3])
    files = hub_files(found) if found.kind == "hf" else source_files(source, ENDINGS)
    place = source if found.kind == "hf" else ""
    return fingerprint(place, file_states(files), field, unit)
