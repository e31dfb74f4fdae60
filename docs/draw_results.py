"""Draw the figures of the results pages, docs/figures/NAME-{light,dark}.svg.

`python docs/generate_results.py` runs this. A page's figure shows the page's first table, so that
no number stands in two places. The figures on speed and on the ladder show result files.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from draw_scores import dark_theme
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from magneto.figures import FAINT, INK, RULE
from magneto.lab.report.plot import ROWS, STYLE

# Colour on a light page, colour on a dark one, marker and dash of each series, in order.
SERIES = [ROWS[name] for name in ("sub", "post", "normformer", "deepnorm", "pre")]
# Numbers on bars: on a light page and on a dark one.
ON_BARS = ("#fefefe", "#1b1b1b")
SCALING = {"seconds": "time", "peak_bytes": "memory", "start_up": "start-up"}
VALUE = re.compile(r"^\**(-?\d[\d,.]*)\**(?: ± ([\d.]+))?$")
# Inches of a row and of everything around the rows.
ROW, AROUND = 0.2, 0.85

Row = tuple[str, list[tuple[float, float] | None]]


def first_table(page: str) -> tuple[list[str], list[Row]]:
    """Return the numeric columns of a page's first table, and of each row its name and values.

    A value is a number with its interval's half-width, 0 where there is none; None for no number.
    """
    lines = next(block for block in page.split("\n\n") if block[:1] == "|").splitlines()
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    parsed = [[VALUE.match(cell.removesuffix(" %")) for cell in row] for row in body]
    columns = [n for n in range(1, len(head)) if any(row[n] for row in parsed)]
    rows: list[Row] = [
        (cells[0].replace("`", ""), [number(row[n]) for n in columns])
        for cells, row in zip(body, parsed, strict=True)
    ]
    return [head[n] for n in columns], rows


def number(found: re.Match[str] | None) -> tuple[float, float] | None:
    """Return a number and its interval's half-width."""
    return (float(found[1].replace(",", "")), float(found[2] or 0)) if found else None


def dots(columns: Sequence[str], rows: Sequence[Row], label: str, line: float | None) -> Figure:
    """Draw a row of dots for each row of a table, a colour for each column."""
    figure = Figure(figsize=(6.4, AROUND + ROW * len(rows)), dpi=72, layout="constrained")
    axes = figure.subplots()
    for (colour, _, marker, _), name, place in zip(SERIES, columns, range(len(columns)),
                                                   strict=False):  # fmt: skip
        points = [(y, *value) for y, (_, values) in enumerate(rows) if (value := values[place])]
        heights, found, half = zip(*points, strict=True)
        axes.errorbar(found, heights, xerr=half if any(half) else None, fmt=marker, color=colour,
                      label=name, markersize=5, elinewidth=1)  # fmt: skip
    if line is not None:
        axes.axvline(line, color=FAINT, linewidth=0.9)
    name_rows(axes, rows, label)
    if len(columns) > 1:
        figure.legend(loc="outside upper right", ncols=5, frameon=False, fontsize=8)
    return figure


def bars(columns: Sequence[str], rows: Sequence[Row], label: str) -> Figure:
    """Draw a bar for each row of a table, with a part for each of its first three columns."""
    figure = Figure(figsize=(6.4, AROUND + 0.3 * len(rows)), dpi=72, layout="constrained")
    axes = figure.subplots()
    for (colour, *_), name, place in zip(SERIES, columns[:3], range(3), strict=False):
        start = [sum(value[0] for value in values[:place] if value) for _, values in rows]
        width = [value[0] if (value := values[place]) else 0 for _, values in rows]
        axes.barh(range(len(rows)), width, 0.6, start, color=colour, label=name)
        for y, (x, count) in enumerate(zip(start, width, strict=True)):
            axes.annotate(f"{count:g}", (x + count / 2, y), ha="center", va="center",
                          color=ON_BARS[0], fontsize=8)  # fmt: skip
    name_rows(axes, rows, label)
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=8)
    return figure


def name_rows(axes: Axes, rows: Sequence[Row], label: str) -> None:
    """Name the rows from top to bottom, in bold type where the table has it, and the axis."""
    axes.set_yticks(range(len(rows)), [name.strip("*") for name, _ in rows])
    for text, (name, _) in zip(axes.get_yticklabels(), rows, strict=True):
        text.set_fontweight("bold" if name.startswith("**") else "normal")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(label)


def predictions(rows: Sequence[Mapping[str, str]]) -> Figure:
    """Draw predicted best rates with their 80 % intervals against measured ones."""
    figure = Figure(figsize=(5.2, 3.4), dpi=72, layout="constrained")
    axes = figure.subplots()
    rates = [row for row in rows if row["what"] == "best_rate" and row["measured"]]
    names = ("from one smaller size", "from two or more smaller sizes")
    for (colour, _, marker, _), name, several in zip(SERIES, names, (False, True), strict=False):
        mine = [row for row in rates if (" " in row["from"]) == several]
        if not mine:
            continue
        measured, value, low, high = (
            [float(row[column]) for row in mine] for column in ("measured", "value", "low", "high")
        )
        spread = [[v - x for v, x in zip(value, low, strict=True)],
                  [x - v for v, x in zip(value, high, strict=True)]]  # fmt: skip
        axes.errorbar(measured, value, yerr=spread, fmt=marker, color=colour, label=name,
                      elinewidth=1)  # fmt: skip
    ends = [min(float(row["measured"]) for row in rates) / 1.5,
            max(float(row["measured"]) for row in rates) * 1.5]  # fmt: skip
    axes.plot(ends, ends, color=FAINT, linewidth=0.9, label="equal")
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10, subs=(1, 3)))
        axis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="measured best rate", ylabel="predicted best rate, 80 % interval")
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=8)
    return figure


def scaling(curves: Mapping[str, Any]) -> Figure:
    """Draw how a step grows: a panel for each curve, both axes logarithmic."""
    figure = Figure(figsize=(2.0 * len(curves), 2.5), dpi=72, layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (name, curve) in zip(panels, curves.items(), strict=True):
        scaling_panel(axes, name, curve)
    panels[0].set_ylabel("relative to the first point")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=4, frameon=False, fontsize=8)
    return figure


def scaling_panel(axes: Axes, name: str, curve: Mapping[str, Any]) -> None:
    """Draw a curve's three lines, each relative to its first point, and a slope of 1."""
    sizes = [point["size"] for point in curve["points"]]
    for (key, label), (colour, _, marker, dash) in zip(SCALING.items(), SERIES, strict=False):
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


def files(folder: Path, name: str, draw: Callable[[], Figure]) -> dict[Path, str]:
    """Return a figure's two SVG files by their paths: for a light page and for a dark one."""
    with rc_context({**STYLE, "figure.facecolor": "none"}):  # the page's own stands behind it
        out = io.StringIO()
        draw().savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    lines = rounded_svg(text[text.index("<svg") :]).splitlines()
    light = "\n".join(line.rstrip() for line in lines) + "\n"
    dark, theme = light, dark_theme()
    for colour, role in ((INK, "ink"), (FAINT, "faint"), (RULE, "rule")):
        dark = dark.replace(colour, theme[role])
    for colour, other, *_ in (*SERIES, ON_BARS):
        dark = dark.replace(colour, other)
    return {folder / f"{name}-light.svg": light, folder / f"{name}-dark.svg": dark}


def rounded_svg(svg: str) -> str:
    """Return a figure with the same bytes on every machine.

    Matplotlib's coordinates differ in their last digits from processor to processor, and its names
    of shapes are made of them: coordinates are rounded, and the shapes numbered.
    """
    for number_of, name in enumerate(dict.fromkeys(re.findall(r'id="([mp][0-9a-f]{10})"', svg)), 1):
        svg = svg.replace(name, f"shape-{number_of}")
    return re.sub(r"<[^>]*>", lambda tag: re.sub(r"-?\d+\.\d+", two_digits, tag[0]), svg)


def two_digits(found: re.Match[str]) -> str:
    """Return a number with at most two digits behind its point; a zero has no sign."""
    return f"{round(float(found[0]), 2) + 0.0:g}"
