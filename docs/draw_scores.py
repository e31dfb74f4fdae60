"""Draw the README's figure from a committed comparison: the loss against the learning rate.

    python docs/draw_scores.py

Five placements are in the report's colours, the others grey; each name stands at its line's end.
Two files are written: for a light page and for a dark one.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean

from matplotlib import rc_context
from matplotlib.figure import Figure

from magneto.figures import FAINT, INK, RULE
from magneto.files import read_json
from magneto.lab.report.plot import ROWS, STYLE
from magneto.theory.placement import PLACEMENTS

DOCS = Path(__file__).parent
COMPARISON = DOCS / "reports" / "placements-24" / "comparison.json"
FIGURE = DOCS / "figures" / "placements-24"
STYLES = DOCS.parent / "src" / "magneto" / "lab" / "report" / "templates" / "report.css"
COLOURED = ("post", "pre", "deepnorm", "sub", "peri")
LIGHT = {"ink": INK, "faint": FAINT, "rule": RULE}
GREY = {"light": "#b4b4b4", "dark": "#6f6f6f"}
# Least distance of two names, in nats.
APART = 0.052

Means = dict[str, list[tuple[float, float]]]


def dark_theme() -> dict[str, str]:
    """Return the report's colours on a dark page, by the names of their CSS variables."""
    block = re.search(r"scheme: dark\) \{\s*:root \{(.*?)\}", STYLES.read_text(encoding="utf-8"))
    assert block
    return dict(re.findall(r"--(\w+): (#\w+);", block[1]))


def means() -> Means:
    """Return each placement's rates and mean losses, of all seeds that came to an end."""
    comparison = read_json(COMPARISON)
    scores: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in comparison["cells"]:
        if cell["score"] is not None:
            scores[cell["placement"]][cell["learning_rate"]].append(cell["score"])
    return {name: [(rate, mean(found)) for rate, found in sorted(rows.items())]
            for name, rows in scores.items()}  # fmt: skip


def digest() -> str:
    """Return a short name of what is drawn."""
    return hashlib.sha256(json.dumps(means()).encode()).hexdigest()[:16]


def draw(theme: str) -> str:
    """Return the SVG for a "light" or a "dark" page."""
    colours = LIGHT if theme == "light" else dark_theme()
    found, baseline = means(), read_json(COMPARISON)["baseline"]
    style = STYLE | {
        "figure.facecolor": "none",  # the page's own stands behind it
        "text.color": colours["ink"], "axes.labelcolor": colours["ink"],
        "xtick.labelcolor": colours["ink"], "ytick.labelcolor": colours["ink"],
        "axes.edgecolor": colours["faint"], "xtick.color": colours["faint"],
        "ytick.color": colours["faint"], "grid.color": colours["rule"],
    }  # fmt: skip
    with rc_context(style):
        figure = Figure(figsize=(6.4, 3.9), dpi=72, layout="constrained")
        axes = figure.subplots()
        axes.axhline(baseline, color=colours["faint"], linewidth=0.9, linestyle=(0, (1, 2)))
        axes.annotate("frequencies of tokens alone", (0.001, baseline), (0, 8),
                      textcoords="offset points", fontsize=8, color=colours["faint"])  # fmt: skip
        heights = apart({name: points[-1][1] for name, points in found.items()})
        for name, points in found.items():
            light, dark, marker, _ = ROWS[name]
            own = {"light": light, "dark": dark} if name in COLOURED else GREY
            bold = name in COLOURED
            ink = own[theme] if bold else colours["faint"]
            axes.plot(*zip(*points, strict=True), color=own[theme], marker=marker if bold else "",
                      linewidth=1.8 if bold else 1.0, zorder=3 if bold else 2)  # fmt: skip
            axes.annotate(
                PLACEMENTS[name].title, points[-1], (0.36, heights[name]), fontsize=8.5,
                va="center", color=ink, weight="bold" if bold else "normal",
                arrowprops={"arrowstyle": "-", "color": own[theme], "linewidth": 0.6,
                            "shrinkA": 0, "shrinkB": 3, "relpos": (0, 0.5)},
            )  # fmt: skip
        rates = [rate for rate, _ in found["pre"]]
        axes.set_xscale("log")
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_xlim(rates[0] / 1.15, rates[-1] * 5)
        axes.spines["bottom"].set_bounds(rates[0] / 1.15, rates[-1] * 1.15)
        axes.set_ylim(top=max(heights.values()) + APART)
        axes.set(xlabel="peak learning rate", ylabel="validation loss at the end, nats per token")
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    lines = (line.rstrip() for line in text[text.index("<svg") :].splitlines())
    return "\n".join([*lines, f"<!-- drawn from comparison {digest()} -->", ""])


def apart(ends: dict[str, float]) -> dict[str, float]:
    """Return heights for names, in the order of their lines' ends and `APART` at least."""
    order = sorted(ends, key=lambda name: ends[name])
    heights = [ends[name] for name in order]
    for _ in range(1000):
        for low in range(len(heights) - 1):
            missing = APART - (heights[low + 1] - heights[low])
            if missing > 0:
                heights[low] -= missing / 2
                heights[low + 1] += missing / 2
    return dict(zip(order, heights, strict=True))


def figures() -> dict[str, str]:
    """Return the SVG files by their names' endings."""
    return {f"-{theme}.svg": draw(theme) for theme in ("light", "dark")}


if __name__ == "__main__":
    for ending, text in figures().items():
        FIGURE.with_name(FIGURE.name + ending).write_text(text, encoding="utf-8")
