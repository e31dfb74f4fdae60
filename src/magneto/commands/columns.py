"""Tables of words, as the commands print them."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown, its first line the head."""
    rule = "|" + "|".join(["---"] + ["--:"] * (len(lines[0]) - 1)) + "|"
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([rows[0], rule, *rows[1:]])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return a table in columns, the first one to the left."""
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(wide[0]), *map(str.rjust, line[1:], wide[1:])]) for line in lines
    )
