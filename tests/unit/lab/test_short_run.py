"""The short run equals the first steps of training, and trials of the first step are undone."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from magneto.lab.short_run import ShortRun, initial_model, short_run, steps_at_peak
from magneto.progress import ProgressBars
from magneto.recipe import Recipe
from magneto.training.logging import read_metrics
from magneto.training.loop import train

Small = Callable[..., Recipe]


def run_of(made: Recipe, steps: int) -> ShortRun:
    task = made.build_task()
    task.prepare()
    model = initial_model(task, made.training, made.seed)
    return short_run(task, model, made.training, seed=made.seed, steps=steps)


def test_it_takes_the_steps_that_training_takes(small: Small, tmp_path: Path) -> None:
    """Dropout and the number of micro-batches are the same."""
    extra = {"model__dropout": 0.2, "training__gradient_accumulation_steps": 2}
    made = small(training__steps=4, **extra)
    train(
        made.build_task(), made.training, tmp_path, seed=made.seed, report=ProgressBars(quiet=True)
    )
    trained = [row for row in read_metrics(tmp_path) if "loss" in row][:3]
    short = run_of(made, 3).steps
    assert [step.loss for step in short] == [row["loss"] for row in trained]
    assert [step.gradient_norm for step in short] == [row["gradient_norm"] for row in trained]
    assert [step.learning_rate for step in short] == [row["learning_rate"] for row in trained]


def test_first_steps(small: Small) -> None:
    run = run_of(small(), 1)
    start, *tries = run.first_steps
    assert (start.learning_rate, start.moved) == (0.0, 0.0)
    rates = [tried.learning_rate for tried in tries]
    assert rates == sorted(rates) and 3e-3 in rates, "the peak is among them"
    moved = [tried.moved for tried in tries if tried.learning_rate < 1e-4]
    assert all(a < b for a, b in pairwise(moved))
    assert moved[1] / moved[0] == pytest.approx(10**0.5, rel=0.05), "a small step is linear"


def test_the_first_try_at_the_peak_updates_weights_as_the_first_step_there(small: Small) -> None:
    """Steps at the peak have neither warm-up nor decay."""
    made = small(training__warmup_steps=0, training__steps=3)
    task = made.build_task()
    task.prepare()
    run = run_of(made, 1)
    steps = steps_at_peak(task, made.training, seed=made.seed, steps=4)
    assert [step.learning_rate for step in steps] == [made.training.learning_rate] * 4
    tried = run.at_rate(run.peak)
    assert tried is not None and run.peak == made.training.learning_rate
    ratios = [layer.update_ratio or 0.0 for layer in steps[0].layers]
    assert tried.update == pytest.approx(sum(ratios) / len(ratios)) and tried.update > 0
    assert [step.loss for step in steps[:1]] == [step.loss for step in run.steps]


def test_a_run_that_breaks_ends_there_and_names_the_layer(small: Small) -> None:
    made = small(training__learning_rate=1e30, training__warmup_steps=0)
    run = run_of(made, 6)
    assert len(run.steps) < 6
    found = run.trouble("bf16")
    assert found is not None and found[1].layer.startswith("decoder.layers.")
