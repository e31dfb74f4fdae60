"""Pictures for tasks and reports: grids of images, confused classes, tables; one look for all.

Everything is drawn for a light page, without global state, and the same values give the same bytes.
What a task draws itself begins with `canvas` and ends with `as_png` or `as_svg`.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.patches import Patch

INK, FAINT, RULE = "#232323", "#6b6b6b", "#dedede"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,  # a dollar sign in a text is a letter
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.labelpad": 5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.6,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "magneto",
    "pdf.fonttype": 42,
    "path.simplify": True,
}
# Of pictures with words, in inches: a letter, a line of words, a heading's line, the legend.
LETTER, LINE, HEADING, LEGEND = 0.062, 0.15, 0.2, 2.2
# The white around an image, as a share of its panel; lines of words above it at most, and letters
# of a table's cell.
MARGIN, MOST_LINES, MOST_LETTERS = 0.03, 5, 70
# Of a grid of images, in pixels: its width, about, and the white between its tiles.
WIDTH, GAP = 640, 2
# Of a confusion matrix: classes at most, and the share of a row from which a cell says it.
MOST_CLASSES, LEAST_SHARE = 30, 0.05


@dataclass(frozen=True)
class Panel:
    """An image with words above it.

    Attributes:
        image: uint8 (height, width) or (height, width, channels); None leaves a place free.
        words: What stands above it; a new line begins at each line break.
    """

    image: np.ndarray | None = None
    words: str = ""


@dataclass(frozen=True)
class Section:
    """Panels that belong together.

    Attributes:
        panels: From left to right, in as many lines as they need.
        heading: What stands above them all.
    """

    panels: Sequence[Panel] = field(default_factory=tuple)
    heading: str = ""


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure and its axes; width and height in inches."""
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        return figure, figure.subplots()


def as_png(figure: Figure, dpi: float = 110) -> bytes:
    """Return a drawing as a PNG file."""
    held = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(held, format="png", dpi=dpi, metadata={"Software": None})
    return held.getvalue()


def as_svg(figure: Figure) -> str:
    """Return a drawing as SVG; its texts stay texts."""
    held = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(held, format="svg", metadata={"Date": None, "Creator": None})
    text = held.getvalue()
    return text[text.index("<svg") :]


def image_grid(rows: Sequence[np.ndarray]) -> bytes:
    """Lay images out on white, enlarged without smoothing, as a PNG.

    Args:
        rows: Of each row of the picture, images in [-1, 1], (count, height, width, channels), as
            many and of the same size.
    """
    images = ((np.stack(rows).clip(-1, 1) + 1) * 127.5).round().astype(np.uint8)
    images = np.broadcast_to(images, (*images.shape[:-1], 3))
    scale = max(1, round(WIDTH / (images.shape[1] * images.shape[3])))
    large = images.repeat(scale, 2).repeat(scale, 3)
    framed = np.pad(large, ((0, 0), (0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=255)
    down, across, height, width, _ = framed.shape
    whole = framed.transpose(0, 2, 1, 3, 4).reshape(down * height, across * width, 3)
    held = io.BytesIO()
    pixels = np.ascontiguousarray(whole[:-GAP, :-GAP])
    imsave(held, pixels, format="png", metadata={"Software": "Magneto"})
    return held.getvalue()


def image_panels(
    sections: Sequence[Section],
    columns: int,
    side: float = 2.0,
    legend: Sequence[tuple[Any, str]] = (),
) -> bytes:
    """Draw images with words above them, in sections with headings, as a PNG.

    Args:
        sections: From top to bottom.
        columns: Panels in a line.
        side: Of a panel, in inches.
        legend: Colours (of matplotlib) and what they are, on the right.
    """
    letters = int(side / LETTER)
    lines: list[tuple[float, str | list[tuple[Panel, str]]]] = []
    for section in sections:
        lines += [(HEADING, text) for text in wrap(section.heading, letters * columns)]
        for start in range(0, len(section.panels), columns):
            row = [(panel, wrapped(panel.words, letters))
                   for panel in section.panels[start : start + columns]]  # fmt: skip
            above = max(words.count("\n") + 1 if words else 0 for _, words in row)
            lines.append((side + LINE * (above + 0.5), row))
    high = sum(height for height, _ in lines)
    wide = side * columns + (LEGEND if legend else 0)
    with rc_context(STYLE):
        figure = Figure(figsize=(wide, high))
        bottom = high
        for height, content in lines:
            bottom -= height
            if isinstance(content, str):
                figure.text(side * MARGIN / wide, (bottom + 0.3 * HEADING) / high, content)
                continue
            for column, (panel, words) in enumerate(content):
                if panel.image is not None:
                    left, inner = side * (column + MARGIN), side * (1 - 2 * MARGIN)
                    low = bottom + side * MARGIN
                    axes = figure.add_axes(
                        (left / wide, low / high, inner / wide, inner / high), anchor="NW"
                    )
                    axes.axis("off")
                    axes.imshow(panel.image, cmap="gray", vmin=0, vmax=255)
                    axes.set_title(words, fontsize=8, pad=3, loc="left")
        if legend:
            colours = [Patch(facecolor=colour, label=words) for colour, words in legend]
            place = (side * columns / wide, 1)
            figure.legend(handles=colours, loc="upper left", bbox_to_anchor=place, frameon=False)
    return as_png(figure, dpi=100)


def wrapped(words: str, letters: int) -> str:
    """Return words in lines of at most so many letters, `MOST_LINES` of each line given."""
    return "\n".join(
        line
        for text in words.splitlines()
        for line in wrap(text, letters, max_lines=MOST_LINES, placeholder=" ...")
    )


def confusion_matrix(
    counts: np.ndarray, names: Sequence[str], most: int = MOST_CLASSES
) -> tuple[str, int]:
    """Draw which classes are taken for which: a row is darker where more of it are there.

    A cell says its percent of the row, from 5 on.

    Args:
        counts: By true class and answer, (classes, classes).
        names: Of the classes.
        most: Classes that are drawn: the commonest.

    Returns:
        The SVG, and how many classes that occur are left out.
    """
    there = counts.sum(1)
    shown = np.sort(np.argsort(-there, kind="stable")[:most])
    shown = shown[there[shown] > 0]
    share = counts[np.ix_(shown, shown)] / there[shown, None]
    words, places = [names[int(number)] for number in shown], np.arange(len(shown)) + 0.5
    size = 2.0 + 0.34 * len(shown)
    figure, axes = canvas(size, size)
    with rc_context(STYLE):
        axes.pcolormesh(share, cmap="Blues", vmin=0, vmax=1, edgecolors="white")
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.set_xticks(places, words, rotation=90)
        axes.set_yticks(places, words)
        axes.set(xlabel="the model's answer", ylabel="the label")
        for row, column in zip(*np.nonzero(share >= LEAST_SHARE), strict=True):
            axes.text(
                column + 0.5, row + 0.5, f"{100 * share[row, column]:.0f}", ha="center",
                va="center", color="white" if share[row, column] > 0.5 else "black", fontsize=7,
            )  # fmt: skip
    return as_svg(figure), int((there > 0).sum()) - len(shown)


def table(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Draw a table as SVG.

    Args:
        lines: Its cells, cut where they are long; those of the first line are bold.
        right: Numbers of the columns that stand on the right.
    """
    cut = MOST_LETTERS - 1
    cells = [[f"{text[:cut]}…" if text[cut + 1 :] else text for text in line] for line in lines]
    widths = [max(map(len, column)) * 0.075 + 0.2 for column in zip(*cells, strict=True)]
    figure, axes = canvas(sum(widths), 0.24 * len(cells) + 0.1)
    with rc_context(STYLE):
        axes.axis("off")
        axes.set(xlim=(0, sum(widths)), ylim=(len(cells), 0))
        for height, line in enumerate(cells):
            left = 0.0
            for column, (text, width) in enumerate(zip(line, widths, strict=True)):
                at_end = column in right
                axes.text(
                    left + width - 0.2 if at_end else left, height + 0.5, text, va="center",
                    ha="right" if at_end else "left", weight="normal" if height else "bold",
                )  # fmt: skip
                left += width
    return as_svg(figure)
