"""What stands below each figure; a caption speaks only of what its figure holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magneto.lab.report.curve_figures import curve_kind, is_cut, with_curves
from magneto.lab.sweep.grid import Group
from magneto.lab.sweep.judged import MARGIN, Judge


def score_caption(comparison: Mapping[str, Any], groups: Mapping[tuple[str, float], Group]) -> str:
    """Return the caption of the score figure."""
    found = list(groups.values())
    sentences = []
    if any(group.mean is not None and group.interval is not None for group in found):
        sentences.append(
            "Bars: 95 % confidence interval over seeds; one that meets the frame goes on beyond it."
        )
    if any(group.failed for group in found):
        sentences.append(
            "Above the axis: a row for each placement with runs that failed. "
            "A line joins only neighbouring rates at which every seed learned."
        )
    if any(group.failed and group.mean is not None for group in found):
        sentences.append("A hollow marker: the mean of the seeds that learned, where some failed.")
    if sum(any(g.mean is not None for g in _of(groups, p)) for p in comparison["placements"]) > 1:
        sentences.append("Placements stand side by side at each rate.")
    sentences.append(baseline_sentence(comparison))
    return " ".join(sentence for sentence in sentences if sentence)


def _of(groups: Mapping[tuple[str, float], Group], placement: str) -> list[Group]:
    return [group for (name, _), group in groups.items() if name == placement]


def judged_sentence(comparison: Mapping[str, Any]) -> str:
    """Say how rows are told apart, where several of them have several seeds; "" elsewhere."""
    if sum(len(row["scores"]) > 1 for row in comparison["summary"]) < 2:
        return ""
    return (
        "Two rows differ beyond noise if Welch's t test over their seeds says so by Holm's method "
        "over all pairs of rows: of reports on rows of equal "
        "means and like spread at most 5 % name a difference. "
    )


def baseline_sentence(comparison: Mapping[str, Any]) -> str:
    """Say what a run had to beat to count as one that learned; "" without a baseline."""
    if comparison.get("baseline") is None:
        return own_baselines(comparison)
    side = "above" if comparison["higher_is_better"] else "below"
    return (
        f"The trivial baseline of this task has {comparison['metric']} "
        f"{comparison['baseline']:.4g} on the same data; a run that does not end {side} "
        f"{comparison['threshold']:.4g} ({MARGIN:.0%} of the way from it to the best possible "
        "score) did not learn."
    )


def own_baselines(comparison: Mapping[str, Any]) -> str:
    """Say what each row had to beat, where rows have different data; "" without baselines."""
    metric, higher = comparison["metric"], comparison["higher_is_better"]
    known = {
        row: Judge(metric, higher, value)
        for row, value in comparison.get("baselines", {}).items()
        if value is not None
    }
    said = ", ".join(
        f"{judge.threshold:.4g} ({row}; baseline {judge.baseline:.4g})"
        for row, judge in known.items()
    )
    if not said:
        return ""
    return (
        f"Each row is held against the trivial baseline on its own data; a run whose {metric} does "
        f"not end {'above' if higher else 'below'} {MARGIN:.0%} of the way from it to the best "
        f"possible score did not learn: {said}."
    )


def curves_heading(comparison: Mapping[str, Any]) -> str:
    """Return the heading of the loss curves: of training or validation."""
    return f"{curve_kind(with_curves(comparison))} loss".strip().capitalize()


def curves_caption(comparison: Mapping[str, Any]) -> str:
    """Return the caption of the loss curves."""
    cells = with_curves(comparison)
    sentences = [
        "One line per seed." if len({c["seed"] for c in cells}) > 1 else "One line per run."
    ]
    if not curve_kind(cells):
        short = sum(cell["curve_of"] == "training" for cell in cells)
        sentences.append(
            f"Validation loss; of {short} run{'s' if short > 1 else ''} that ended before a second "
            "validation, training loss."
        )
    if any(cell["status"] == "diverged" for cell in cells):
        sentences.append("Above the axis, × marks the step at which a run diverged or ended worse.")
    if len({cell["learning_rate"] for cell in cells}) > 1:
        sentences.append("Every panel has the same scale.")
    if is_cut(cells):
        sentences.append("What lies far above the loss of the first steps is cut off.")
    return " ".join(sentences)
