"""The score against the learning rate, with the trivial baseline; failures stand above it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes

from magneto.lab.report.axes import (
    DIVERGED,
    SOME,
    STUCK,
    Mark,
    draw_strip,
    log_rates,
    log_y,
    strip_height,
)
from magneto.lab.report.palette import Series
from magneto.lab.report.plot import FAINT, STYLE, Drawing, Plot
from magneto.lab.sweep.grid import Group, failures, finite, part, plus_minus, rate_text

WIDTH, HEIGHT = 5.0, 3.2
# The scores keep this share of the axis: a reference line further off is told, not drawn.
LEAST_SHARE = 0.25


def draw_scores(
    comparison: Mapping[str, Any],
    groups: Mapping[tuple[str, float], Group],
    series: Mapping[str, Series],
    decimals: int,
) -> Drawing:
    """Draw the mean score of what learned; what failed stands in a strip on top."""
    rates = sorted(float(rate) for rate in comparison["learning_rates"])
    rows = {name: [groups[name, rate] for rate in rates] for name in series}
    marks = {name: failure_marks(rates, rows[name]) for name in series}
    failed = [(series[name], found) for name, found in marks.items() if found]
    strip = strip_height(len(failed))
    plot = Plot("scores", (WIDTH, HEIGHT + strip), (strip, HEIGHT) if failed else (1,))
    axes = plot.axes[-1]
    with rc_context(STYLE):
        log_rates(axes, rates)
        for position, (name, row) in enumerate(series.items()):
            shift = _shift(rates, position - (len(series) - 1) / 2, len(series))
            _draw_score(plot, axes, row, rates, rows[name], shift, decimals)
        set_limits(axes, [group.mean for group in groups.values()], comparison)
        better = "higher" if comparison.get("higher_is_better") else "lower"
        axes.set_ylabel(f"{comparison['metric']} at the end ({better} is better)")
        if failed:
            draw_strip(plot, plot.axes[0], failed)
    return plot.finish(series.values())


def failure_marks(rates: Sequence[float], groups: Sequence[Group]) -> list[Mark]:
    """Return a mark for each rate at which a seed failed."""
    marks = []
    for rate, group in zip(rates, groups, strict=True):
        if group.failed:
            whole = DIVERGED if group.diverged else STUCK
            symbol = whole if group.failed == group.seeds else SOME
            marks.append(Mark(rate, symbol, f"rate {rate_text(rate)}: {failures(group)}"))
    return marks


def _shift(rates: Sequence[float], position: float, count: int) -> float:
    """Return the factor that sets one placement's points beside another's at the same rate."""
    gaps = [b / a for a, b in itertools.pairwise(rates) if a > 0 and b > a]
    return min([*gaps, 4.0]) ** (min(0.05, 0.4 / count) * position)


def _draw_score(
    plot: Plot,
    axes: Axes,
    row: Series,
    rates: Sequence[float],
    groups: Sequence[Group],
    shift: float,
    decimals: int,
) -> None:
    """Draw one placement: full markers where every seed learned, hollow where only some did.

    The line joins neighbours at which every seed learned, and breaks elsewhere.
    """
    shown = [
        (r * shift, g.mean, g, r) for r, g in zip(rates, groups, strict=True) if g.mean is not None
    ]
    if not shown:
        return
    places = [rate * shift for rate in rates]
    joined = joined_means(groups)
    x, y = [s[0] for s in shown], [s[1] for s in shown]
    error = [g.interval or 0.0 for _, _, g, _ in shown]
    bars = axes.errorbar(
        x, y, yerr=error, color=row.light, fmt="none", elinewidth=0.8, capsize=1.8, alpha=0.6
    )
    lines = axes.plot(places, joined, **row.line)
    dots: dict[str, Any] = {"marker": row.marker, "color": row.light, "linestyle": "none"}
    some = [(a, b) for a, b, g, _ in shown if g.failed]
    lines += axes.plot(places, joined, **dots)
    lines += axes.plot([a for a, _ in some], [b for _, b in some], fillstyle="none", **dots)
    plot.belongs(row, [*lines, *bars.lines[1], *bars.lines[2]])
    points = [(a, b, _point_text(r, g, decimals)) for a, b, g, r in shown]
    plot.hover(axes, row, row.title, points)


def joined_means(groups: Sequence[Group]) -> list[float]:
    """Return the means a line goes through: nan, where it breaks, if a seed failed or none ran."""
    return [g.mean if g.mean is not None and not g.failed else math.nan for g in groups]


def _point_text(rate: float, group: Group, decimals: int) -> str:
    lost = f" ({failures(group)})" if group.failed else ""
    value = plus_minus(group.mean, group.interval, decimals)
    return f"rate {rate_text(rate)}: {value}{lost}{part(group)}"


def set_limits(axes: Axes, means: Sequence[float | None], comparison: Mapping[str, Any]) -> None:
    """Set y to what the means need: a wide interval of two seeds must not flatten everything."""
    shown = [mean for mean in means if mean is not None]
    named = reference(comparison)
    if not shown:
        axes.set_yticks([])
        axes.set_ylim(0, 1)
        text = "no run learned" if _any_result(comparison) else "no result yet"
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=FAINT)
        return
    low, high = min(shown), max(shown)
    if named is not None:
        low, high = _draw_reference(axes, *named, low, high)
    if low > 0 and high / low > 20 and not comparison.get("higher_is_better"):
        log_y(axes)
        axes.set_ylim(low / 1.3, high * 1.3)
    else:
        margin = 0.07 * (high - low) or 0.05 * abs(high) or 1.0
        axes.set_ylim(low - margin, high + margin)


def _any_result(comparison: Mapping[str, Any]) -> bool:
    return any(cell["status"] != "missing" for cell in comparison["cells"])


def reference(comparison: Mapping[str, Any]) -> tuple[float, str] | None:
    """Return what scores are held against and its name: the baseline, else the first loss."""
    baseline = finite(comparison.get("baseline"))
    if baseline is not None:
        return baseline, "trivial baseline"
    first = first_loss(comparison) if comparison["metric"] == "loss" else None
    return None if first is None else (first, "loss of the first steps")


def _draw_reference(
    axes: Axes, value: float, name: str, low: float, high: float
) -> tuple[float, float]:
    """Draw a line at the reference, or name it at the frame; return the limits with it."""
    bottom, top = min(low, value), max(high, value)
    style: dict[str, Any] = {
        "xytext": (0, -2 if value > low else 2), "textcoords": "offset points", "fontsize": 8,
        "color": FAINT, "ha": "right", "va": "top" if value > low else "bottom",
    }  # fmt: skip
    if high - low >= LEAST_SHARE * (top - bottom):
        line = axes.axhline(value, color=FAINT, linewidth=0.9, linestyle=(0, (1, 2)))
        line.set_zorder(1)
        place = ("axes fraction", "data")
        axes.annotate(f"{name} {value:.4g}", (1, value), xycoords=place, **style)
        return bottom, top
    side, end = ("above", 1) if value > low else ("below", 0)
    text = f"{name} {value:.4g}, {side} the frame"
    axes.annotate(text, (1, end), xycoords="axes fraction", **style)
    return low, high


def first_loss(comparison: Mapping[str, Any]) -> float | None:
    """Return the median training loss of the first steps."""
    known = [finite(cell.get("initial_loss")) for cell in comparison.get("cells") or ()]
    losses = [loss for loss in known if loss is not None]
    return median(losses) if losses else None
