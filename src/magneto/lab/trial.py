"""A short trial: train a recipe for a given time and hold it against the task's trivial baseline.

Where measurements at the beginning decide nothing, this looks at training itself. Nothing is kept.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from magneto.lab.outcome import DIVERGED, FINISHED, STUCK, Judge, outcome, verdict
from magneto.progress import ProgressBars
from magneto.recipe import Recipe
from magneto.training.loop import Hook, Stop, TrainingState, log, run_evaluation, train

# Validation batches to score at most where the recipe sets no limit: it is a look.
BATCHES = 16
OVER = "the trial is over"
WORDS = {FINISHED: "learned", STUCK: "has not learned yet", DIVERGED: "diverged"}


@dataclass(frozen=True)
class Trial:
    """What became of a recipe in a short time.

    Attributes:
        status: "learned", "has not learned yet" or "diverged".
        reason: Why it has not learned; "" if it has.
        metric: The task's primary metric.
        score: Its value at the end; None if it diverged before.
        baseline: The trivial baseline's value of it; None if the task states none.
        threshold: What had to be beaten; likewise.
        steps: Steps taken, with the recipe's schedule.
        of_steps: The recipe's.
        seconds: Of training, from the end of the first step, without the evaluation.
    """

    status: str
    reason: str
    metric: str
    score: float | None
    baseline: float | None
    threshold: float | None
    steps: int
    of_steps: int
    seconds: float

    @property
    def text(self) -> str:
        """The trial in one line."""
        took = f"{self.steps} of {self.of_steps} steps in {self.seconds:.0f} s"
        if self.status == WORDS[DIVERGED]:
            return f"diverged within {took}: {self.reason}"
        beaten = (
            "no trivial baseline is stated"
            if self.baseline is None
            else f"the trivial baseline has {self.baseline:.4g}; "
            f"learned is better than {self.threshold:.4g}"
        )
        return f"{self.status} after {took}: {self.metric} {self.score:.4g}; {beaten}"


def run_trial(recipe: Recipe, seconds: float, report: ProgressBars | None = None) -> Trial:
    """Train for some seconds, evaluate, and judge as a comparison judges a run.

    Args:
        recipe: With its schedule, of which the first steps are taken.
        seconds: Of training, more than 0; at least one step is taken.
        report: Shows progress.

    Raises:
        KeyboardInterrupt: If it is asked to stop before.
    """
    task = recipe.build_task()
    limit = recipe.training.evaluate_limit or BATCHES
    config = replace(
        recipe.training, evaluate_limit=limit, evaluate_every=0, save_every=0,
        average_checkpoints=0, tensorboard=False,
    )  # fmt: skip
    times: list[float] = []

    def look(state: TrainingState) -> None:
        times.append(time.perf_counter())
        if times[-1] - times[0] < seconds or state.step == state.config.steps:
            return
        log(state)  # which may find that it has diverged
        if state.stop is None:
            state.metrics = run_evaluation(state)
            state.stop = Stop("interrupted", OVER)

    with tempfile.TemporaryDirectory() as folder:
        run, quiet = Path(folder) / "trial", report or ProgressBars(quiet=True)
        result = train(task, config, run, seed=recipe.seed, hooks=[Hook(1, look)], report=quiet)
        found = outcome(result, run)
    if result.status == "interrupted":
        if result.reason != OVER:
            raise KeyboardInterrupt
        found["status"] = FINISHED
    judge = Judge.of(task, limit)
    # One entry of the curve is of a few steps: by then a loss may be higher without diverging.
    first = found["curve"][0][1] if len(found["curve"]) > 1 else None
    status, reason = verdict(found, judge, first)
    return Trial(
        status=WORDS[status],
        reason=reason,
        metric=judge.metric,
        score=result.metrics.get(judge.metric),
        baseline=judge.baseline,
        threshold=judge.threshold,
        steps=result.step,
        of_steps=config.steps,
        seconds=times[-1] - times[0],
    )
