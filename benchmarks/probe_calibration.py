"""How often the probe's verdict is right: configurations probed, then trained, then compared.

    python -m benchmarks.probe_calibration --count 150 --out benchmarks/results

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

from benchmarks.probe_design import Configuration, design
from magneto.analysis.probe.diagnosis import diagnose
from magneto.analysis.probe.short_run import ShortRun, initial_model, short_run
from magneto.analysis.sweep.judged import FINISHED, STUCK, Judge, verdict
from magneto.analysis.sweep.sweep import outcome
from magneto.files import plain
from magneto.progress import ProgressBars
from magneto.recipe import Recipe
from magneto.training.environment import environment
from magneto.training.loop import train

# Steps of training that the probe takes, and that it takes at the peak rate without a warm-up.
STEPS, PEAK_STEPS = 5, 12
# Steps at a run's end over which its training loss is averaged.
LAST = 20


def probe_at_peak(recipe: Recipe) -> ShortRun:
    """Take the first steps at the peak rate, as if there were neither warm-up nor decay."""
    task = recipe.build_task()
    task.prepare()
    config = replace(recipe.training, warmup_steps=0, steps=10**6)
    model = initial_model(task, config, recipe.seed)
    return short_run(task, model, config, seed=recipe.seed, steps=PEAK_STEPS, rates=())


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


def measured_run(run: ShortRun) -> dict[str, Any]:
    """Return a short run as plain values, with all that was seen of its layers."""
    return plain(asdict(run))


def measure(configuration: Configuration) -> tuple[dict[str, Any], dict[str, Any]]:
    """Probe and train one configuration; return its row, and all that the probe saw."""
    started = time.process_time()
    recipe = configuration.recipe()
    found = diagnose(recipe, steps=STEPS, seeds=0)
    peak = probe_at_peak(recipe)
    probed = time.process_time()
    row = {
        "name": configuration.name,
        **asdict(configuration),
        "held_out": configuration.held_out,
        "verdict_before": found.verdict.level,
        **{f"{part.name}_before": part.value for part in found.verdict.findings},
        **train_and_judge(recipe),
        "probe_seconds": round(probed - started, 1),
        "seconds": round(time.process_time() - started, 1),
    }
    raw = {"name": configuration.name, "own": measured_run(found.run), "peak": measured_run(peak)}
    return row, raw


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the whole rows of a CSV; what a kill cut short is left out."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return list(csv.DictReader(whole.splitlines()))


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


def measure_all(drawn: Sequence[Configuration], path: Path, raw: Path | None) -> Iterator[str]:
    """Measure what has no row yet; yield a line about each."""
    known = {row["name"] for row in read_rows(path)}
    for number, configuration in enumerate(drawn, 1):
        if configuration.name in known:
            continue
        row, seen = measure(configuration)
        if raw is not None:
            with raw.open("a", encoding="utf-8") as file:
                file.write(json.dumps(seen) + "\n")
        append_row(path, row)
        yield (f"{number}/{len(drawn)} {row['name']}: {row['verdict_before']}, {row['outcome']}, "
               f"{row['seconds']} s")  # fmt: skip


def main(words: list[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--raw", type=Path, help="a .jsonl for every reading of every layer")
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    print(json.dumps(environment()), os.getloadavg(), flush=True)
    for line in measure_all(design(args.count), args.out / "probe-calibration.csv", args.raw):
        print(line, flush=True)


if __name__ == "__main__":
    main()
