"""The figures of a report: score against rate, loss curves, update against depth, activations."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from magneto.analysis.report.figure_style import FAINT, STYLE, Plot, Series, themed, with_variables
from magneto.analysis.sweep.grid import Group, finite, plus_minus, rate_text

WIDE, SMALL = (4.0, 3.2), (3.1, 2.25)
CURVE_POINTS, HOVER_POINTS = 200, 24
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Drawing:
    """A figure ready for the page.

    Attributes:
        name: Unique id.
        svg: Inline SVG.
        hits: Points the reader can point at, in the SVG's coordinates.
        series: Indices of the placements it shows.
    """

    name: str
    svg: str
    hits: list[dict[str, Any]]
    series: list[int]


def finish(plot: Plot, series: Mapping[str, Series]) -> Drawing:
    """Turn a plot into a drawing."""
    svg = with_variables(plot.svg(), themed(dict(series)))
    hits = plot.hits()
    return Drawing(plot.name, svg, hits, sorted({hit["series"] for hit in hits}))


def draw_scores(
    comparison: Mapping[str, Any],
    groups: Mapping[tuple[str, float], Group],
    series: Mapping[str, Series],
    decimals: int,
) -> Drawing:
    """Draw the score against the learning rate; what diverged stands in a strip on top."""
    rates = sorted(float(rate) for rate in comparison["learning_rates"])
    lost = [name for name in series if any(groups[name, rate].diverged for rate in rates)]
    strip = 0.12 + 0.1 * len(lost) if lost else 0.0
    size = (WIDE[0], WIDE[1] + strip)
    plot = Plot("scores", size, (strip, WIDE[1]) if lost else (1,))
    axes = plot.axes[-1]
    with rc_context(STYLE):
        _log_rates(axes, rates)
        for position, (name, row) in enumerate(series.items()):
            shift = _shift(rates, position - (len(series) - 1) / 2)
            _draw_score(plot, axes, row, rates, [groups[name, r] for r in rates], shift, decimals)
        _score_limits(axes, [group.mean for group in groups.values()], comparison)
        axes.set_xlabel("peak learning rate")
        better = "higher" if comparison.get("higher_is_better") else "lower"
        axes.set_ylabel(f"{comparison['metric']} at the end ({better} is better)")
        if lost:
            rows = {name: [groups[name, rate] for rate in rates] for name in lost}
            _draw_strip(plot, plot.axes[0], rates, rows, series)
    return finish(plot, series)


def _shift(rates: Sequence[float], position: float) -> float:
    """Return the factor that sets one placement's points beside another's at the same rate."""
    gaps = [b / a for a, b in itertools.pairwise(rates) if a > 0 and b > a]
    return min(gaps, default=2.0) ** (0.05 * position)


def _draw_score(
    plot: Plot,
    axes: Axes,
    row: Series,
    rates: Sequence[float],
    groups: Sequence[Group],
    shift: float,
    decimals: int,
) -> None:
    """Draw one placement: full markers where every seed finished, hollow where only some did."""
    shown = [
        (r * shift, g.mean, g, r) for r, g in zip(rates, groups, strict=True) if g.mean is not None
    ]
    if not shown:
        return
    x, y = [s[0] for s in shown], [s[1] for s in shown]
    error = [g.interval or 0.0 for _, _, g, _ in shown]
    bars = axes.errorbar(x, y, yerr=error, color=row.light, fmt="none", elinewidth=0.9, capsize=1.8)
    (line,) = axes.plot(x, y, color=row.light)
    whole = [(a, b) for a, b, g, _ in shown if not g.diverged]
    part = [(a, b) for a, b, g, _ in shown if g.diverged]
    dots = [
        *axes.plot(*_columns(whole), row.marker, color=row.light, linestyle="none"),
        *axes.plot(
            *_columns(part), row.marker, color=row.light, linestyle="none", fillstyle="none"
        ),
    ]
    plot.belongs(row, [line, *dots, *bars.lines[1], *bars.lines[2]])
    points = [
        (a, b, f"rate {rate_text(r)}: {plus_minus(g.mean, g.interval, decimals)}{_lost(g)}")
        for a, b, g, r in shown
    ]
    plot.hover(axes, row, row.title, points)


def _columns(points: Sequence[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [x for x, _ in points], [y for _, y in points]


def _lost(group: Group) -> str:
    lost = f" ({group.diverged} of {group.seeds} seeds diverged)" if group.diverged else ""
    part = f" ({group.seeds} of {group.seeds + group.missing} seeds)" if group.missing else ""
    return lost + part


def _draw_strip(
    plot: Plot,
    axes: Axes,
    rates: Sequence[float],
    rows: Mapping[str, Sequence[Group]],
    series: Mapping[str, Series],
) -> None:
    """Mark what diverged: a row per placement, × where all seeds did, + where some did."""
    axes.set_title("diverged:  × every seed   + some seeds", loc="left", fontsize=8, color=FAINT)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks([])
    axes.tick_params(axis="x", which="both", length=0, labelbottom=False)
    axes.grid(visible=False, axis="y")
    for height, (name, groups) in enumerate(rows.items()):
        row = series[name]
        for rate, group in zip(rates, groups, strict=True):
            if not group.diverged:
                continue
            marker = "x" if group.diverged == group.seeds else "+"
            marks = axes.plot(
                rate, height, marker, color=row.light, markersize=4.6, markeredgewidth=1.5
            )
            plot.belongs(row, marks)
            text = f"rate {rate_text(rate)}: {group.diverged} of {group.seeds} seeds diverged"
            plot.hover(axes, row, row.title, [(rate, height, text)])


def _log_rates(axes: Axes, rates: Sequence[float]) -> None:
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


def _score_limits(axes: Axes, means: Sequence[float | None], comparison: Mapping[str, Any]) -> None:
    """Set y to what the means need: a wide interval of two seeds must not flatten everything."""
    shown = [mean for mean in means if mean is not None]
    if not shown:
        axes.set_yticks([])
        axes.set_ylim(0, 1)
        axes.text(0.5, 0.5, "no run finished", transform=axes.transAxes, ha="center", color=FAINT)
        return
    low, high = min(shown), max(shown)
    first = first_loss(comparison)
    if comparison["metric"] == "loss" and first is not None and high > low + 0.5 * (first - low):
        line = axes.axhline(first, color=FAINT, linewidth=0.8, linestyle=(0, (1, 2)))
        line.set_zorder(1)
        high = max(high, first)
        axes.annotate(
            "loss of the first steps",
            (1, first),
            xycoords=("axes fraction", "data"),
            xytext=(0, -2),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=8,
            color=FAINT,
        )
    if low > 0 and high / low > 20:
        log_y(axes)
        axes.set_ylim(low / 1.3, high * 1.3)
    else:
        margin = 0.07 * (high - low) or 0.05 * abs(high) or 1.0
        axes.set_ylim(low - margin, high + margin)


def first_loss(comparison: Mapping[str, Any]) -> float | None:
    """Return the median training loss of the first steps."""
    known = [finite(cell.get("initial_loss")) for cell in comparison.get("cells") or ()]
    losses = [loss for loss in known if loss is not None]
    return median(losses) if losses else None


def log_y(axes: Axes) -> None:
    """Make y logarithmic, labelled with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
