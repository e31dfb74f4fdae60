"""Figures of tasks and reports: image grids, confusion matrices and tables.

Equal figures have equal files, byte by byte. A task opens a figure with `canvas`, and writes the
figure with `as_png` or `as_svg`.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.transforms import Bbox

INK, FAINT, RULE = "#232323", "#6b6b6b", "#dedede"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,  # dollar signs are not mathematics
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
# Fields of files that differ between equal figures.
METADATA = {"png": ("Software",), "svg": ("Date", "Creator"), "pdf": ("CreationDate", "Creator")}
# Width of a letter, heights of a text line and of a heading, and width of the legend, in inches.
LETTER, LINE, HEADING, LEGEND = 0.062, 0.15, 0.2, 2.2
# Margin of an image as a share of its panel, maximum text lines above it, maximum letters of a
# table's cell.
MARGIN, MOST_LINES, MOST_LETTERS = 0.03, 5, 70
# Maximum classes of a confusion matrix, and the smallest labelled share of a row.
MOST_CLASSES, LEAST_SHARE = 30, 0.05


@dataclass(frozen=True)
class Panel:
    """Image, with a text above the image.

    The image is a uint8 array (height, width) or (height, width, channels). A panel without an
    image is blank.
    """

    image: np.ndarray | None = None
    words: str = ""


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure and axes; `width` and `height` are in inches."""
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        return figure, figure.subplots()


def save(figure: Figure, kind: str, name: str = "magneto", dpi: Any = "figure") -> bytes:
    """Return the bytes of a "png", "svg" or "pdf" file.

    SVGs on the same page need different values of `name`.
    """
    file = io.BytesIO()
    with rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(file, format=kind, dpi=dpi, metadata=dict.fromkeys(METADATA[kind]))
    return file.getvalue()


def as_png(figure: Figure, dpi: float = 110) -> bytes:
    return save(figure, "png", dpi=dpi)


def as_svg(figure: Figure) -> str:
    text = save(figure, "svg").decode()
    return text[text.index("<svg") :]


def image_panels(
    sections: Sequence[tuple[str, Sequence[Panel]]],
    columns: int,
    side: float = 2.0,
    legend: Sequence[tuple[Any, str]] = (),
) -> bytes:
    """Return a PNG with the panels of several sections.

    A section is a pair of a heading, which may be "", and panels. A row has at most `columns`
    panels. A panel is `side` inches wide. `legend` lists matplotlib colours and their meanings.
    """
    letters = int(side / LETTER)
    lines: list[tuple[float, str | list[tuple[Panel, str]]]] = []
    for heading, panels in sections:
        lines += [(HEADING, text) for text in wrap(heading, letters * columns)]
        for start in range(0, len(panels), columns):
            row = [(panel, wrapped(panel.words, letters))
                   for panel in panels[start : start + columns]]  # fmt: skip
            above = max(words.count("\n") + 1 if words else 0 for _, words in row)
            lines.append((side + LINE * (above + 0.5), row))
    high = sum(height for height, _ in lines)
    wide = side * columns + (LEGEND if legend else 0)
    with rc_context(STYLE):
        figure = Figure(figsize=(wide, high))
        # One for all images: axes for each take most of the time.
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        axes.set(xlim=(0, wide), ylim=(0, high), autoscale_on=False)
        bottom = high
        for height, content in lines:
            bottom -= height
            if isinstance(content, str):
                figure.text(side * MARGIN / wide, (bottom + 0.3 * HEADING) / high, content)
                continue
            for column, (panel, words) in enumerate(content):
                if panel.image is not None:
                    left, top = side * (column + MARGIN), bottom + side * (1 - MARGIN)
                    down, across = panel.image.shape[:2]
                    pixel = side * (1 - 2 * MARGIN) / max(down, across)
                    place = (left, left + across * pixel, top - down * pixel, top)
                    axes.imshow(
                        panel.image, cmap="gray", vmin=0, vmax=255, extent=place, aspect="auto"
                    )
                    axes.text(left, top + 3 / 72, words, fontsize=8)
        if legend:
            colours = [Patch(facecolor=colour, label=words) for colour, words in legend]
            place = (side * columns / wide, 1)
            figure.legend(handles=colours, loc="upper left", bbox_to_anchor=place, frameon=False)
    return as_png(figure, dpi=100)


def wrapped(words: str, letters: int) -> str:
    return "\n".join(
        line
        for text in words.splitlines()
        for line in wrap(text, letters, max_lines=MOST_LINES, placeholder=" ...")
    )


def confusion_matrix(
    counts: np.ndarray, names: Sequence[str], most: int = MOST_CLASSES
) -> tuple[str, int]:
    """Draw a confusion matrix.

    Cells show percentages of the row's total. Percentages below 5 % are left out.

    Args:
        counts: Counts by true class and predicted class, of shape (classes, classes).
        names: Names of the classes.
        most: Maximum number of classes; only the most frequent classes are drawn.

    Returns:
        The SVG, and the number of classes that occur but are not drawn.
    """
    totals = counts.sum(1)
    shown = np.sort(np.argsort(-totals, kind="stable")[:most])
    shown = shown[totals[shown] > 0]
    share = counts[np.ix_(shown, shown)] / totals[shown, None]
    words, places = [names[int(number)] for number in shown], np.arange(len(shown)) + 0.5
    size = 2.0 + 0.34 * len(shown)
    figure, axes = canvas(size, size)
    with rc_context(STYLE):
        axes.pcolormesh(share, cmap="Blues", vmin=0, vmax=1, edgecolors="white")
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.set_xticks(places, words, rotation=90)
        axes.set_yticks(places, words)
        axes.set(xlabel="predicted class", ylabel="true class")
        for row, column in zip(*np.nonzero(share >= LEAST_SHARE), strict=True):
            axes.text(
                column + 0.5, row + 0.5, f"{100 * share[row, column]:.0f}", ha="center",
                va="center", color="white" if share[row, column] > 0.5 else "black", fontsize=7,
            )  # fmt: skip
    return as_svg(figure), int((totals > 0).sum()) - len(shown)


def table(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return a table as SVG.

    The first row is bold. The columns with indices in `right` are aligned to the right.
    """
    cut = MOST_LETTERS - 1
    cells = [[f"{text[:cut]}…" if text[cut + 1 :] else text for text in line] for line in lines]
    widths = [max(map(len, column)) * 0.075 + 0.2 for column in zip(*cells, strict=True)]
    figure, axes = canvas(sum(widths), 0.24 * len(cells) + 0.1)
    with rc_context(STYLE):
        axes.axis("off")
        shares = [width / sum(widths) for width in widths]
        drawn = axes.table(cells, colWidths=shares, bbox=Bbox.unit(), edges="open")
        drawn.auto_set_font_size(False)
        for (row, column), cell in drawn.get_celld().items():
            side = "right" if column in right else "left"
            cell.set_text_props(ha=side, weight="normal" if row else "bold")
    return as_svg(figure)
