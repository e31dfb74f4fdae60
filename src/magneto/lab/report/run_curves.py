"""Curves of one run: losses, metrics, learning rate, gradient norm, throughput over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context

from magneto.lab.report.curve_figures import HOVER_POINTS, thinned
from magneto.lab.report.palette import SOLID, Series
from magneto.lab.report.plot import FAINT, STYLE, Drawing, Plot
from magneto.lab.sweep.grid import finite

SIZE = (3.3, 2.0)
TRAINING = Series(0, "training", "training", "#0067b1", "#4aa8f0", "", SOLID)
VALIDATION = Series(1, "validation", "validation", "#d1480b", "#ff7f45", "o", SOLID)
SERIES = (TRAINING, VALIDATION)
PREFIX = "validation_"
# What the loop logs about itself, in the order of the page; of the rest each is a metric.
OF_THE_LOOP = ("learning_rate", "gradient_norm", "flops_utilisation", "data_wait_seconds")

Rows = Sequence[Mapping[str, Any]]


def draw_run(rows: Rows, baseline: Mapping[str, float]) -> list[Drawing]:
    """Draw everything that a run has logged, a figure for each name.

    Args:
        rows: Of its metrics.jsonl.
        baseline: A trivial answer's metrics; a line in the figure of each.
    """
    names = dict.fromkeys(key.removeprefix(PREFIX) for row in rows for key in row)
    metrics = [name for name in names if name not in ("step", *OF_THE_LOOP)]
    # What validation knows comes first; then what is logged in training alone.
    known = {key.removeprefix(PREFIX) for row in rows for key in row if key.startswith(PREFIX)}
    ordered = sorted(metrics, key=lambda name: (name != "loss", name not in known))
    ordered += [name for name in OF_THE_LOOP if name in names]
    drawn = [draw_name(name, rows, baseline.get(name)) for name in ordered]
    return [drawing for drawing in drawn if drawing is not None]


def draw_name(name: str, rows: Rows, baseline: float | None) -> Drawing | None:
    """Draw one logged name over steps, in training and in validation; None if no value is known."""
    both = ((TRAINING, curve_of(rows, name)), (VALIDATION, curve_of(rows, PREFIX + name)))
    curves = [(row, curve) for row, curve in both if any(finite(y) is not None for _, y in curve)]
    if not curves:
        return None
    plot = Plot(f"curve-{name.replace('_', '-')}", SIZE, title=name.replace("_", " "))
    axes = plot.axes[0]
    with rc_context(STYLE):
        axes.set_xlabel("step")
        if baseline is not None:
            axes.axhline(baseline, color=FAINT, linewidth=1, linestyle=(0, (2, 2)))
            axes.annotate(
                "baseline", (1, baseline), xycoords=axes.get_yaxis_transform(), ha="right",
                va="bottom", fontsize=8, color=FAINT,
            )  # fmt: skip
        for row, curve in curves:
            steps, values = thinned(curve)
            few = len(steps) <= HOVER_POINTS
            plot.belongs(
                row,
                axes.plot(steps, values, marker="o" if few else "", markersize=3, **row.line),
            )
            every = max(len(curve) // HOVER_POINTS, 1)
            plot.hover(axes, row, row.title, [
                (float(step), y, f"step {step}: {name.replace('_', ' ')} {y:.4g}")
                for step, value in curve[::every] if (y := finite(value)) is not None
            ])  # fmt: skip
    return plot.finish(SERIES)


def curve_of(rows: Rows, key: str) -> list[tuple[int, Any]]:
    """Return (step, value) of every row that has a key."""
    return [(row["step"], row[key]) for row in rows if key in row]
