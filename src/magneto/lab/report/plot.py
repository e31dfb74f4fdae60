"""How figures look, and how they leave: as SVG inside a page, as an SVG file, as a PDF file.

matplotlib draws with the light theme's colours; in a page's SVG each becomes a CSS variable with
that colour as its fallback, so that the page's theme decides.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from magneto.lab.report.palette import Series

# Of a legend, in inches: a letter of a title, a line with its spaces, and a row.
LEGEND_LETTER, LEGEND_LINE, LEGEND_ROW = 0.066, 0.55, 0.15
INK, FAINT, RULE = "#232323", "#6b6b6b", "#dedede"
THEME = {INK: "ink", FAINT: "faint", RULE: "rule"}

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
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
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "lines.linewidth": 1.5,
    "lines.markersize": 4.6,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "magneto",
    "pdf.fonttype": 42,
    "path.simplify": True,
}


@dataclass(frozen=True)
class Drawing:
    """A finished figure.

    Attributes:
        name: Unique id.
        title: What it is of; "" where the heading says it.
        svg: Inline SVG for a page: its colours are CSS variables.
        pdf: The same as a PDF file, in the light theme's colours.
        hits: Points the reader can point at, in the SVG's coordinates.
        series: Indices of the placements it shows.
    """

    name: str
    title: str
    svg: str
    pdf: bytes
    hits: list[dict[str, Any]]
    series: list[int]


class Plot:
    """A figure being drawn: its axes, which artists belong to which series, its hover points.

    Args:
        name: Unique in the page: all ids of the SVG begin with it.
        size: Width and height in inches.
        heights: Relative heights of axes above one another, which share x.
        title: Stands above the axes; "" for none.
    """

    def __init__(
        self,
        name: str,
        size: tuple[float, float],
        heights: Sequence[float] = (1,),
        title: str = "",
    ):
        self.name = name
        self.title = title
        with rc_context(STYLE):
            # One point of the SVG is one pixel at 72 dots per inch.
            self.figure = Figure(figsize=size, dpi=72, layout="constrained")
            grid = {"height_ratios": list(heights), "hspace": 0.02}
            axes = self.figure.subplots(
                len(heights), 1, sharex=True, squeeze=False, gridspec_kw=grid
            )
            if title:
                self.figure.suptitle(title, x=0.02, ha="left", fontsize=9)
        self.axes: list[Axes] = list(axes[:, 0])
        self._hover: list[tuple[Axes, int, str, list[tuple[float, float, str]]]] = []
        self._shown: dict[int, Series] = {}
        self._groups = 0

    def belongs(self, series: Series, artists: Iterable[Artist]) -> None:
        """Make artists part of a series, to be hidden with it."""
        self._shown[series.index] = series
        for artist in artists:
            self._groups += 1
            artist.set_gid(f"series.{series.index}.{self._groups}")

    def hover(
        self, axes: Axes, series: Series, title: str, points: list[tuple[float, float, str]]
    ) -> None:
        """Add points (x, y, text) that the reader can point at or step through."""
        if points:
            self._hover.append((axes, series.index, title, points))

    def finish(self, series: Iterable[Series]) -> Drawing:
        """Add the legend and return the drawing.

        Args:
            series: All series of the page; their colours become CSS variables.
        """
        self._legend()
        svg = with_variables(_inline(self._save("svg").decode(), self.name), themed(series))
        self.figure.set_layout_engine("none")  # it is laid out
        return Drawing(
            self.name, self.title, svg, self._save("pdf"), self.hits(), sorted(self._shown)
        )

    def _legend(self) -> None:
        """Add the series that are shown below the axes, and make room for them."""
        rows = [self._shown[index] for index in sorted(self._shown)]
        if not rows:
            return
        width, height = self.figure.get_size_inches()
        widest = max(len(row.title) for row in rows) * LEGEND_LETTER + LEGEND_LINE
        columns = min(max(int(width / widest), 1), len(rows))
        height += -(-len(rows) // columns) * LEGEND_ROW + LEGEND_ROW / 2
        self.figure.set_size_inches(width, height)
        with rc_context(STYLE):
            handles = [
                Line2D([], [], marker=row.marker, label=row.title, **row.line) for row in rows
            ]
            legend = self.figure.legend(
                handles=handles, loc="outside lower left", ncols=columns, fontsize=8,
                frameon=False, handlelength=3, handletextpad=0.5, columnspacing=1,
                labelspacing=0.25, borderpad=0.2,
            )  # fmt: skip
        for row, line, text in zip(rows, legend.get_lines(), legend.get_texts(), strict=True):
            self.belongs(row, [line, text])

    def _save(self, kind: str) -> bytes:
        """Return the figure in a file format; the same figure gives the same bytes."""
        out = io.BytesIO()
        date = "CreationDate" if kind == "pdf" else "Date"
        with rc_context(STYLE):
            self.figure.savefig(out, format=kind, metadata={date: None, "Creator": None})
        return out.getvalue()

    def hits(self) -> list[dict[str, Any]]:
        """Return the hover points in the SVG's coordinates; to be called after `svg`."""
        height = self.figure.get_figheight() * 72
        hits = []
        for axes, index, title, points in self._hover:
            places = axes.transData.transform([(x, y) for x, y, _ in points])
            low, high = axes.bbox.y0, axes.bbox.y1
            found = [
                [round(float(x), 1), round(height - min(max(float(y), low), high), 1), text]
                for (x, y), (_, _, text) in zip(places, points, strict=True)
            ]
            hits.append({"series": index, "title": title, "points": found})
        return hits


def themed(series: Iterable[Series]) -> dict[str, str]:
    """Return the CSS variable of every colour that figures are drawn with."""
    return THEME | {row.light: f"series-{row.index}" for row in series}


def with_variables(svg: str, variables: dict[str, str]) -> str:
    """Replace the light theme's colours by CSS variables."""
    for colour, variable in variables.items():
        svg = svg.replace(colour, f"var(--{variable}, {colour})")
    return svg


def svg_file(svg: str) -> str:
    """Return an inline SVG as a file of its own: on white, and without CSS variables."""
    plain = re.sub(r"var\(--[\w-]+, (#\w+)\)", r"\1", svg).replace(' aria-hidden="true"', "", 1)
    end = plain.index(">") + 1
    return plain[:end] + '<rect width="100%" height="100%" fill="#ffffff"/>' + plain[end:] + "\n"


def _inline(svg: str, name: str) -> str:
    """Cut a matplotlib SVG down to what can stand in a page beside others."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(
        r"<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>|<!--.*?-->", "", svg, flags=re.S
    )
    svg = re.sub(r'id="series\.(\d+)\.\d+"', r'class="series" data-series="\1"', svg)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(xlink:)?href="#([^"]+)"', rf'href="#{name}-\2"', svg)
    svg = svg.replace("url(#", f"url(#{name}-")
    svg = re.sub(r"<[^>]*>", _rounded, svg)
    box = re.search(r'viewBox="[^"]*"', svg)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box[0] if box else ""} '
        'stroke-linejoin="round" aria-hidden="true">'
    )
    return head + svg[svg.index(">") + 1 :].replace("\n", " ").strip()


def _rounded(tag: re.Match[str]) -> str:
    """Round the coordinates in a tag; text between tags says what it says."""
    return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", tag[0])
