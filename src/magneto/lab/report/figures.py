"""Figures of comparisons (scores, losses, updates, activations) and of runs (curves)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from magneto.figures import FAINT
from magneto.functional.statistics import half_width
from magneto.lab.outcome import (
    MISSING,
    Group,
    decimals_for,
    failures,
    finite,
    group_text,
    rate_text,
)
from magneto.lab.report.plot import SOLID, STYLE, Plot, Series

CROSS, DASH, PLUS = "x", "_", "+"
MEANING = {CROSS: "× diverged", DASH: "– did not learn", PLUS: "+ some seeds failed"}
# Sizes in inches: title and rows of a strip, figure of scores, other figures, figures of runs.
TITLE_HEIGHT, ROW_HEIGHT = 0.08, 0.11
WIDTH, HEIGHT, SIZE, RUN_SIZE = 5.0, 3.2, (3.3, 2.2), (3.3, 2.0)
# Smallest share of the axis that is left to the scores if a reference is drawn; a reference further
# away is noted at the frame.
LEAST_SHARE = 0.25
CURVE_POINTS, HOVER_POINTS, MARKERS = 160, 20, 4
# Range above the median initial loss, as a share of the range below it.
HEADROOM = 0.35
TRAINING = Series(0, "training", "training", "#0067b1", "#4aa8f0", "", SOLID)
VALIDATION = Series(1, "validation", "validation", "#d1480b", "#ff7f45", "o", SOLID)
SERIES = (TRAINING, VALIDATION)
PREFIX = "validation_"
# Names logged by the training loop, in the page's order; all others are metrics.
LOOP_NAMES = ("learning_rate", "gradient_norm", "flops_utilisation", "data_wait_seconds")
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Mark:
    """A mark of a failure in the strip above a figure."""

    x: float
    symbol: str  # CROSS, DASH or PLUS
    text: str  # tooltip


def begin_plot(
    name: str, size: tuple[float, float], title: str, marks: Mapping[Series, Sequence[Mark]]
) -> Plot:
    """Begin a figure.

    If there are failures, a strip above the figure shows a mark for each failure.
    """
    rows = [(row, found) for row, found in marks.items() if found]
    if not rows:
        return Plot(name, size, title=title)
    strip, (width, height) = TITLE_HEIGHT + ROW_HEIGHT * len(rows), size
    plot = Plot(name, (width, height + strip), (strip, height), title)
    with rc_context(STYLE):
        draw_strip(plot, rows)
    return plot


def draw_strip(plot: Plot, rows: Sequence[tuple[Series, Sequence[Mark]]]) -> None:
    axes = plot.axes[0]
    present = {mark.symbol for _, marks in rows for mark in marks}
    legend = ", ".join(meaning for symbol, meaning in MEANING.items() if symbol in present)
    axes.set_title(legend, loc="left", fontsize=8, color=FAINT)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks([])
    axes.tick_params(axis="x", which="both", length=0, labelbottom=False)
    axes.grid(visible=False, axis="y")
    axes.spines[["left", "bottom"]].set_visible(False)
    for height, (row, marks) in enumerate(rows):
        # The placement's marker begins its row.
        key = axes.plot(
            -0.03, height, marker=row.marker, color=row.light, markersize=3.6, clip_on=False,
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
        plot.belongs(row, key)
        for mark in marks:
            artists = axes.plot(
                mark.x, height, mark.symbol, color=row.light, markersize=4.6, markeredgewidth=1.5,
                clip_on=False,
            )  # fmt: skip
            plot.belongs(row, artists)
            plot.hover(row, [(mark.x, height, mark.text)], axes)


def log_x(axes: Axes, ticks: Sequence[float], label: str, margin: float | None = None) -> None:
    """Set a logarithmic x axis with ticks at `ticks`.

    If `ticks` has more than eight values, the ticks are powers of ten instead.
    """
    axes.set_xscale("log")
    axes.set_xlabel(label)
    if margin:
        axes.set_xlim(ticks[0] / margin, ticks[-1] * margin)
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)) if len(ticks) <= 8 else LogLocator(10))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def log_y(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_scores(
    comparison: Mapping[str, Any],
    groups: Mapping[tuple[str, float], Group],
    series: Mapping[str, Series],
    name: str = "scores",
    title: str = "",
) -> Plot:
    decimals = decimals_for([group.mean for group in groups.values()])
    rates = sorted(float(rate) for rate in comparison["learning_rates"])
    rows = {name: [groups[name, rate] for rate in rates] for name in series}
    marks = {row: failure_marks(rates, rows[name]) for name, row in series.items()}
    plot = begin_plot(name, (WIDTH, HEIGHT), title, marks)
    axes = plot.main
    with rc_context(STYLE):
        log_x(axes, rates, "peak learning rate", 1.6)
        for position, (name, row) in enumerate(series.items()):
            shift = _shift(rates, position - (len(series) - 1) / 2, len(series))
            _draw_score(plot, row, rates, rows[name], shift, decimals)
        set_limits(axes, [group.mean for group in groups.values()], comparison)
        better = "higher" if comparison.get("higher_is_better") else "lower"
        axes.set_ylabel(f"final {comparison['metric']} ({better} is better)")
    return plot.finish()


def failure_marks(rates: Sequence[float], groups: Sequence[Group]) -> list[Mark]:
    marks = []
    for rate, group in zip(rates, groups, strict=True):
        if group.failed:
            all_failed = CROSS if group.diverged else DASH
            symbol = all_failed if group.failed == group.seeds else PLUS
            marks.append(Mark(rate, symbol, f"rate {rate_text(rate)}: {failures(group)}"))
    return marks


def _shift(rates: Sequence[float], position: float, count: int) -> float:
    """Return a factor for x coordinates, so that the placements' markers do not overlap."""
    gaps = [b / a for a, b in itertools.pairwise(rates) if a > 0 and b > a]
    return min([*gaps, 4.0]) ** (min(0.05, 0.4 / count) * position)


def _draw_score(
    plot: Plot,
    row: Series,
    rates: Sequence[float],
    groups: Sequence[Group],
    shift: float,
    decimals: int,
) -> None:
    """Draw the scores of one placement.

    A full marker means that every seed learned at the rate. A hollow marker means that only some
    seeds learned. A line joins the full markers of neighbouring rates.
    """
    shown = [(rate, group) for rate, group in zip(rates, groups, strict=True) if group.scores]
    if not shown:
        return
    x, y = [rate * shift for rate, _ in shown], [fmean(group.scores) for _, group in shown]
    bars = plot.main.errorbar(
        x, y, yerr=[group.interval or 0.0 for _, group in shown], color=row.light, fmt="none",
        elinewidth=0.8, capsize=1.8, alpha=0.6,
    )  # fmt: skip
    plot.belongs(row, [*bars.lines[1], *bars.lines[2]])
    # nan breaks the line at rates with a failed seed or without results.
    joined = [fmean(g.scores) if g.scores and not g.failed else math.nan for g in groups]
    plot.line(row, [rate * shift for rate in rates], joined, marker=row.marker)
    some = [mean if group.failed else math.nan for mean, (_, group) in zip(y, shown, strict=True)]
    plot.line(row, x, some, marker=row.marker, linestyle="none", fillstyle="none")
    texts = [f"rate {rate_text(rate)}: {group_text(group, decimals)}" for rate, group in shown]
    plot.hover(row, list(zip(x, y, texts, strict=True)))


def set_limits(axes: Axes, means: Sequence[float | None], comparison: Mapping[str, Any]) -> None:
    """Fit the y axis to the means, because wide intervals would flatten the lines."""
    shown = [mean for mean in means if mean is not None]
    named = reference(comparison)
    if not shown:
        axes.set_yticks([])
        axes.set_ylim(0, 1)
        ended = any(cell["status"] != MISSING for cell in comparison["cells"])
        text = "no run learned" if ended else "no result yet"
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


def reference(comparison: Mapping[str, Any]) -> tuple[float, str] | None:
    """Return the value and name of a score to compare with; None if there is no such score.

    The score is that of the trivial baseline. If there is no baseline and the metric is the loss,
    the score is the median initial loss.
    """
    baseline = finite(comparison.get("baseline"))
    if baseline is not None:
        return baseline, "trivial baseline"
    first = [finite(cell.get("initial_loss")) for cell in comparison["cells"]]
    losses = [loss for loss in first if loss is not None]
    if comparison["metric"] != "loss" or not losses:
        return None
    return median(losses), "initial loss"


def _draw_reference(
    axes: Axes, value: float, name: str, low: float, high: float
) -> tuple[float, float]:
    """Draw a line at `value`, and return limits of the y axis that include `value`.

    If `value` is far outside the limits, a text at the edge of the figure replaces the line, and
    the limits stay the same.
    """
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


def draw_updates(measured: Mapping[str, Any], series: Mapping[str, Series], reading: str) -> Plot:
    """Draw how the effect of one SGD step grows with depth, relative to the smallest depth.

    With `reading` "output", the effect is the change of the output. With "label", the effect is the
    change of a label's logit, and dashed lines show the bound from theory.
    """
    depths = [int(depth) for depth in measured["depths"]]
    title = "label's logit (dashed: bound)" if reading == "label" else "output"
    plot = Plot(f"update-{reading}", SIZE, title=title)
    axes = plot.main
    with rc_context(STYLE):
        for name, row in series.items():
            kind = (name, reading, "sgd")
            values = {(u["layers"], u["seed"]): u["value"] for u in measured["updates"]
                      if (u["placement"], u["reading"], u["optimizer"]) == kind}  # fmt: skip
            if seeds := sorted({seed for _, seed in values}):
                ratios = [[values[d, s] / values[depths[0], s] for s in seeds] for d in depths]
                _draw_update(plot, row, depths, ratios)
            bounds = measured["bounds"].get(name, {}).get("paper")
            if reading == "label" and bounds:
                relative = [value / bounds[0] for value in bounds]
                plot.line(row, depths, relative, linestyle="--", linewidth=1)
        log_x(axes, depths, "layers")
        log_y(axes)
        axes.set_ylabel(f"relative to {depths[0]} layers")
    return plot.finish()


def _draw_update(
    plot: Plot, row: Series, depths: Sequence[int], ratios: Sequence[Sequence[float]]
) -> None:
    """Draw the updates of one placement as geometric means over seeds with 95 % intervals."""
    means = [math.exp(fmean(map(math.log, found))) for found in ratios]
    halves = [finite(half_width([math.log(v) for v in found])) or 0.0 for found in ratios]
    low = [mean * math.exp(-half) for mean, half in zip(means, halves, strict=True)]
    high = [mean * math.exp(half) for mean, half in zip(means, halves, strict=True)]
    plot.line(row, depths, means, linestyle="-", marker=row.marker)
    band = plot.main.fill_between(depths, low, high, color=row.light, alpha=0.12, linewidth=0)
    plot.belongs(row, [band])
    points = [
        (float(d), mean, f"{d} layers: x {mean:.2f} (95 %: {a:.2f} to {b:.2f})")
        for d, mean, a, b in zip(depths, means, low, high, strict=True)
    ]
    plot.hover(row, points)


def draw_activations(measured: Mapping[str, Any], series: Mapping[str, Series]) -> Plot:
    plot = Plot("activations", SIZE, title="at initialisation")
    with rc_context(STYLE):
        for name, row in series.items():
            values = [finite(v) for v in measured["activations"].get(name, {}).values()]
            shown = [(i, v) for i, v in enumerate(values, 1) if v is not None and v > 0]
            if not shown:
                continue
            every = max(len(shown) // 6, 1)
            x, y = [x for x, _ in shown], [y for _, y in shown]
            plot.line(row, x, y, marker=row.marker, markevery=(row.index % every, every))
            points = [(float(x), y, f"layer {x}: RMS {y:.3g}") for x, y in shown]
            plot.hover(row, points)
        log_y(plot.main)
        plot.main.set(xlabel="layer", ylabel="RMS of the output")
    return plot.finish()


def draw_curves(comparison: Mapping[str, Any], series: Mapping[str, Series]) -> list[Plot]:
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
    return [cell for cell in comparison["cells"] if cell.get("curve")]


def curve_kind(cells: Rows) -> str:
    """Return the kind of loss in all curves, "training" or "validation"; "" if kinds differ."""
    kinds = {cell.get("curve_of", "training") for cell in cells}
    return kinds.pop() if len(kinds) == 1 else ""


def shared_scale(cells: Rows) -> tuple[float, float, int] | None:
    """Return axis limits for all curves: the lower and upper loss, and the last step."""
    curves = [[(step, finite(loss)) for step, loss in cell["curve"]] for cell in cells]
    losses = [loss for curve in curves for _, loss in curve if loss is not None]
    firsts = [curve[0][1] for curve in curves if curve[0][1] is not None]
    if not losses:
        return None
    low, first = min(losses), median(firsts or losses)
    top = first + (HEADROOM * (first - low) or 1.0)
    return low, top, max(step for curve in curves for step, _ in curve)


def _draw_panel(
    name: str, rate: float, cells: Rows, scale: tuple[float, float, int],
    series: Mapping[str, Series], axis: str,
) -> Plot:  # fmt: skip
    here = [cell for cell in cells if float(cell["learning_rate"]) == rate]
    mine = {row: [c for c in here if c["placement"] == key] for key, row in series.items()}
    lost = {row: divergence_marks(runs) for row, runs in mine.items()}
    plot, (low, top, last) = begin_plot(name, SIZE, f"learning rate {rate:g}", lost), scale
    with rc_context(STYLE):
        plot.main.set(xlim=(0, last * 1.02), ylim=(low - 0.05 * (top - low), top))
        plot.main.set(xlabel="step", ylabel=axis)
        for row, runs in mine.items():
            for cell in runs:
                # nan breaks the line if the loss is not finite.
                steps, losses = thinned(cell["curve"])
                every = max(len(steps) // MARKERS, 1)
                plot.line(
                    row, steps, losses, linewidth=0.9, marker=row.marker, markersize=3.2,
                    markevery=(row.index % every, every),
                )  # fmt: skip
            plot.hover(row, mean_points(runs))
    return plot.finish()


def divergence_marks(cells: Rows) -> list[Mark]:
    """Return a mark for each diverged run.

    The mark is at the step of divergence. If this step is unknown, the mark is at the end of the
    curve.
    """
    marks = []
    for cell in cells:
        if cell["status"] == "diverged":
            at, seed = cell.get("diverged_at"), cell["seed"]
            step = cell["curve"][-1][0] if at is None else at
            reason = cell["reason"] if at is None else f"diverged at step {at}"
            marks.append(Mark(float(step), CROSS, f"seed {seed}: {reason}"))
    return marks


def thinned(curve: Sequence[Sequence[Any]]) -> tuple[list[int], list[float]]:
    """Return the steps and losses of about `CURVE_POINTS` points of a curve.

    Every loss that is not finite is kept as nan.
    """
    every = max(len(curve) // CURVE_POINTS, 1)
    rows = [(int(step), finite(loss)) for step, loss in curve]
    kept = [row for i, row in enumerate(rows) if i % every == 0 or row[1] is None]
    if rows[-1] not in kept[-1:]:
        kept.append(rows[-1])
    return [step for step, _ in kept], [math.nan if y is None else y for _, y in kept]


def mean_points(cells: Rows) -> list[tuple[float, float, str]]:
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


def draw_run(rows: Rows, baseline: Mapping[str, float]) -> list[Plot]:
    """Draw a figure for each quantity in a run's log. A line shows the trivial baseline."""
    names = dict.fromkeys(key.removeprefix(PREFIX) for row in rows for key in row)
    metrics = [name for name in names if name not in ("step", *LOOP_NAMES)]
    # Metrics with validation values come first.
    known = {key.removeprefix(PREFIX) for row in rows for key in row if key.startswith(PREFIX)}
    ordered = sorted(metrics, key=lambda name: (name != "loss", name not in known))
    ordered += [name for name in LOOP_NAMES if name in names]
    drawings = [draw_name(name, rows, baseline.get(name)) for name in ordered]
    return [drawing for drawing in drawings if drawing is not None]


def draw_name(name: str, rows: Rows, baseline: float | None) -> Plot | None:
    """Draw the training and validation values of one quantity; None if there is no value."""
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
                "trivial baseline", (1, baseline), xycoords=axes.get_yaxis_transform(), ha="right",
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
    return [(row["step"], row[key]) for row in rows if key in row]
