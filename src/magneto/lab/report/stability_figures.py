"""What was measured at initialisation: one step's update against depth, activations by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from magneto.functional.statistics import half_width
from magneto.lab.report.axes import log_y
from magneto.lab.report.palette import Series
from magneto.lab.report.plot import STYLE, Drawing, Plot
from magneto.lab.sweep.grid import finite

SIZE = (3.3, 2.2)


def draw_updates(
    measured: Mapping[str, Any], series: Mapping[str, Series], reading: str
) -> Drawing:
    """Draw one step's change of the output against depth, each relative to the shallowest.

    Args:
        measured: What `measurements.measure` returns.
        series: How placements look.
        reading: "label", which is what the theory bounds (drawn dashed), or "output".
    """
    depths = [int(depth) for depth in measured["depths"]]
    title = "label's logit; dashed: bound" if reading == "label" else "whole output"
    plot = Plot(f"update-{reading}", SIZE, title=title)
    axes = plot.axes[0]
    with rc_context(STYLE):
        for name, row in series.items():
            ratios = [_ratios(measured["updates"], name, reading, d, depths[0]) for d in depths]
            if all(ratios):
                _draw_update(plot, axes, row, depths, ratios)
            bounds = measured["bounds"].get(name, {}).get("paper")
            if reading == "label" and bounds:
                relative = [value / bounds[0] for value in bounds]
                dashes = axes.plot(depths, relative, color=row.light, linestyle="--", linewidth=1)
                plot.belongs(row, dashes)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(depths))
        axes.xaxis.set_minor_locator(FixedLocator([]))
        axes.set_xticklabels([str(depth) for depth in depths])
        log_y(axes)
        axes.set_xlabel("layers")
        axes.set_ylabel(f"relative to {depths[0]} layers")
    return plot.finish(series.values())


def _draw_update(
    plot: Plot, axes: Axes, row: Series, depths: Sequence[int], ratios: Sequence[Sequence[float]]
) -> None:
    """Draw one placement: geometric means over seeds, with 95 % intervals."""
    means = [math.exp(fmean(map(math.log, found))) for found in ratios]
    halves = [finite(half_width([math.log(v) for v in found])) or 0.0 for found in ratios]
    low = [mean * math.exp(-half) for mean, half in zip(means, halves, strict=True)]
    high = [mean * math.exp(half) for mean, half in zip(means, halves, strict=True)]
    lines = axes.plot(depths, means, color=row.light, marker=row.marker)
    band = axes.fill_between(depths, low, high, color=row.light, alpha=0.12, linewidth=0)
    plot.belongs(row, [*lines, band])
    points = [
        (float(d), mean, f"{d} layers: x {mean:.2f} (95 %: {a:.2f} to {b:.2f})")
        for d, mean, a, b in zip(depths, means, low, high, strict=True)
    ]
    plot.hover(axes, row, row.title, points)


def _ratios(
    updates: Sequence[Mapping[str, Any]], name: str, reading: str, depth: int, first: int
) -> list[float]:
    """Return each seed's update at a depth over its own at the first depth; only what is known."""
    mine = {
        (u["layers"], u["seed"]): u["value"]
        for u in updates
        if (u["placement"], u["reading"], u["optimizer"]) == (name, reading, "sgd")
    }
    seeds = sorted(seed for layers, seed in mine if layers == depth)
    pairs = [(mine[depth, seed], mine.get((first, seed))) for seed in seeds]
    return [b / a for b, a in pairs if a and b and b / a > 0]


def draw_activations(measured: Mapping[str, Any], series: Mapping[str, Series]) -> Drawing:
    """Draw the RMS of every layer's output at initialisation."""
    plot = Plot("activations", SIZE, title="at initialisation")
    axes = plot.axes[0]
    with rc_context(STYLE):
        for name, row in series.items():
            values = [finite(v) for v in measured["activations"].get(name, {}).values()]
            shown = [(i, v) for i, v in enumerate(values, 1) if v is not None and v > 0]
            if not shown:
                continue
            every = max(len(shown) // 6, 1)
            lines = axes.plot(
                [x for x, _ in shown], [y for _, y in shown], marker=row.marker,
                markevery=(row.index % every, every), **row.line,
            )  # fmt: skip
            plot.belongs(row, lines)
            points = [(float(x), y, f"layer {x}: RMS {y:.3g}") for x, y in shown]
            plot.hover(axes, row, row.title, points)
        log_y(axes)
        axes.set_xlabel("layer")
        axes.set_ylabel("RMS of its output")
    return plot.finish(series.values())
