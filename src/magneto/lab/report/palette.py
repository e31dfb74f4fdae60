"""One colour, marker and dash per placement, the same in every figure and table.

The colours are the outcome of a search: every pair of them is further apart than 12 in CIEDE2000,
with any colour vision, and each stands out from its page by a contrast of 3. A test holds this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.markers import MarkerStyle
from matplotlib.transforms import Affine2D

SOLID = ()
"""Dash of a line that has none."""


@dataclass(frozen=True)
class Series:
    """How one placement is shown, the same in every figure.

    Attributes:
        index: Position among the placements; names its CSS variable and its group in an SVG.
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
    rows = ROWS | {name: _own_row(position) for position, name in enumerate(own)}
    return {
        name: Series(index, name, titles.get(name, name), *rows[name])
        for index, name in enumerate(placements)
    }


def _own_row(position: int) -> tuple[str, str, Any, tuple[float, ...]]:
    """Return the looks of a user's row: 60 of them differ, for 4, 5 and 3 have no common factor."""
    return (
        *_COLOURS[position % len(_COLOURS)],
        _MARKERS[position % len(_MARKERS)],
        _DASHES[position % len(_DASHES)],
    )


def swatch(series: Series) -> str:
    """Return a small SVG of a series' line and marker, for a legend."""
    marker = MarkerStyle(series.marker)
    # Markers are about one unit wide: 9 of the swatch's units.
    place = marker.get_transform() + Affine2D().scale(9, -9).translate(14, 7)
    polygons: Any = marker.get_path().to_polygons(transform=place)
    shape = " ".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in p) + "Z" for p in polygons)
    colour = f"var(--series-{series.index}, {series.light})"
    dash = " ".join(f"{1.8 * length:g}" for length in series.dash) or "none"
    return (
        '<svg class="swatch" viewBox="0 0 28 14" width="28" height="14" aria-hidden="true">'
        f'<path d="M1 7H27" style="stroke: {colour}; stroke-width: 1.8; stroke-dasharray: {dash}; '
        f'fill: none"/><path d="{shape}" style="fill: {colour}"/></svg>'
    )
