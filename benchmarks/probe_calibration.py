"""How often the probe's verdict is right: configurations probed, then trained, then compared.

    python -m benchmarks.probe_calibration --count 240 --out benchmarks/results

Draws configurations (task, placement, depth, width, peak rate, warm-up) by a fixed seed, and writes
one row of a CSV for each: what the probe measured, and what became of a short training run. Rows
that are there already are not made again, so that it can be killed and started anew.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.probe_confusion import read_rows
from benchmarks.probe_design import Configuration, design
from magneto.analysis.probe.diagnosis import diagnose
from magneto.analysis.probe.levels import HALF_BF16, HALF_FP16, Measured
from magneto.analysis.probe.short_run import ShortRun
from magneto.analysis.probe.verdict import measured, move_at
from magneto.analysis.sweep.judged import FINISHED, STUCK, Judge, verdict
from magneto.analysis.sweep.sweep import outcome
from magneto.progress import ProgressBars
from magneto.recipe import Recipe
from magneto.training.environment import environment
from magneto.training.loop import train

# Steps of training that the probe takes: the command's default.
STEPS = 5
# Steps at a run's end over which its training loss is averaged.
LAST = 20


def train_and_judge(recipe: Recipe) -> dict[str, Any]:
    """Train, and say what became of it as a comparison would.

    A classifier's accuracy may beat that of the commonest class by always naming another class; so
    one of its losses, too, must beat the baseline's by the margin.
    """
    task = recipe.build_task()
    task.prepare()
    baseline = task.baseline(recipe.training.evaluate_limit)
    with tempfile.TemporaryDirectory() as folder:
        config = replace(recipe.training, log_every=LAST // 2)
        result = train(
            task, config, Path(folder), seed=recipe.seed, report=ProgressBars(quiet=True)
        )
        found = outcome(result, Path(folder))
    if result.status == "interrupted":
        raise SystemExit("stopped; the same command goes on")
    curve = [loss for _, loss in found["curve"]]
    ends = [fmean(curve[-2:]) if curve else None, found["metrics"].get("loss")]
    metric = task.primary_metric
    judge = Judge(metric, task.higher_is_better, baseline[metric])
    status, _ = verdict(found, judge, curve[0] if curve else None)
    low = min((loss for loss in ends if loss is not None), default=math.nan)
    by_loss = Judge("loss", False, baseline["loss"])
    learned = status == FINISHED and (metric == "loss" or by_loss.beats_baseline(low))
    return {
        "outcome": "learned" if learned else STUCK if status == FINISHED else status,
        "judged": status,
        "score": found["metrics"].get(metric),
        "baseline": baseline[metric],
        "loss": ends[1],
        "training_loss": ends[0],
        "baseline_loss": baseline["loss"],
        "steps": result.step,
    }


def measure(configuration: Configuration) -> dict[str, Any]:
    """Probe and train one configuration; return its row."""
    started = time.process_time()
    recipe = configuration.recipe()
    found = diagnose(recipe, steps=STEPS, seeds=0)
    numbers, moved = measured(found.run), moved_at_first(found.run)
    probed = time.process_time()
    where = environment()
    return {
        "name": configuration.name,
        **asdict(configuration),
        **asdict(numbers),
        "moved_first": moved,
        "verdict_before": verdict_before(numbers, moved),
        **train_and_judge(recipe),
        "probe_seconds": round(probed - started, 1),
        "seconds": round(time.process_time() - started, 1),
        "commit": where["commit"],
        "torch": where["packages"]["torch"],
    }


def moved_at_first(run: ShortRun) -> float | None:
    """Return how far the first step at a rate above 0 moves the output."""
    rate = next((step.learning_rate for step in run.steps if step.learning_rate > 0), None)
    return None if rate is None else move_at(run.first_steps, rate)


def verdict_before(numbers: Measured, moved: float | None) -> str:
    """Return what the probe said before this calibration, by the rules that it had then."""
    fails = (
        not (numbers.kept or 0.0) >= 0.05,
        not (numbers.largest or 0.0) <= HALF_BF16,
        not (numbers.rise or 0.0) < 1.5,
    )
    risks = (
        not (numbers.kept or 0.0) >= 0.25,
        moved is not None and not moved < 0.75,
        not (numbers.imbalance or 0.0) < 100,
        (1.0 if numbers.attention is None else numbers.attention) < 0.05,
        not (numbers.largest or 0.0) <= HALF_FP16,
    )
    return "likely to fail" if any(fails) else "at risk" if any(risks) else "sound"


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a CSV, with the heads if it is the first, and remove what is not whole."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole, newline, _ = text.rpartition("\n")
    path.write_text(whole + newline, encoding="utf-8")
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if not whole:
            writer.writeheader()
        writer.writerow(row)


def measure_all(drawn: Sequence[Configuration], path: Path) -> Iterator[str]:
    """Measure what has no row yet; yield a line about each."""
    known = {row["name"] for row in read_rows(path)}
    for number, configuration in enumerate(drawn, 1):
        if configuration.name in known:
            continue
        row = measure(configuration)
        append_row(path, row)
        yield (f"{number}/{len(drawn)} {row['name']}: {row['verdict_before']}, {row['outcome']}, "
               f"{row['seconds']} s")  # fmt: skip


def main(words: list[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=240)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    print(json.dumps(environment()), os.getloadavg(), flush=True)
    for line in measure_all(design(args.count), args.out / "probe-calibration.csv"):
        print(line, flush=True)


if __name__ == "__main__":
    main()
