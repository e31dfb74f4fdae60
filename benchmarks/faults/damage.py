"""Ways in which a file goes wrong, drawn from a seed."""

from __future__ import annotations

import random

ODD_JSON = (b"", b"[]", b"{}", b"3", b"null", b'"text"', b'[{"a": 1}]', b'{"a": [', b"[" * 9999)


def flip_bits(content: bytes, draw: random.Random) -> bytes:
    """Flip one to eight bits."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(content: bytes, draw: random.Random) -> bytes:
    """Cut the end off."""
    return content[: draw.randrange(len(content))]


def insert(content: bytes, draw: random.Random) -> bytes:
    """Put random bytes somewhere."""
    place = draw.randrange(len(content))
    return content[:place] + draw.randbytes(draw.randint(1, 200)) + content[place:]


def zeros(content: bytes, draw: random.Random) -> bytes:
    """Overwrite a stretch with zeros, as a crash of the machine does."""
    place = draw.randrange(len(content))
    size = min(draw.randint(1, 4096), len(content) - place)
    return content[:place] + bytes(size) + content[place + size :]


def repeat(content: bytes, draw: random.Random) -> bytes:
    """Say a stretch twice."""
    start = draw.randrange(len(content))
    stop = min(len(content), start + draw.randint(1, 500))
    return content[:stop] + content[start:]


def carriage_returns(content: bytes, draw: random.Random) -> bytes:
    """End lines with a carriage return alone."""
    return content.replace(b"\n", b"\r")


def utf_16(content: bytes, draw: random.Random) -> bytes:
    """Write the text in UTF-16."""
    return content.decode("utf-8", errors="replace").encode("utf-16")


def other_json(content: bytes, draw: random.Random) -> bytes:
    """Replace it by JSON of another kind."""
    return draw.choice(ODD_JSON)


def noise(content: bytes, draw: random.Random) -> bytes:
    """Replace it by random bytes."""
    return draw.randbytes(draw.randint(1, 5000))


ANY = (flip_bits, cut, insert, zeros, repeat, noise)
OF_TEXT = (*ANY, carriage_returns, utf_16, other_json)


def typo(text: str, draw: random.Random) -> str:
    """Return a recipe with one slip of the keyboard in a line that says something."""
    lines = text.splitlines()
    number = draw.choice([n for n, line in enumerate(lines) if line and not line.startswith("#")])
    line, kind = lines[number], draw.randrange(6)
    place = draw.randrange(len(line))
    if kind == 0:
        lines[number] = line[:place] + line[place + 1 :]
    elif kind == 1:
        lines[number] = line[:place] + draw.choice("abz:,-{}[]&*!%@#'\"\t0") + line[place:]
    elif kind == 2:
        lines.insert(number, line)
    elif kind == 3:
        lines[number] = " " * draw.randint(1, 5) + line
    elif kind == 4:
        lines[number] = line[:place]
    else:
        lines[number] = line.partition(":")[0] + ": " + draw.choice(ODD_VALUES)
    return "\n".join(lines) + "\n"


# What nobody should give for a field, and some do.
ODD_VALUES = (
    "inf", "nan", "-1", "0", "1e400", "-2000", "9" * 30, "1e12", "x", "''", "null", "[]", "{}",
    "[1, 2, 3]", "{a: b}", "true", "1.5", "/nowhere/file", "hf:", "builtin:", "os:system",
)  # fmt: skip
