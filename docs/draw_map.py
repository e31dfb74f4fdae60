"""The drawing of the rooms and their arrows, as SVG for a light and a dark page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

Arrow = tuple[str, str]


class Box(NamedTuple):
    """A rectangle of the drawing, with a name and a line below it."""

    x: float
    y: float
    width: float
    height: float
    title: str
    line: str = ""

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


BOXES = {
    "cli": Box(40, 30, 280, 60, "cli", "finds the command; light"),
    "commands": Box(370, 30, 550, 60, "commands", "one file per command; may import everything"),
    "analysis": Box(40, 140, 400, 64, "analysis", "the stability lab: probe, sweep, report"),
    "hf": Box(500, 140, 420, 64, "hf", "the edge to Hugging Face; other people's weights"),
    "runs": Box(40, 256, 300, 64, "runs", "opens a run that is there"),
    "recipe": Box(140, 366, 200, 64, "recipe", "checked without torch"),
    "fields": Box(500, 256, 420, 174, ""),
    "training": Box(40, 486, 260, 64, "training", "the one loop; task.py"),
    "nn": Box(350, 486, 260, 64, "nn", "the backbone"),
    "data": Box(660, 486, 260, 64, "data", "sources, tokenizers, batches"),
}
# What the boxes of the ground say.
LINES = {
    "theory": "gains, bounds",
    "functional": "no parameters",
    "config": "reads mappings",
    "files": "atomic writes",
    "progress": "progress bars",
    "tasks": "a line per task",
    "weights": "shards by rows",
}
WIDTH, HEIGHT = 960, 750
SLAB = Box(40, 590, 880, 126, "")

STYLE = """
svg { font-family: system-ui, sans-serif }
.room { fill: #ffffff; stroke: #5b6b7f; stroke-width: 1.4 }
.field { fill: #e8f1ee; stroke: #3c7d6b; stroke-width: 1.4 }
.ground { fill: #f3ede2; stroke: #99845c; stroke-width: 1.4 }
.slab { fill: #faf7f0; stroke: #99845c; stroke-width: 1.4 }
.title { font-size: 16px; font-weight: 600; fill: #1d2733 }
.line { font-size: 12.5px; fill: #4a5767 }
.arrow { stroke: #5b6b7f; stroke-width: 1.6; fill: none }
.dotted { stroke-dasharray: 1.5 4.5; stroke-linecap: round }
.dashed { stroke-dasharray: 7 5 }
marker path { fill: #5b6b7f }
.sheet { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  .sheet { fill: #14181e }
  .room { fill: #1f262f; stroke: #8b9bb0 }
  .field { fill: #1c2f2a; stroke: #66b39d }
  .ground { fill: #302a1e; stroke: #b99f6d }
  .slab { fill: #231f18; stroke: #b99f6d }
  .title { fill: #eef2f7 }
  .line { fill: #b3bfcd }
  .arrow { stroke: #8b9bb0 }
  marker path { fill: #8b9bb0 }
}
"""


def rectangle(box: Box, kind: str) -> str:
    """Return a box without words."""
    return (
        f'<rect class="{kind}" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" '
        f'height="{box.height:g}" rx="9"/>'
    )


def words(box: Box, y: float, text: str, kind: str = "line") -> str:
    """Return a line of text in the middle of a box."""
    return f'<text class="{kind}" x="{box.x + box.width / 2:g}" y="{y:g}">{escape(text)}</text>'


def draw_box(box: Box, kind: str = "room") -> str:
    """Return a box with its name, and what it is, in the middle."""
    y = box.y + box.height / 2 + (-2 if box.line else 6)
    line = words(box, y + 19, box.line) if box.line else ""
    return rectangle(box, kind) + words(box, y, box.title, "title") + line


def draw_arrow(start: Box, end: Box, kind: str = "") -> str:
    """Return an arrow: straight down where nothing is between, else aside, else in a curve."""
    if start.bottom > end.y and end.bottom > start.y:  # beside one another
        y = max(start.y, end.y) + min(start.height, end.height) / 2
        path = f"M{start.x:g} {y:g} H{end.right + 3:g}"
        if start.right < end.x:
            path = f"M{start.right:g} {y:g} H{end.x - 3:g}"
    else:
        path = down(start, end)
    return arrow(path, kind)


def arrow(path: str, kind: str) -> str:
    """Return a path with a head."""
    return f'<path class="arrow {kind}" d="{path}" marker-end="url(#head)"/>'


def down(start: Box, end: Box) -> str:
    """Return the path from a box's lower edge to a lower box's upper edge."""
    low, high = max(start.x, end.x) + 16, min(start.right, end.right) - 16
    between = [box for box in BOXES.values() if start.bottom <= box.y and box.bottom <= end.y]
    free = [x for x in range(round(low), round(high) + 1, 4)
            if not any(box.x - 14 < x < box.right + 14 for box in between)]  # fmt: skip
    if free:
        x = free[len(free) // 2]
        return f"M{x} {start.bottom:g} V{end.y - 3:g}"
    left = end.right < start.x + start.width / 2
    x, to = (start.x + 30, end.right - 20) if left else (start.right - 30, end.x + 20)
    half = (start.bottom + end.y) / 2
    return f"M{x:g} {start.bottom:g} C{x:g} {half:g} {to:g} {half:g} {to:g} {end.y - 3:g}"


def drawing(
    whole: Iterable[Arrow],
    part: Iterable[Arrow],
    up: bool,
    fields: Sequence[str],
    ground: Sequence[str],
) -> str:
    """Return the drawing as SVG.

    Args:
        whole: Boxes that may import all of another.
        part: Boxes that may import another's configuration alone.
        up: Whether fields may import `hf` inside functions.
        fields: Rooms in the box of the fields.
        ground: Rooms that everything stands on.
    """
    lines = [draw_arrow(BOXES[start], BOXES[end]) for start, end in sorted(whole)]
    lines += [draw_arrow(BOXES[start], BOXES[end], "dotted") for start, end in sorted(part)]
    if up:
        field, edge = BOXES["fields"], BOXES["hf"]
        lines.append(arrow(f"M{field.right - 60:g} {field.y:g} V{edge.bottom + 3:g}", "dashed"))
    boxes = [draw_box(box) for room, box in BOXES.items() if room != "fields"]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'text-anchor="middle">',
        "<title>Which room may import which</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" '
        'markerHeight="9" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L8 4 L0 8 z"/>'
        "</marker></defs>",
        f'<rect class="sheet" width="{WIDTH}" height="{HEIGHT}" rx="12"/>',
        *lines, *boxes, *draw_fields(fields), *draw_ground(ground), "</svg>", "",
    ])  # fmt: skip


def draw_fields(names: Sequence[str]) -> list[str]:
    """Return the fields' common box, and a box for each in it."""
    around, columns = BOXES["fields"], 2 if len(names) > 3 else len(names)
    rows = -(-len(names) // columns)
    width = (around.width - 20 - 12 * (columns - 1)) / columns
    height = (around.height - 56 - 10 * (rows - 1)) / rows
    drawn = [rectangle(around, "field"),
             words(around, around.y + 28, "a room per field; none imports another")]  # fmt: skip
    for number, name in enumerate(names):
        row, column = divmod(number, columns)
        x, y = around.x + 10 + column * (width + 12), around.y + 46 + row * (height + 10)
        drawn.append(draw_box(Box(x, y, width, height, name)))
    return drawn


def draw_ground(names: Sequence[str]) -> list[str]:
    """Return the slab that everything stands on, with its boxes."""
    width = (SLAB.width - 12) / len(names) - 12
    drawn = [rectangle(SLAB, "slab"),
             words(SLAB, SLAB.bottom - 16, "the ground: imports nothing above it")]  # fmt: skip
    for number, name in enumerate(names):
        box = Box(
            SLAB.x + 12 + number * (width + 12), SLAB.y + 16, width, 64, name, LINES.get(name, "")
        )
        drawn.append(draw_box(box, "ground"))
    return drawn
