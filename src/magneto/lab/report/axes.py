"""What several figures need of their axes: rates, logarithms, and a strip for runs that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from magneto.lab.report.palette import Series
from magneto.lab.report.plot import FAINT, Plot
from magneto.lab.sweep.grid import rate_text

DIVERGED, STUCK, SOME = "x", "_", "+"
MEANING = {DIVERGED: "× diverged", STUCK: "– did not learn", SOME: "+ some seeds failed"}
# Of the strip, in inches.
TITLE_HEIGHT, ROW_HEIGHT = 0.08, 0.11


@dataclass(frozen=True)
class Mark:
    """A failure in the strip above a figure.

    Attributes:
        x: Where.
        symbol: DIVERGED, STUCK or SOME.
        text: What the reader is told there.
    """

    x: float
    symbol: str
    text: str


def strip_height(rows: int) -> float:
    """Return the height of a strip with that many rows, in inches."""
    return TITLE_HEIGHT + ROW_HEIGHT * rows if rows else 0.0


def draw_strip(plot: Plot, axes: Axes, rows: Sequence[tuple[Series, Sequence[Mark]]]) -> None:
    """Mark failures above a figure, where no height can be read into them: a row per placement."""
    present = {mark.symbol for _, marks in rows for mark in marks}
    said = ", ".join(meaning for symbol, meaning in MEANING.items() if symbol in present)
    axes.set_title(said, loc="left", fontsize=8, color=FAINT)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks([])
    axes.tick_params(axis="x", which="both", length=0, labelbottom=False)
    axes.grid(visible=False, axis="y")
    axes.spines[["left", "bottom"]].set_visible(False)
    for height, (row, marks) in enumerate(rows):
        # The placement's own marker leads its row.
        key = axes.plot(
            -0.03, height, marker=row.marker, color=row.light, markersize=3.6, clip_on=False,
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
        plot.belongs(row, key)
        for mark in marks:
            drawn = axes.plot(
                mark.x, height, mark.symbol, color=row.light, markersize=4.6, markeredgewidth=1.5,
                clip_on=False,
            )  # fmt: skip
            plot.belongs(row, drawn)
            plot.hover(axes, row, row.title, [(mark.x, height, mark.text)])


def log_rates(axes: Axes, rates: Sequence[float]) -> None:
    """Make x the learning rate, on a logarithmic axis, labelled with the rates themselves."""
    axes.set_xscale("log")
    axes.set_xlim(rates[0] / 1.6, rates[-1] * 1.6)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(FixedLocator([]))
    if len(rates) <= 8:
        axes.xaxis.set_major_locator(FixedLocator(list(rates)))
    else:
        axes.xaxis.set_major_locator(LogLocator(10))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: rate_text(float(f"{rate:.6g}"))))
    axes.set_xlabel("peak learning rate")


def log_y(axes: Axes) -> None:
    """Make y logarithmic, labelled with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
