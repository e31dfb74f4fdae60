"""Draw how a training step grows with sizes and ranks: docs/figures/scaling-{light,dark}.svg.

`python docs/generate_bench.py` runs this; what is drawn is benchmarks/results/scaling-cpu.json.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from draw_scores import dark_theme
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from magneto.figures import FAINT, INK, RULE
from magneto.lab.report.plot import ROWS, STYLE

# What is drawn of each point, and its looks: (light, dark, marker, dash).
LINES = {"seconds": ("time", *ROWS["sub"]), "peak_bytes": ("memory", *ROWS["post"]),
         "start_up": ("start-up", *ROWS["normformer"])}  # fmt: skip


def draw(curves: dict[str, Any]) -> str:
    """Return the figure in the light theme's colours: a panel per curve, both axes logarithmic."""
    with rc_context({**STYLE, "figure.facecolor": "none"}):  # the page's own stands behind it
        figure = Figure(figsize=(2.0 * len(curves), 2.5), dpi=72, layout="constrained")
        panels = figure.subplots(1, len(curves), squeeze=False)[0]
        for axes, (name, curve) in zip(panels, curves.items(), strict=True):
            draw_panel(axes, name, curve)
        panels[0].set_ylabel("over the first point")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=4, frameon=False, fontsize=8)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return (
        "\n".join(line.rstrip() for line in steady(text[text.index("<svg") :]).splitlines()) + "\n"
    )


def steady(svg: str) -> str:
    """Return a figure as every machine writes it.

    Matplotlib's coordinates differ in their last digits from processor to processor, and its names
    of shapes are made of them: coordinates are rounded, and the shapes numbered.
    """
    for number, name in enumerate(dict.fromkeys(re.findall(r'id="([mp][0-9a-f]{10})"', svg)), 1):
        svg = svg.replace(name, f"shape-{number}")
    return re.sub(r"<[^>]*>", lambda tag: re.sub(r"-?\d+\.\d+", rounded, tag[0]), svg)


def rounded(number: re.Match[str]) -> str:
    """Return a number with two digits behind its point, at most; a zero has no sign."""
    return f"{round(float(number[0]), 2) + 0.0:g}"


def draw_panel(axes: Axes, name: str, curve: dict[str, Any]) -> None:
    """Draw a curve's three lines, each over its first point, and a slope of 1."""
    sizes = [point["size"] for point in curve["points"]]
    for key, (label, colour, _, marker, dash) in LINES.items():
        values = [point[key] / curve["points"][0][key] for point in curve["points"]]
        axes.plot(sizes, values, color=colour, marker=marker, label=label,
                  linestyle=(0, dash) if dash else "-")  # fmt: skip
    ends = [sizes[0], sizes[-1]]
    axes.plot(ends, [end / sizes[0] for end in ends], color=FAINT, linewidth=0.8, label="slope 1")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(f"{name}: {curve['slopes']['seconds']:.2f}", loc="left")
    shown = sizes if len(sizes) <= 3 else [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def figures(curves: dict[str, Any], folder: Path) -> dict[Path, str]:
    """Return the SVG files by their paths."""
    light = draw(curves)
    dark, theme = light, dark_theme()
    for colour, name in ((INK, "ink"), (FAINT, "faint"), (RULE, "rule")):
        dark = dark.replace(colour, theme[name])
    for _, colour, other, _, _ in LINES.values():
        dark = dark.replace(colour, other)
    return {folder / "scaling-light.svg": light, folder / "scaling-dark.svg": dark}
