"""The other figures of a report: loss curves, update against depth, activations by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from magneto.analysis.report.figure_style import FAINT, STYLE, Plot, Series
from magneto.analysis.report.figures import SMALL, Drawing, finish, log_y
from magneto.analysis.sweep.grid import finite, rate_text
from magneto.functional.statistics import half_width

CURVE_POINTS, HOVER_POINTS = 160, 20
# What may be drawn above the loss that most began with, as a share of what is below it.
HEADROOM = 0.35


def draw_curves(comparison: Mapping[str, Any], series: Mapping[str, Series]) -> list[Drawing]:
    """Draw the training loss of every seed, one figure for each learning rate.

    All share one scale; × is where a run diverged.
    """
    cells = [cell for cell in comparison["cells"] if cell.get("curve")]
    losses = [finite(loss) for cell in cells for _, loss in cell["curve"]]
    firsts = [finite(cell["curve"][0][1]) for cell in cells]
    known = [loss for loss in losses if loss is not None]
    if not known:
        return []
    low, first = min(known), median(loss for loss in firsts if loss is not None)
    top = first + HEADROOM * (first - low)
    last = max(step for cell in cells for step, _ in cell["curve"])
    drawings = []
    for index, rate in enumerate(sorted(float(r) for r in comparison["learning_rates"])):
        plot = Plot(f"curves{index}", SMALL)
        axes = plot.axes[0]
        with rc_context(STYLE):
            axes.set_title(f"learning rate {rate_text(rate)}", loc="left")
            axes.set_xlim(0, last * 1.02)
            axes.set_ylim(low - 0.05 * (top - low), top)
            axes.set_xlabel("step")
            axes.set_ylabel("training loss")
            for name, row in series.items():
                mine = [c for c in cells if _is(c, name, rate)]
                for cell in mine:
                    _draw_curve(plot, axes, row, cell, (low, top))
                _hover_curve(plot, axes, row, mine, top)
        drawings.append(finish(plot, series))
    return drawings


def _is(cell: Mapping[str, Any], name: str, rate: float) -> bool:
    return cell["placement"] == name and float(cell["learning_rate"]) == rate


def _draw_curve(
    plot: Plot, axes: Axes, row: Series, cell: Mapping[str, Any], shown_losses: tuple[float, float]
) -> None:
    """Draw one run, and × where it diverged."""
    low, top = shown_losses
    points = [(step, finite(loss)) for step, loss in cell["curve"]]
    shown = [(step, loss) for step, loss in points if loss is not None]
    thin = shown[:: max(len(shown) // CURVE_POINTS, 1)]
    artists = axes.plot(
        [step for step, _ in thin], [loss for _, loss in thin], color=row.light, linewidth=0.9
    )
    if cell.get("diverged_at") is not None and shown:
        # Runs often end at the same step: one above the other, each placement can be seen.
        step, height = (
            cell["diverged_at"],
            min(shown[-1][1], top - (1 + row.index) * (top - low) / 16),
        )
        artists += axes.plot(
            step, height, "x", color=row.light, markersize=5, markeredgewidth=1.5, clip_on=False
        )
    plot.belongs(row, artists)


def _hover_curve(
    plot: Plot, axes: Axes, row: Series, cells: Sequence[Mapping[str, Any]], top: float
) -> None:
    """Let the reader step through the mean of the seeds."""
    steps: dict[int, list[float]] = {}
    for cell in cells:
        for step, loss in cell["curve"]:
            if finite(loss) is not None:
                steps.setdefault(int(step), []).append(loss)
    every = max(len(steps) // HOVER_POINTS, 1)
    points = [
        (float(step), min(fmean(losses), top), f"step {step}: loss {fmean(losses):.3f}")
        for step, losses in list(sorted(steps.items()))[::every]
    ]
    lost = [cell["diverged_at"] for cell in cells if cell.get("diverged_at") is not None]
    if lost and points:
        text = f"diverged at step {', '.join(str(step) for step in lost)}"
        points.append((float(max(lost)), points[-1][1], text))
    plot.hover(axes, row, row.title, points)


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
    plot = Plot(f"update-{reading}", SMALL)
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
        axes.set_ylabel(f"update, relative to {depths[0]} layers")
        title = "label's logit; dashed: bound" if reading == "label" else "whole output"
        axes.set_title(title, loc="left", color=FAINT)
    return finish(plot, series)


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
    plot = Plot("activations", SMALL)
    axes = plot.axes[0]
    with rc_context(STYLE):
        for name, row in series.items():
            values = [finite(v) for v in measured["activations"].get(name, {}).values()]
            shown = [(i, v) for i, v in enumerate(values, 1) if v is not None and v > 0]
            if not shown:
                continue
            every = max(len(shown) // 6, 1)
            lines = axes.plot(
                [x for x, _ in shown], [y for _, y in shown], color=row.light,
                marker=row.marker, markevery=(row.index % every, every),
            )  # fmt: skip
            plot.belongs(row, lines)
            points = [(float(x), y, f"layer {x}: RMS {y:.3g}") for x, y in shown]
            plot.hover(axes, row, row.title, points)
        log_y(axes)
        axes.set_xlabel("layer")
        axes.set_ylabel("RMS of its output")
        axes.set_title("at initialisation", loc="left", color=FAINT)
    return finish(plot, series)
