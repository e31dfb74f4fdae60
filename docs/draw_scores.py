"""Draw the README's figure from a committed comparison: the loss against the learning rate.

    python docs/draw_scores.py

It shows six of the compared placements, in the report's colours, markers and dashes. The legend
names them in the order of their best loss. Two files are written: for a light and a dark page.
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
SHOWN = ("olmo2", "peri", "sub", "pre", "deepnorm", "post")
LIGHT = {"ink": INK, "faint": FAINT, "rule": RULE}

Means = dict[str, list[tuple[float, float]]]


def dark_theme() -> dict[str, str]:
    """Return the report's colours on a dark page, by the names of their CSS variables."""
    block = re.search(r"scheme: dark\) \{\s*:root \{(.*?)\}", STYLES.read_text(encoding="utf-8"))
    assert block
    return dict(re.findall(r"--(\w+): (#\w+);", block[1]))


def means() -> Means:
    """Return the rates and mean losses of each placement shown, over all finished seeds."""
    comparison = read_json(COMPARISON)
    scores: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in comparison["cells"]:
        if cell["score"] is not None:
            scores[cell["placement"]][cell["learning_rate"]].append(cell["score"])
    return {name: [(rate, mean(found)) for rate, found in sorted(scores[name].items())]
            for name in SHOWN}  # fmt: skip


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
        figure = Figure(figsize=(5.4, 3.7), dpi=72, layout="constrained")
        axes = figure.subplots()
        axes.axhline(baseline, color=colours["faint"], linewidth=0.9, linestyle=(0, (1, 2)))
        axes.annotate("byte frequencies alone", (0.001, baseline), (0, -14),
                      textcoords="offset points", fontsize=8, color=colours["faint"])  # fmt: skip
        for name, points in found.items():
            *colours_of, marker, dash = ROWS[name]
            axes.plot(*zip(*points, strict=True), color=colours_of[theme == "dark"],
                      marker=marker, linestyle=(0, dash) if dash else "-", linewidth=1.8,
                      label=PLACEMENTS[name].title)  # fmt: skip
        rates = [rate for rate, _ in found["pre"]]
        axes.set_xscale("log")
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates], minor=False)
        axes.set_xticks([], minor=True)
        axes.legend(loc="center", bbox_to_anchor=(0.42, 0.62), frameon=False, handlelength=4.2)
        axes.set(xlabel="peak learning rate", ylabel="validation loss at the end, nats per byte")
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    lines = (line.rstrip() for line in text[text.index("<svg") :].splitlines())
    return "\n".join([*lines, f"<!-- drawn from comparison {digest()} -->", ""])


def figures() -> dict[str, str]:
    """Return the SVG files by their names' endings."""
    return {f"-{theme}.svg": draw(theme) for theme in ("light", "dark")}


if __name__ == "__main__":
    for ending, text in figures().items():
        FIGURE.with_name(FIGURE.name + ending).write_text(text, encoding="utf-8")
