"""Write docs/map.md and docs/map.svg: every module, and which room may import which.

The modules come from src/magneto and the first lines of their docstrings, the arrows from the table
in tests/test_imports.py. Needs the standard library only: python docs/generate_map.py
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

from draw_map import BOXES, drawing
from write_pages import write_or_check

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "magneto"
IMPORT_TEST = DOCS.parent / "tests" / "test_imports.py"
TABLE_NAMES = ("GROUND", "FIELDS", "FIELD", "ALLOWED", "LAZILY")

# Rooms with a box of their own. Of the others a package is a field if it may import `nn`; the rest
# are the ground.
BELOW_FIELDS = ("nn", "data", "training", "recipe", "runs")
ABOVE_FIELDS = ("analysis", "hf", "commands")

PAGE = """# The map

Written by `python docs/generate_map.py`, which `make docs` runs, from the docstrings of the modules
and the table in `tests/test_imports.py`.

![Which room may import which](map.svg)

An arrow says *may import*. Arrows that follow from others are left out, and so are those to the
ground. Dotted: only the configuration (`config.py`), which needs no torch. Dashed: only inside
functions that export or decode.

## Who may import whom

| room | may import |
|---|---|
{table}

A test refuses whatever is not in the table. `commands` and `cli` may import everything; `cli`
imports a command when it is called.

{rooms}
"""


def read_table() -> dict[str, Any]:
    """Return the import test's table; it is read, since the test itself needs pytest."""
    names: dict[str, Any] = {}
    for node in ast.parse(IMPORT_TEST.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in TABLE_NAMES:
            exec(compile(ast.Module([node], []), str(IMPORT_TEST), "exec"), names)
    return {name: names[name] for name in TABLE_NAMES}


def fields(table: dict[str, Any]) -> list[str]:
    """Return the rooms that are fields, in the alphabet's order."""
    known = {*BELOW_FIELDS, *ABOVE_FIELDS}
    return sorted(
        room for room, may in table["ALLOWED"].items() if "nn" in may and room not in known
    )


def ground(table: dict[str, Any]) -> list[str]:
    """Return the rooms that everything stands on, in the table's order."""
    known = {*BELOW_FIELDS, *ABOVE_FIELDS, *fields(table)}
    return [room for room in table["ALLOWED"] if room not in known]


def arrows(table: dict[str, Any]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return the arrows between boxes: of whole rooms, and of a room's configuration alone.

    Those of whole rooms that follow from others are left out.
    """
    whole: dict[str, set[str]] = {"cli": {"commands"}, "commands": {*BOXES} - {"cli", "commands"}}
    part: set[tuple[str, str]] = set()
    rooms = {room: "fields" if room in fields(table) else room for room in table["ALLOWED"]}
    for room, targets in table["ALLOWED"].items():
        for target in targets:
            other, _, module = target.partition(".")
            start, end = rooms[room], rooms.get(other, other)
            if start not in BOXES or end not in BOXES or start == end:
                continue
            if module == "config":
                part.add((start, end))
            else:
                whole.setdefault(start, set()).add(end)
    return {
        (start, end)
        for start, ends in whole.items()
        for end in ends
        if not any(end in reached(whole, between) for between in ends - {end})
    }, part


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return everything that can be reached from a node."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        for node in graph.get(ahead.pop(), set()) - found:
            found.add(node)
            ahead.append(node)
    return found


def table_lines(table: dict[str, Any]) -> str:
    """Return the import table as rows of Markdown, fields last."""
    rows = []
    for room in sorted(table["ALLOWED"], key=lambda room: room * (room in fields(table))):
        targets = table["ALLOWED"][room]
        said = ", ".join(f"`{target}`" for target in sorted(targets)) or "nothing of ours"
        lazily = ", ".join(f"`{target}`" for target in sorted(table["LAZILY"].get(room, ())))
        rows.append(f"| `{room}` | {said}{f'; inside functions {lazily}' if lazily else ''} |")
    return "\n".join(rows)


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]


def room_section(room: str) -> str:
    """Return a room's heading, what it is, and a row for each of its modules."""
    folder = SOURCE / room
    if not folder.is_dir():
        return f"## {room}.py\n\n{first_line(SOURCE / f'{room}.py')}"
    rows = [
        f"| `{path.relative_to(folder)}` | {first_line(path).replace('|', chr(92) + '|')} |"
        for path in sorted(folder.rglob("*.py"), key=lambda p: (p.parent != folder, p))
        if path.name != "__init__.py"
    ]
    head = f"## {room}/\n\n{first_line(folder / '__init__.py')}"
    return "\n".join([head, "", "| file | |", "|---|---|", *rows])


def page(table: dict[str, Any]) -> str:
    """Return the page."""
    rooms = [*ground(table), *BELOW_FIELDS, *fields(table), *ABOVE_FIELDS, "cli"]
    return PAGE.format(table=table_lines(table), rooms="\n\n".join(map(room_section, rooms)))


def generated() -> dict[Path, str]:
    """Return the files and what is to stand in them."""
    table = read_table()
    whole, part = arrows(table)
    picture = drawing(whole, part - whole, bool(table["LAZILY"]), fields(table), ground(table))
    return {DOCS / "map.md": page(table), DOCS / "map.svg": picture}


def main(words: list[str]) -> int:
    """Write the pages; or, with --check, only say whether they are as they would be written."""
    return write_or_check(generated(), DOCS, "generate_map.py", words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
