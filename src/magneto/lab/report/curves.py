"""Loss curves of a comparison's runs, and all that one run has logged, over steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from matplotlib import rc_context

from magneto.figures import FAINT
from magneto.lab.outcome import finite, rate_text
from magneto.lab.report.figures import CROSS, Mark, draw_strip, strip_height
from magneto.lab.report.plot import SOLID, STYLE, Drawing, Plot, Series

# Inches: of a panel of losses, and of a figure of a run.
WIDTH, HEIGHT, RUN_SIZE = 3.3, 2.2, (3.3, 2.0)
CURVE_POINTS, HOVER_POINTS, MARKERS = 160, 20, 4
# What may be drawn above the loss that most began with, as a share of what is below it.
HEADROOM = 0.35
TRAINING = Series(0, "training", "training", "#0067b1", "#4aa8f0", "", SOLID)
VALIDATION = Series(1, "validation", "validation", "#d1480b", "#ff7f45", "o", SOLID)
SERIES = (TRAINING, VALIDATION)
PREFIX = "validation_"
# What the loop logs about itself, in the order of the page; of the rest each is a metric.
OF_THE_LOOP = ("learning_rate", "gradient_norm", "flops_utilisation", "data_wait_seconds")
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Scale:
    """The scale that all panels share.

    Attributes:
        low: Least loss.
        top: Loss at the upper end; what lies above is cut off.
        last: Last step.
    """

    low: float
    top: float
    last: int


def draw_curves(comparison: Mapping[str, Any], series: Mapping[str, Series]) -> list[Drawing]:
    """Draw the loss of every seed, one figure for each learning rate that has runs."""
    cells = with_curves(comparison)
    scale = shared_scale(cells)
    if scale is None:
        return []
    rates = sorted({float(cell["learning_rate"]) for cell in cells})
    axis = f"{curve_kind(cells)} loss".strip()
    return [
        _draw_panel(f"curves{index}", rate, cells, scale, series, axis)
        for index, rate in enumerate(rates)
    ]


def with_curves(comparison: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the cells that have a curve."""
    return [cell for cell in comparison["cells"] if cell.get("curve")]


def curve_kind(cells: Rows) -> str:
    """Return "training" or "validation" where all curves are of it, else nothing."""
    kinds = {cell.get("curve_of", "training") for cell in cells}
    return kinds.pop() if len(kinds) == 1 else ""


def shared_scale(cells: Rows) -> Scale | None:
    """Return the scale of all panels; None if no loss is known."""
    losses = _finite(loss for cell in cells for _, loss in cell["curve"])
    firsts = _finite(cell["curve"][0][1] for cell in cells)
    if not losses:
        return None
    low, first = min(losses), median(firsts or losses)
    top = first + (HEADROOM * (first - low) or 1.0)
    return Scale(low, top, max(step for cell in cells for step, _ in cell["curve"]))


def _finite(values: Iterable[Any]) -> list[float]:
    return [value for value in map(finite, values) if value is not None]


def _draw_panel(
    name: str, rate: float, cells: Rows, scale: Scale, series: Mapping[str, Series], axis: str
) -> Drawing:
    here = [cell for cell in cells if float(cell["learning_rate"]) == rate]
    mine = {row: [c for c in here if c["placement"] == key] for key, row in series.items()}
    lost = [(row, marks) for row, runs in mine.items() if (marks := divergence_marks(runs))]
    strip = strip_height(len(lost))
    heights = (strip, HEIGHT) if lost else (1,)
    plot = Plot(name, (WIDTH, HEIGHT + strip), heights, f"learning rate {rate_text(rate)}")
    with rc_context(STYLE):
        bottom = scale.low - 0.05 * (scale.top - scale.low)
        plot.main.set(xlim=(0, scale.last * 1.02), ylim=(bottom, scale.top))
        plot.main.set(xlabel="step", ylabel=axis)
        for row, runs in mine.items():
            for cell in runs:
                # The line breaks where the loss is not finite.
                steps, losses = thinned(cell["curve"])
                every = max(len(steps) // MARKERS, 1)
                plot.line(
                    row, steps, losses, linewidth=0.9, marker=row.marker, markersize=3.2,
                    markevery=(row.index % every, every),
                )  # fmt: skip
            plot.hover(row, mean_points(runs))
        if lost:
            draw_strip(plot, lost)
    return plot.finish()


def divergence_marks(cells: Rows) -> list[Mark]:
    """Return a mark at the step where each run diverged, or at its end."""
    marks = []
    for cell in cells:
        if cell["status"] == "diverged":
            at, seed = cell.get("diverged_at"), cell["seed"]
            step = cell["curve"][-1][0] if at is None else at
            why = cell["reason"] if at is None else f"diverged at step {at}"
            marks.append(Mark(float(step), CROSS, f"seed {seed}: {why}"))
    return marks


def thinned(curve: Sequence[Sequence[Any]]) -> tuple[list[int], list[float]]:
    """Return at most about CURVE_POINTS steps and losses; all that are not finite stay, as nan."""
    every = max(len(curve) // CURVE_POINTS, 1)
    rows = [(int(step), finite(loss)) for step, loss in curve]
    kept = [row for i, row in enumerate(rows) if i % every == 0 or row[1] is None]
    if rows[-1] not in kept[-1:]:
        kept.append(rows[-1])
    return [step for step, _ in kept], [math.nan if y is None else y for _, y in kept]


def mean_points(cells: Rows) -> list[tuple[float, float, str]]:
    """Return points of the mean of the seeds, for the reader to step through."""
    steps: dict[int, list[float]] = {}
    for cell in cells:
        for step, loss in cell["curve"]:
            if finite(loss) is not None:
                steps.setdefault(int(step), []).append(loss)
    every = max(len(steps) // HOVER_POINTS, 1)
    return [
        (float(step), fmean(losses), f"step {step}: loss {fmean(losses):.3f}")
        for step, losses in list(sorted(steps.items()))[::every]
    ]


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
    plot = Plot(f"curve-{name.replace('_', '-')}", RUN_SIZE, title=name.replace("_", " "))
    axes = plot.main
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
            plot.line(row, steps, values, marker="o" if few else "", markersize=3)
            every = max(len(curve) // HOVER_POINTS, 1)
            plot.hover(row, [
                (float(step), y, f"step {step}: {name.replace('_', ' ')} {y:.4g}")
                for step, value in curve[::every] if (y := finite(value)) is not None
            ])  # fmt: skip
    return plot.finish()


def curve_of(rows: Rows, key: str) -> list[tuple[int, Any]]:
    """Return (step, value) of every row that has a key."""
    return [(row["step"], row[key]) for row in rows if key in row]
