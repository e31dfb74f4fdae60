"""How figures look: one colour and marker per placement, and SVG that lives inside a page.

matplotlib draws with the light theme's colours; in the SVG each becomes a CSS variable with that
colour as its fallback, so that the page's theme decides, and a saved figure is still right.
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
from matplotlib.markers import MarkerStyle
from matplotlib.transforms import Affine2D

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
    "path.simplify": True,
}


@dataclass(frozen=True)
class Series:
    """How one placement is shown, the same in every figure.

    Attributes:
        index: Position among the placements; names its CSS variable and its group in an SVG.
        title: What a legend calls it.
        light: Colour on white.
        dark: Colour on black.
        marker: matplotlib's name of its marker.
    """

    index: int
    title: str
    light: str
    dark: str
    marker: str


# After Okabe and Ito, darkened where a line on white needs it: told apart with any colour vision.
_ROWS = {
    "post": ("#d1480b", "#ff7f45", "v"),
    "pre": ("#111111", "#f2f2f2", "s"),
    "normformer": ("#00916c", "#1fc79a", "^"),
    "deepnorm": ("#b8588f", "#e58abb", "D"),
    "sub": ("#0067b1", "#4aa8f0", "o"),
    "peri": ("#3fa3d8", "#9bd8fb", "P"),
    "pre-qk": ("#b98000", "#f0b93a", "*"),
}
_OTHERS = (
    ("#7a3e9d", "#c08ae0", "h"),
    ("#6f7d1c", "#bccb58", "<"),
    ("#8c1d40", "#ec7a9c", ">"),
    ("#5f6b76", "#aab6c1", "p"),
)


def series_of(placements: Sequence[str], titles: dict[str, str]) -> dict[str, Series]:
    """Give every placement its colour and marker; one without a row of its own takes the next."""
    others = [name for name in placements if name not in _ROWS]
    rows = _ROWS | {name: _OTHERS[i % len(_OTHERS)] for i, name in enumerate(others)}
    return {
        name: Series(index, titles.get(name, name), *rows[name])
        for index, name in enumerate(placements)
    }


class Plot:
    """A figure being drawn: its axes, which artists belong to which series, its hover points.

    Args:
        name: Unique in the page: all ids of the SVG begin with it.
        size: Width and height in inches.
        heights: Relative heights of axes above one another, which share x.
    """

    def __init__(self, name: str, size: tuple[float, float], heights: Sequence[float] = (1,)):
        self.name = name
        with rc_context(STYLE):
            # One point of the SVG is one pixel at 72 dots per inch.
            self.figure = Figure(figsize=size, dpi=72, layout="constrained")
            grid = {"height_ratios": list(heights), "hspace": 0.02}
            axes = self.figure.subplots(
                len(heights), 1, sharex=True, squeeze=False, gridspec_kw=grid
            )
        self.axes: list[Axes] = list(axes[:, 0])
        self._hover: list[tuple[Axes, int, str, list[tuple[float, float, str]]]] = []
        self._groups = 0

    def belongs(self, series: Series, artists: Iterable[Artist]) -> None:
        """Make artists part of a series, to be hidden with it."""
        for artist in artists:
            self._groups += 1
            artist.set_gid(f"series.{series.index}.{self._groups}")

    def hover(
        self, axes: Axes, series: Series, title: str, points: list[tuple[float, float, str]]
    ) -> None:
        """Add points (x, y, text) that the reader can point at or step through."""
        if points:
            self._hover.append((axes, series.index, title, points))

    def svg(self) -> str:
        """Return the drawing as an inline `<svg>`."""
        out = io.StringIO()
        with rc_context(STYLE):
            self.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        return _inline(out.getvalue(), self.name)

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


def themed(series: dict[str, Series]) -> dict[str, str]:
    """Return the CSS variable of every colour that figures are drawn with."""
    return THEME | {row.light: f"series-{row.index}" for row in series.values()}


def with_variables(svg: str, variables: dict[str, str]) -> str:
    """Replace the light theme's colours by CSS variables."""
    for colour, variable in variables.items():
        svg = svg.replace(colour, f"var(--{variable}, {colour})")
    return svg


def swatch(series: Series) -> str:
    """Return a small SVG of a series' line and marker, for a legend."""
    marker = MarkerStyle(series.marker)
    # Markers are about one unit wide: 9 of the swatch's units.
    place = marker.get_transform() + Affine2D().scale(9, -9).translate(14, 7)
    polygons: Any = marker.get_path().to_polygons(transform=place)
    shape = " ".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in p) + "Z" for p in polygons)
    colour = f"var(--series-{series.index}, {series.light})"
    return (
        '<svg class="swatch" viewBox="0 0 28 14" width="28" height="14" aria-hidden="true">'
        f'<path d="M1 7H27" style="stroke: {colour}; stroke-width: 1.8; fill: none"/>'
        f'<path d="{shape}" style="fill: {colour}"/></svg>'
    )


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
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box[0] if box else ""} aria-hidden="true">'
    return head + svg[svg.index(">") + 1 :].replace("\n", " ").strip()


def _rounded(tag: re.Match[str]) -> str:
    """Round the coordinates in a tag; text between tags says what it says."""
    return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", tag[0])
