"""BEiT-3's SentencePiece model with the numbers that its authors give to pieces.

They read beit3.spm by XLM-RoBERTa's tokenizer, in fairseq's order: `<s>`, `<pad>`, `</s>`, `<unk>`,
then the pieces from the model's fourth on, then `<mask>`. The file itself begins with `<unk>`,
`<s>`, `</s>`. So it is written anew with its pieces in that order, and read as any other model.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

# Field of a SentencePiece model that holds a piece, and those of a piece: name, score, type.
PIECE = 1
NAME, SCORE, TYPE = 1, 2, 3
# Type of a piece that no text is cut into.
CONTROL = 3
LENGTH_DELIMITED = 2
FILE_BEGINS = ("<unk>", "<s>", "</s>")


def write_fairseq_order(source: Path, target: Path, size: int) -> None:
    """Write a SentencePiece model with its pieces in fairseq's order.

    Args:
        source: beit3.spm.
        target: The model to write.
        size: Pieces wanted, those of the word embedding; what lacks is filled with pieces that no
            text has (64,010 where beit3.spm gives 64,002).

    Raises:
        FileNotFoundError: If the source is not there.
        ValueError: If it is no SentencePiece model, has its pieces in another order, or too many.
    """
    if not source.is_file():
        raise FileNotFoundError(f"no tokenizer {source}")
    try:
        fields = list(read_fields(source.read_bytes()))
        pieces = [content for number, content in fields if number == PIECE]
        begins = tuple(piece_name(piece) for piece in pieces[: len(FILE_BEGINS)])
    except (IndexError, ValueError) as error:
        raise ValueError(f"{source} is no SentencePiece model") from error
    if begins != FILE_BEGINS:
        raise ValueError(f"{source} is no SentencePiece model as BEiT-3's: it begins with "
                         f"{', '.join(begins)}, not with {', '.join(FILE_BEGINS)}")  # fmt: skip
    unknown, *others = [pieces[0], *pieces[len(FILE_BEGINS) :]]
    made = [*map(control_piece, ("<s>", "<pad>", "</s>")), unknown, *others]
    made.append(control_piece("<mask>"))
    if len(made) > size:
        raise ValueError(f"{source} has {len(made):,} pieces with <mask>, the model {size:,} words")
    made += [control_piece(f"<unused{number}>") for number in range(size - len(made))]
    rest = [write_field(number, content) for number, content in fields if number != PIECE]
    target.write_bytes(b"".join([*(write_field(PIECE, piece) for piece in made), *rest]))


def read_fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (number, content) of the fields of a message that has none but messages and strings.

    Raises:
        ValueError: If it has others, or ends too early.
    """
    place = 0
    while place < len(content):
        key, place = read_number(content, place)
        length, place = read_number(content, place)
        if key & 7 != LENGTH_DELIMITED or place + length > len(content):
            raise ValueError("no such message")
        yield key >> 3, content[place : place + length]
        place += length


def piece_name(piece: bytes) -> str:
    """Return the name of a piece, which is its first field."""
    key, place = read_number(piece, 0)
    length, place = read_number(piece, place)
    if key != NAME << 3 | LENGTH_DELIMITED:
        raise ValueError("no piece")
    return piece[place : place + length].decode("utf-8")


def control_piece(name: str) -> bytes:
    """Return a piece that no text is cut into."""
    score = bytes([SCORE << 3 | 5]) + struct.pack("<f", 0.0)
    return write_field(NAME, name.encode()) + score + bytes([TYPE << 3, CONTROL])


def write_field(number: int, content: bytes) -> bytes:
    """Return a field that is a message or a string."""
    return write_number(number << 3 | LENGTH_DELIMITED) + write_number(len(content)) + content


def read_number(content: bytes, place: int) -> tuple[int, int]:
    """Return a number of variable length, and the place after it."""
    found, shift = 0, 0
    while content[place] & 128:
        found |= (content[place] & 127) << shift
        place, shift = place + 1, shift + 7
    return found | content[place] << shift, place + 1


def write_number(number: int) -> bytes:
    """Return a number in seven bits a byte, the lowest first."""
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])
