"""Diagnosis of a recipe before training: the theory's bound, measurements, and a verdict.

With `magneto probe --trial`, a short training run (the trial) follows. The score of the trial is
compared with the task's trivial baseline. No files remain.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from magneto.lab.outcome import DIVERGED, FINISHED, STUCK, Judge, outcome, verdict
from magneto.lab.probe import find_stacks
from magneto.lab.short_run import PEAK_STEPS, ShortRun, initial_model, short_run, steps_at_peak
from magneto.lab.sweep import prepare_task, training_in_steps
from magneto.lab.update import Bound, Growth, growth, measure_growth, measured_shape, theory_of
from magneto.lab.verdict import Verdict, judge
from magneto.progress import SILENT, Progress, ProgressBars
from magneto.recipe import Recipe
from magneto.theory.placement import Placement
from magneto.training.loop import Hook, Stop, TrainingState, log, run_evaluation, train

# Maximum validation batches of a trial, if the recipe sets no limit.
BATCHES = 16
OVER = "the trial is over"
WORDS = {FINISHED: "learned", STUCK: "has not learned yet", DIVERGED: "diverged"}


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of one recipe: the theory's bound, measurements of a few steps, and the verdict.

    `growth` describes how updates grow with the depth of the model's last stack, for example the
    decoder in translation. `growth` is empty if not measured.
    """

    placement: Placement
    layers: tuple[int, ...]
    learning_rate: float
    bound: Bound
    run: ShortRun
    verdict: Verdict
    growth: list[Growth]

    def to_mapping(self) -> dict[str, Any]:
        return {
            "placement": self.placement.name,
            "title": self.placement.title,
            "layers": list(self.layers),
            "learning_rate": self.learning_rate,
            "verdict": {
                "level": self.verdict.level,
                "reasons": self.verdict.reasons,
                "findings": [asdict(finding) for finding in self.verdict.findings],
            },
            "bound": asdict(self.bound),
            "growth": [asdict(part) for part in self.growth],
            "trouble": {
                name: found and {"step": found[0], **asdict(found[1])}
                for name, found in self.run.troubles().items()
            },
            "steps": [asdict(step) for step in self.run.steps],
            "peak_steps": [asdict(step) for step in self.run.peak_steps],
            "first_steps": [asdict(step) for step in self.run.first_steps],
        }


def diagnose(
    recipe: Recipe, *, steps: int, seeds: int = 3, progress: Progress = SILENT
) -> Diagnosis:
    """Measure a recipe at initialisation and in its first `steps` steps (at least 1).

    The recipe's seed determines weights and batches, as in training. The growth of updates with
    depth is measured with `seeds` seeds; 0 skips this measurement.
    """
    task = prepare_task(recipe, progress)
    model = initial_model(task, recipe.training, recipe.seed)
    theory, stacks = theory_of(model), list(find_stacks(model).values())
    run = short_run(task, model, recipe.training, seed=recipe.seed, steps=steps, progress=progress)
    at_peak = steps_at_peak(
        task, recipe.training, seed=recipe.seed, steps=PEAK_STEPS, progress=progress
    )
    run = replace(run, peak_steps=at_peak)
    last = stacks[-1]
    depths = sorted({max(len(last.layers) // 4, 1), len(last.layers)})
    grown: list[Growth] = []
    if seeds and len(depths) > 1:
        stack = "decoder" if last.causal else "encoder"
        shape = measured_shape(last.config)
        grown = growth(
            measure_growth(shape, depths=depths, seeds=range(seeds), stack=stack, progress=progress)
        )
    return Diagnosis(
        placement=last.config.row,
        layers=tuple(len(stack.layers) for stack in stacks),
        learning_rate=recipe.training.learning_rate or 0.0,
        bound=theory,
        run=run,
        verdict=judge(run),
        growth=grown,
    )


@dataclass(frozen=True)
class Trial:
    """Result of training a recipe for a short time."""

    status: str  # one of `WORDS`; `reason` says why
    reason: str
    metric: str
    score: float | None  # primary metric at the end; None if the run diverged
    baseline: float | None  # None without a baseline, as is the threshold
    threshold: float | None  # value to beat
    steps: int  # taken, the first ones of the recipe's schedule
    of_steps: int  # of the whole schedule
    seconds: float  # from the end of the first step, without the evaluation

    @property
    def text(self) -> str:
        duration = f"{self.steps} of {self.of_steps} steps in {self.seconds:.0f} s"
        if self.status == WORDS[DIVERGED]:
            return f"diverged within {duration}: {self.reason}"
        compared = "no trivial baseline"
        if self.baseline is not None:
            compared = (f"trivial baseline {self.baseline:.4g}; a score better than "
                        f"{self.threshold:.4g} counts as learned")  # fmt: skip
        return f"{self.status} after {duration}: {self.metric} {self.score:.4g} ({compared})"


def run_trial(recipe: Recipe, seconds: float, report: ProgressBars | None = None) -> Trial:
    """Train for `seconds` (at least one step), evaluate, and judge the run as in a comparison."""
    task = recipe.build_task()
    limit = recipe.training.evaluate_limit or BATCHES
    config = replace(
        recipe.training, evaluate_limit=limit, evaluate_every=0, save_every=0,
        average_checkpoints=0, tensorboard=False,
    )  # fmt: skip
    times: list[float] = []

    def stop_in_time(state: TrainingState) -> None:
        times.append(time.perf_counter())
        if times[-1] - times[0] < seconds or state.step == state.config.steps:
            return
        log(state)  # detects divergence
        if state.stop is None:
            state.metrics = run_evaluation(state)
            state.stop = Stop("interrupted", OVER)

    with tempfile.TemporaryDirectory() as folder:
        run, quiet = Path(folder) / "trial", report or ProgressBars(quiet=True)
        hooks = [Hook(1, stop_in_time)]
        result = train(task, config, run, seed=recipe.seed, hooks=hooks, report=quiet)
        found = outcome(result, run)
    if result.status == "interrupted":
        if result.reason != OVER:
            raise KeyboardInterrupt
        found["status"] = FINISHED
    judge = Judge.of(task, limit)
    # Within the first logged steps a loss may rise without divergence.
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
        of_steps=training_in_steps(recipe, task).steps,
        seconds=times[-1] - times[0],
    )
