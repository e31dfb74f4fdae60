"""How figures look, and how they leave: as SVG, inside a page or as a file, and as a PDF file.

One colour, marker and dash per placement, the same in every figure and table. The colours are the
outcome of a search: every pair of them is further apart than 12 in CIEDE2000, with any colour
vision, and each stands out from its page by a contrast of 3. A test holds this. Figures are drawn
in the light page's colours, which the style sheet replaces on a dark one.
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
from matplotlib.markers import MarkerStyle
from matplotlib.transforms import Affine2D

from magneto.figures import STYLE as SHARED

COORDINATE = re.compile(r"-?\d+\.\d{3,}")
SOLID = ()
"""Dash of a line that has none."""
STYLE: dict[Any, Any] = SHARED | {"axes.grid": True, "axes.facecolor": "none"}
# Of a legend, in inches: a letter of a title, a line with its spaces, and a row.
LEGEND_LETTER, LEGEND_LINE, LEGEND_ROW = 0.066, 0.55, 0.15


@dataclass(frozen=True)
class Series:
    """How one placement is shown, the same in every figure.

    Attributes:
        index: Position among the placements; names its group in an SVG.
        name: Of the placement.
        title: What a legend calls it.
        light: Colour on a light page.
        dark: Colour on a dark page.
        marker: matplotlib's name of its marker, or its (points, style, angle).
        dash: Lengths of strokes and gaps in line widths; empty for a solid line.
    """

    index: int
    name: str
    title: str
    light: str
    dark: str
    marker: Any
    dash: tuple[float, ...]

    @property
    def line(self) -> dict[str, Any]:
        """Keyword arguments of matplotlib for its line."""
        return {"color": self.light, "linestyle": (0, self.dash) if self.dash else "-"}


_LONG, _SHORT, _DOTS, _DASH_DOT, _LONGEST = (5, 1.5), (2.5, 1.3), (1, 1.3), (5, 1.5, 1, 1.5), (9, 2)
ROWS: dict[str, tuple[str, str, Any, tuple[float, ...]]] = {
    "post": ("#d1480b", "#ff7f45", "v", _LONG),
    "pre": ("#111111", "#f2f2f2", "s", SOLID),
    "normformer": ("#00a160", "#caf7a7", "^", _SHORT),
    "deepnorm": ("#a06c7f", "#b475ac", "D", _DASH_DOT),
    "sub": ("#0067b1", "#4aa8f0", "o", SOLID),
    "peri": ("#1781ff", "#235bff", "P", _LONG),
    "pre-qk": ("#96343d", "#bd2d46", "*", _DOTS),
    "olmo2": ("#908bb8", "#f0db00", "X", _LONGEST),
    "keel": ("#560c5e", "#9f4394", "<", _SHORT),
    "hybrid": ("#024400", "#0f8367", ">", _DASH_DOT),
    "gated": ("#2808c5", "#96bd92", "p", _DOTS),
    "hybrid-star": ("#75496f", "#e70e00", "h", _LONGEST),
}
# For rows that users bring: neither a marker nor a dash is one of those above.
_COLOURS = (
    ("#7205f8", "#15e2fd"),
    ("#12845a", "#25a082"),
    ("#6c043a", "#fa1f6e"),
    ("#e37407", "#ed98bc"),
)
_MARKERS: tuple[Any, ...] = ("d", (4, 1, 0), "8", (6, 1, 0), (3, 1, 0))
_DASHES = ((1, 3), (7, 1.5, 1, 1.5, 1, 1.5), (3, 3))


def series_of(placements: Sequence[str], titles: dict[str, str]) -> dict[str, Series]:
    """Give every placement its looks; one without a row of its own takes the next of the others.

    Args:
        placements: Names of the rows, in order.
        titles: Their titles.
    """
    own = [name for name in placements if name not in ROWS]
    # 60 of them differ, for 4, 5 and 3 have no common factor.
    rows = ROWS | {
        name: (
            *_COLOURS[position % len(_COLOURS)],
            _MARKERS[position % len(_MARKERS)],
            _DASHES[position % len(_DASHES)],
        )
        for position, name in enumerate(own)
    }
    return {
        name: Series(index, name, titles.get(name, name), *rows[name])
        for index, name in enumerate(placements)
    }


def swatch(series: Series) -> str:
    """Return a small SVG of a series' line and marker, for a legend."""
    marker = MarkerStyle(series.marker)
    # Markers are about one unit wide: 9 of the swatch's units.
    place = marker.get_transform() + Affine2D().scale(9, -9).translate(14, 7)
    polygons: Any = marker.get_path().to_polygons(transform=place)
    shape = " ".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in p) + "Z" for p in polygons)
    dash = " ".join(f"{1.8 * length:g}" for length in series.dash) or "none"
    return (
        '<svg class="swatch" viewBox="0 0 28 14" width="28" height="14" aria-hidden="true">'
        f'<path d="M1 7H27" style="fill: none; stroke: {series.light}; stroke-width: 1.8; '
        f'stroke-dasharray: {dash}"/><path d="{shape}" style="fill: {series.light}"/></svg>'
    )


@dataclass(frozen=True)
class Drawing:
    """A finished figure.

    Attributes:
        name: Unique id.
        title: What it is of; "" where the heading says it.
        svg: For a page or a file of its own.
        hits: Points the reader can point at, in the SVG's coordinates.
        figure: What was drawn, laid out.
    """

    name: str
    title: str
    svg: str
    hits: list[dict[str, Any]]
    figure: Figure

    def pdf(self) -> bytes:
        """Return the same as a PDF file; to embed its fonts takes longer than all else."""
        return save(self.figure, self.name, "pdf")


def save(figure: Figure, name: str, kind: str) -> bytes:
    """Return a figure in a file format; the same figure gives the same bytes."""
    out = io.BytesIO()
    date = "CreationDate" if kind == "pdf" else "Date"
    with rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(out, format=kind, metadata={date: None, "Creator": None})
    return out.getvalue()


class Plot:
    """A figure being drawn: its axes, which artists belong to which series, its hover points.

    Args:
        name: Unique in the page: ids of the SVG are made of it.
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
        self._hover: list[tuple[Axes, Series, list[tuple[float, float, str]]]] = []
        self._shown: dict[int, Series] = {}
        self._groups = 0

    @property
    def main(self) -> Axes:
        """The lowest axes, whose x is labelled."""
        return self.axes[-1]

    def line(self, series: Series, x: Sequence[float], y: Sequence[float], **looks: Any) -> None:
        """Draw a series in the main axes, in its own looks where no others are given."""
        self.belongs(series, self.main.plot(x, y, **{**series.line, **looks}))

    def belongs(self, series: Series, artists: Iterable[Artist]) -> None:
        """Make artists part of a series, to be hidden with it."""
        self._shown[series.index] = series
        for artist in artists:
            self._groups += 1
            artist.set_gid(f"series.{series.index}.{self._groups}")

    def hover(
        self, series: Series, points: list[tuple[float, float, str]], axes: Axes | None = None
    ) -> None:
        """Add points (x, y, text) that the reader can point at or step through."""
        if points:
            self._hover.append((axes or self.main, series, points))

    def finish(self) -> Drawing:
        """Add the legend and return the drawing."""
        self._legend()
        svg = for_page(save(self.figure, self.name, "svg").decode())
        self.figure.set_layout_engine("none")  # it is laid out
        return Drawing(self.name, self.title, svg, self.hits(), self.figure)

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

    def hits(self) -> list[dict[str, Any]]:
        """Return the hover points in the SVG's coordinates; to be called after `svg`."""
        height = self.figure.get_figheight() * 72
        hits = []
        for axes, series, points in self._hover:
            places = axes.transData.transform([(x, y) for x, y, _ in points])
            low, high = axes.bbox.y0, axes.bbox.y1
            found = [
                [round(float(x), 1), round(height - min(max(float(y), low), high), 1), text]
                for (x, y), (_, _, text) in zip(places, points, strict=True)
            ]
            hits.append({"series": series.index, "title": series.title, "points": found})
        return hits


def for_page(svg: str) -> str:
    """Cut a matplotlib SVG down to what can stand in a page beside others.

    Only what is referred to keeps its id; coordinates are rounded.
    """
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box
    inner = svg[svg.index(">", svg.index("<svg")) + 1 :]
    inner = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>|<!--.*?-->", "", inner,
                   flags=re.DOTALL)  # fmt: skip
    inner = re.sub(r'id="series\.(\d+)\.\d+"', r'class="series" data-series="\1"', inner)
    inner = re.sub(r' id="[\w.]+_\d+"', "", inner).replace("xlink:href", "href")
    # In tags alone: text between them says what it says.
    inner = re.sub(r"<[^>]*>", lambda tag: COORDINATE.sub(lambda x: f"{float(x[0]):.2f}", tag[0]),
                   inner).replace("\n", " ").strip()  # fmt: skip
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box[0]} stroke-linejoin="round">{inner}\n'
