"""Draw the README's figure from a committed comparison: the score against the learning rate.

    python docs/draw_scores.py

It is the report's own figure, as two files: for a light page and for a dark one.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from magneto.analysis.report.palette import series_of
from magneto.analysis.report.plot import themed
from magneto.analysis.report.report import draw, titles
from magneto.files import read_json

DOCS = Path(__file__).parent
COMPARISON = DOCS / "reports" / "placements-24" / "comparison.json"
FIGURE = DOCS / "figures" / "placements-24"
STYLES = DOCS.parent / "src" / "magneto" / "analysis" / "report" / "templates" / "report.css"


def digest() -> str:
    """Return a short name of the comparison that is drawn."""
    return hashlib.sha256(COMPARISON.read_bytes()).hexdigest()[:16]


def dark_theme() -> dict[str, str]:
    """Return the report's colours on a dark page, by the names of their CSS variables."""
    block = re.search(r"scheme: dark\) \{\s*:root \{(.*?)\}", STYLES.read_text(encoding="utf-8"))
    assert block
    return dict(re.findall(r"--(\w+): (#\w+);", block[1]))


def figures() -> dict[str, str]:
    """Return the SVG files by their names' endings."""
    comparison = read_json(COMPARISON)
    series = series_of([row["placement"] for row in comparison["summary"]], titles(comparison))
    drawn = draw(comparison, series)["scores"].svg.replace(' aria-hidden="true"', "", 1)
    dark = dark_theme() | {f"series-{row.index}": row.dark for row in series.values()}
    light = {variable: colour for colour, variable in themed(series.values()).items()}
    return {"-light.svg": coloured(drawn, light), "-dark.svg": coloured(drawn, dark)}


def coloured(svg: str, colours: dict[str, str]) -> str:
    """Return an SVG with colours in the place of CSS variables."""
    plain = re.sub(r"var\(--([\w-]+), #\w+\)", lambda found: colours[found[1]], svg)
    return f"{plain}\n<!-- drawn from comparison {digest()} -->\n"


if __name__ == "__main__":
    for ending, text in figures().items():
        FIGURE.with_name(FIGURE.name + ending).write_text(text, encoding="utf-8")
