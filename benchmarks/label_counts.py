"""Parts of the benchmarks that ask what pre-training gives where labels are few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from magneto.files import read_json
from magneto.functional.statistics import half_width
from magneto.progress import ProgressBars
from magneto.recipe import RUN_FILE, load_recipe
from magneto.training.loop import train

ARMS = ("pre-trained", "from scratch")


def run(name: str, changes: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train a recipe, or find it trained; return its result."""
    recipe = load_recipe(name, changes)
    train(
        recipe.build_task(), recipe.training, out, seed=recipe.seed, resume=out.exists(),
        report=ProgressBars(), recipe=recipe.to_mapping(),
        keep_recipe=lambda: recipe.save(out / RUN_FILE),
    )  # fmt: skip
    return read_json(out / "result.json")


def grid(
    counts: Sequence[int], seeds: int, rates: Sequence[float]
) -> Iterator[tuple[int, int, str, float]]:
    """Yield (labels, seed, arm, rate) of what is trained: all of one seed before the next."""
    for seed in range(1, seeds + 1):
        for count in counts:
            for arm in ARMS:
                for rate in rates:
                    yield count, seed, arm, rate


def curve(found: list[dict[str, Any]], counted: str) -> list[dict[str, Any]]:
    """Return each arm's accuracy for each number of labels, at the rate with the best mean.

    Args:
        found: Of each run "arm", "seed", "rate", "accuracy" and the number of labels.
        counted: Name of that number.
    """
    rows = []
    for count in sorted({entry[counted] for entry in found}):
        for arm in ARMS:
            mine = [entry for entry in found if (entry[counted], entry["arm"]) == (count, arm)]
            by_rate: dict[float, list[float]] = {}
            for entry in sorted(mine, key=lambda entry: entry["seed"]):
                by_rate.setdefault(entry["rate"], []).append(entry["accuracy"])
            if by_rate:
                rate, values = max(by_rate.items(), key=lambda item: (len(item[1]), fmean(item[1])))
                rows.append({counted: count, "arm": arm, "rate": rate, "accuracy": fmean(values),
                             "interval": half_width(values), "seeds": values})  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]], counted: str, heading: str) -> list[str]:
    """Return the lines of a curve's table."""
    lines = [f"| {heading} | arm | accuracy | seeds | rate |", "|---|---|--:|--:|--:|"]
    for row in rows:
        interval = f" ± {row['interval']:.3f}" if len(row["seeds"]) > 1 else ""
        cells = [str(row[counted]), row["arm"], f"{row['accuracy']:.3f}{interval}",
                 str(len(row["seeds"])), f"{row['rate']:g}"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines
