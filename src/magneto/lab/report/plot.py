"""Style of figures, and their formats: SVG in a page or a file, and PDF.

A placement has the same colour, marker and dash in all figures and tables. Any two colours differ
by more than 12 (CIEDE2000), also for colour-blind readers. Each colour has a contrast of at least 3
with the page. A test checks these differences and contrasts. Figures have the colours for light
pages. On dark pages, the style sheet replaces these colours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.transforms import Affine2D

from magneto.figures import STYLE as SHARED
from magneto.figures import save

COORDINATE = re.compile(r"-?\d+\.\d{3,}")
SOLID = ()
"""Empty dash pattern, which gives a solid line."""
STYLE: dict[Any, Any] = SHARED | {"axes.grid": True, "axes.facecolor": "none"}
# Sizes of a legend in inches: letter of a title, line with spaces, row.
LEGEND_LETTER, LEGEND_LINE, LEGEND_ROW = 0.066, 0.55, 0.15


@dataclass(frozen=True)
class Series:
    """Style of one placement in all figures."""

    index: int  # position among the placements, and name of its group in an SVG
    name: str
    title: str
    light: str  # colour on a light page
    dark: str  # colour on a dark page
    marker: Any  # matplotlib's name, or (points, style, angle)
    dash: tuple[float, ...]  # strokes and gaps in line widths; empty for a solid line

    @property
    def line(self) -> dict[str, Any]:
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
# For users' own rows: markers and dashes that the rows above do not use.
_COLOURS = (
    ("#7205f8", "#15e2fd"),
    ("#12845a", "#25a082"),
    ("#6c043a", "#fa1f6e"),
    ("#e37407", "#ed98bc"),
)
_MARKERS: tuple[Any, ...] = ("d", (4, 1, 0), "8", (6, 1, 0), (3, 1, 0))
_DASHES = ((1, 3), (7, 1.5, 1, 1.5, 1, 1.5), (3, 3))


def series_of(placements: Sequence[str], titles: dict[str, str]) -> dict[str, Series]:
    """Return the style of every placement.

    A placement without a fixed style takes the next free style.
    """
    own = [name for name in placements if name not in ROWS]
    # 60 styles are distinct, because 4, 5 and 3 have no common factor.
    styles = zip(own, cycle(_COLOURS), cycle(_MARKERS), cycle(_DASHES), strict=False)
    rows = ROWS | {name: (*colours, marker, dash) for name, colours, marker, dash in styles}
    return {
        name: Series(index, name, titles.get(name, name), *rows[name])
        for index, name in enumerate(placements)
    }


def swatch(series: Series) -> str:
    marker = MarkerStyle(series.marker)
    # A marker is about one unit wide, which becomes 9 units of the swatch.
    place = marker.get_transform() + Affine2D().scale(9, -9).translate(14, 7)
    polygons: Any = marker.get_path().to_polygons(transform=place)
    shape = " ".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in p) + "Z" for p in polygons)
    dash = " ".join(f"{1.8 * length:g}" for length in series.dash) or "none"
    return (
        '<svg class="swatch" viewBox="0 0 28 14" width="28" height="14" aria-hidden="true">'
        f'<path d="M1 7H27" style="fill: none; stroke: {series.light}; stroke-width: 1.8; '
        f'stroke-dasharray: {dash}"/><path d="{shape}" style="fill: {series.light}"/></svg>'
    )


class Plot:
    """A figure: its axes, matplotlib's artists of each series, and tooltips.

    `name` must be unique in the page, because the ids in the SVG contain `name`. `size` is in
    inches. `heights` are the relative heights of stacked axes that share the x axis. `finish` sets
    `svg` (the figure for a page) and `hits` (the tooltips in SVG coordinates).
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
            # At 72 dots per inch one point of the SVG is one pixel.
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
        self.svg, self.hits = "", list[dict[str, Any]]()

    @property
    def main(self) -> Axes:
        return self.axes[-1]

    def line(self, series: Series, x: Sequence[float], y: Sequence[float], **style: Any) -> None:
        """Draw a line in the main axes. Options in `style` override the style of `series`."""
        self.belongs(series, self.main.plot(x, y, **{**series.line, **style}))

    def belongs(self, series: Series, artists: Iterable[Artist]) -> None:
        """Assign matplotlib artists to a series. A page that hides the series hides them too."""
        self._shown[series.index] = series
        for artist in artists:
            self._groups += 1
            artist.set_gid(f"series.{series.index}.{self._groups}")

    def hover(
        self, series: Series, points: list[tuple[float, float, str]], axes: Axes | None = None
    ) -> None:
        if points:
            self._hover.append((axes or self.main, series, points))

    def finish(self) -> Plot:
        self._legend()
        self.svg = for_page(save(self.figure, "svg", self.name).decode())
        self.figure.set_layout_engine("none")  # the layout is done
        height = self.figure.get_figheight() * 72
        # Tooltips of the main axes come first.
        for axes, series, points in sorted(self._hover, key=lambda each: each[0] is not self.main):
            places = axes.transData.transform([(x, y) for x, y, _ in points])
            low, high = axes.bbox.y0, axes.bbox.y1
            found = [
                [round(float(x), 1), round(height - min(max(float(y), low), high), 1), text]
                for (x, y), (_, _, text) in zip(places, points, strict=True)
            ]
            self.hits.append({"series": series.index, "title": series.title, "points": found})
        return self

    def pdf(self) -> bytes:
        """Return the figure as PDF. Embedded fonts make the conversion slow."""
        return save(self.figure, "pdf", self.name)

    def _legend(self) -> None:
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


def for_page(svg: str) -> str:
    """Shorten matplotlib's SVG for a page with several figures.

    Unused ids, metadata and comments are removed, and coordinates are rounded.
    """
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box
    inner = svg[svg.index(">", svg.index("<svg")) + 1 :]
    inner = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>|<!--.*?-->", "", inner,
                   flags=re.DOTALL)  # fmt: skip
    inner = re.sub(r'id="series\.(\d+)\.\d+"', r'class="series" data-series="\1"', inner)
    inner = re.sub(r' id="[\w.]+_\d+"', "", inner).replace("xlink:href", "href")
    # In tags only; text stays unchanged.
    inner = re.sub(r"<[^>]*>", lambda tag: COORDINATE.sub(lambda x: f"{float(x[0]):.2f}", tag[0]),
                   inner).replace("\n", " ").strip()  # fmt: skip
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box[0]} stroke-linejoin="round">{inner}\n'
