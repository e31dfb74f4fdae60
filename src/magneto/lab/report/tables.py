"""The tables of a report as words: placements, the grid, growth with depth, layers, runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magneto.lab.sweep.grid import Group, failures, part, plus_minus, rate_text

Groups = Mapping[tuple[str, float], Group]


@dataclass(frozen=True)
class Entry:
    """One entry of a table.

    Attributes:
        text: What it says.
        key: What its column is sorted by; None comes last.
        best: Whether it is the best of its kind.
    """

    text: str
    key: float | str | None = None
    best: bool = False


def subtitle(comparison: Mapping[str, Any]) -> str:
    """Say what was compared: layers, width, steps, seeds and the size of the grid."""
    config = comparison["config"]
    model, training = config.get("model") or {}, config.get("training") or {}
    depth = f"{model['layers']} layers" if model.get("layers") else ""
    if model.get("encoder_layers"):
        depth = f"{model['encoder_layers']} + {model['decoder_layers']} layers"
    width = f"width {model['width']}" if model.get("width") else ""
    steps = f"{training['steps']} steps" if training.get("steps") else ""
    counts = [("placement", "placements"), ("learning rate", "learning_rates")]
    grid = [
        f"{len(comparison[key])} {name}{'s' if len(comparison[key]) > 1 else ''}"
        for name, key in counts
    ]
    grid.append(seeds_text(comparison))
    return ", ".join([said for said in (depth, width, steps) if said] + [" × ".join(grid)])


def seeds_text(comparison: Mapping[str, Any]) -> str:
    """Say over how many seeds: "3 seeds", "1 seed, 5 near each row's best rate"."""
    everywhere = set(comparison["seeds"])
    near = everywhere | set(comparison.get("seeds_near_best") or ())
    said = f"{len(everywhere)} seed{'s' if len(everywhere) > 1 else ''}"
    more = f", {len(near)} at each row's best learning rate and its neighbours"
    return said + (more if len(near) > len(everywhere) else "")


def summary_rows(
    comparison: Mapping[str, Any], groups: Groups, decimals: int
) -> list[dict[str, Any]]:
    """Return a row for each placement; the one of the best score is marked.

    None is marked where no other row has a score, or where rows have different data: their scores
    are not ranked.
    """
    ranked = [] if comparison.get("data") else comparison["summary"]
    known = [row["score"] for row in ranked if row["score"] is not None]
    known = known if len(known) > 1 else []
    best = max(known, default=None) if comparison["higher_is_better"] else min(known, default=None)
    return [
        {
            "title": row["title"],
            "best": best is not None and row["score"] == best,
            "entries": summary_entries(row, groups, decimals),
        }
        for row in comparison["summary"]
    ]


def summary_entries(row: Mapping[str, Any], groups: Groups, decimals: int) -> list[Entry]:
    """Return best rate, score there, largest stable rate, next rate, sensitivity, failed runs."""
    best, stable, following = (
        row[key] for key in ("best_learning_rate", "largest_stable_rate", "next_rate")
    )
    partial = "" if best is None else part(groups[row["placement"], float(best)])
    beyond = " (above the largest stable)" if row["best_beyond_stable"] else ""
    sensitivity = row["sensitivity"]
    total = row["finished"] + row["stuck"] + row["diverged"]
    return [
        Entry(rate_text(best) + beyond, best),
        Entry(plus_minus(row["score"], row["interval"], decimals) + partial, row["score"]),
        Entry(stable_text(row), stable),
        Entry(next_text(row), following),
        Entry("–" if sensitivity is None else f"{sensitivity:.3f}", sensitivity),
        Entry(failed_text(row, total), row["diverged"] + row["stuck"]),
    ]


def failed_text(row: Mapping[str, Any], total: int) -> str:
    """Say how many runs of a placement failed, and how: "3 of 18: 1 diverged, 2 did not learn"."""
    kinds = [(row["diverged"], "diverged"), (row["stuck"], "did not learn")]
    there = [(count, kind) for count, kind in kinds if count]
    if len(there) == 1:
        return f"{there[0][0]} of {total} {there[0][1]}"
    said = ", ".join(f"{count} {kind}" for count, kind in there)
    return f"{sum(count for count, _ in there)} of {total}{f': {said}' if said else ''}"


def stable_text(row: Mapping[str, Any]) -> str:
    """Say the largest stable rate, and by how many seeds: "0.03 (1 seed)"."""
    count = len(row["stable_seeds"])
    seeds = "" if row["largest_stable_rate"] is None else f" ({count} seed{'s' * (count != 1)})"
    return rate_text(row["largest_stable_rate"]) + seeds


def next_text(row: Mapping[str, Any]) -> str:
    """Say what the next rate was that was tried, and how many of its seeds failed."""
    if row["next_rate"] is None:
        return "none" if row["largest_stable_rate"] is not None else "–"
    failed, count = row["failed_there"]
    if not failed:
        return f"{rate_text(row['next_rate'])}: no result yet of every run"
    return f"{rate_text(row['next_rate'])}: {failed} of {count} failed"


def grid_rows(
    comparison: Mapping[str, Any], groups: Groups, rates: Sequence[float], decimals: int
) -> list[dict[str, Any]]:
    """Return a row for each placement; in each column the best mean of a whole group is marked."""
    best: dict[float, float] = {}
    choose = max if comparison["higher_is_better"] else min
    for rate in rates if not comparison.get("data") else ():
        there = [groups[name, rate] for name in comparison["placements"]]
        means = [g.mean for g in there if g.mean is not None and not g.failed]
        if means:
            best[rate] = choose(means)
    rows = []
    for summary in comparison["summary"]:
        mine = [(rate, groups[summary["placement"], rate]) for rate in rates]
        entries = [
            Entry(
                group_text(group, decimals),
                group.mean,
                not group.failed and group.mean is not None and group.mean == best.get(rate),
            )
            for rate, group in mine
        ]
        rows.append({"title": summary["title"], "entries": entries})
    return rows


def group_text(group: Group, decimals: int) -> str:
    """Write the mean of the seeds that learned, and what became of the others."""
    lost = failures(group)
    if group.mean is None and lost:
        return f"{lost}{part(group)}"
    text = plus_minus(group.mean, group.interval, decimals)
    return f"{text}{f' ({lost})' if lost else ''}{part(group)}"


def brief_group_text(group: Group, decimals: int) -> str:
    """Write the same mean in a few characters: "6.127 (4/5)" is that of four seeds of five."""
    if group.mean is None:
        kinds = {(True, False): "diverged", (False, True): "not learned", (True, True): "failed"}
        return kinds.get((group.diverged > 0, group.stuck > 0), "-") + part(group)
    planned = group.seeds + group.missing
    learned = f" ({len(group.scores)}/{planned})" if len(group.scores) < planned else ""
    return f"{group.mean:.{decimals}f}{learned}"


def growth_rows(comparison: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return how one SGD step's change of the output grows with depth, measured and bounded."""
    measured = comparison.get("measured") or {}
    titles = {row["placement"]: row["title"] for row in comparison["summary"]}
    rows: dict[str, dict[str, str]] = {}
    for found in measured.get("growth", ()):
        if found["optimizer"] != "sgd" or found["placement"] not in titles:
            continue
        bounds = measured["bounds"].get(found["placement"], {}).get("paper")
        row = rows.setdefault(
            found["placement"],
            {
                "title": titles[found["placement"]],
                "bound": f"× {bounds[-1] / bounds[0]:.2f}" if bounds else "–",
                "depths": "{} to {}".format(*found["depths"]),
            },
        )
        low, high = found["ratio_range"]
        interval = "" if low is None or high is None else f" ({_short(low)} to {_short(high)})"
        row[found["reading"]] = f"× {found['ratio']:.2f}{interval}"
    return list(rows.values())


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2f}"


def layer_rows(comparison: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return each layer's name with the RMS of its output in every placement."""
    activations = (comparison.get("measured") or {}).get("activations", {})
    columns = [activations.get(name, {}) for name in comparison["placements"]]
    names = dict.fromkeys(layer for column in columns for layer in column)
    return [(layer, [_rms(column.get(layer)) for column in columns]) for layer in names]


def _rms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def run_rows(cells: Sequence[Mapping[str, Any]], decimals: int) -> list[dict[str, Any]]:
    """Return a row for each run."""
    return [
        {
            "placement": cell["placement"],
            "entries": [
                Entry(rate_text(cell["learning_rate"]), cell["learning_rate"]),
                Entry(str(cell["seed"]), cell["seed"]),
                Entry(cell["status"], cell["status"]),
                Entry(plus_minus(cell["score"], None, decimals), cell["score"]),
            ],
            "note": _note(cell),
        }
        for cell in cells
    ]


def _note(cell: Mapping[str, Any]) -> str:
    if cell["diverged_at"] is not None:
        return f"at step {cell['diverged_at']}: {cell['reason']}"
    return str(cell["reason"] or "")
