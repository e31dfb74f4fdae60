"""All that can be said of one recipe before it is trained: bound, measurements, verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from magneto.lab.plan import check_weights_first
from magneto.lab.probe import find_stacks
from magneto.lab.short_run import PEAK_STEPS, ShortRun, initial_model, short_run, steps_at_peak
from magneto.lab.update import (
    Bound,
    Growth,
    growth,
    measure_growth,
    measured_shape,
    theory_of,
)
from magneto.lab.verdict import Verdict, judge
from magneto.progress import SILENT, Progress
from magneto.recipe import Recipe
from magneto.theory.placement import Placement
from magneto.training.distributed import one_process, pick_device
from magneto.training.model import check_memory


@dataclass(frozen=True)
class Diagnosis:
    """What is known of one recipe.

    Attributes:
        placement: Its row.
        layers: Of each stack.
        learning_rate: The peak that training would have.
        bound: The theory's.
        run: A few steps of its training.
        verdict: What they say.
        growth: The measured update over the depth of the last stack, fitted; empty if not measured.
    """

    placement: Placement
    layers: tuple[int, ...]
    learning_rate: float
    bound: Bound
    run: ShortRun
    verdict: Verdict
    growth: list[Growth]

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as plain values."""
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
    """Look at a recipe at initialisation and along its first steps.

    Args:
        recipe: Its seed decides weights and batches, as in training.
        steps: Of training, 1 or more.
        seeds: For the growth of the update with depth; 0 leaves it out.
        progress: Shows what is being done.

    Raises:
        ValueError: If the task's model holds no stack, or the data is not as it should be.
    """
    check_weights_first(recipe)
    task = recipe.build_task()
    task.prepare(progress)
    world = one_process(pick_device(recipe.training.device))
    check_memory(task, recipe.training, world, recipe.seed)
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
        grown = growth(
            measure_growth(
                measured_shape(last.config),
                placements=[last.config.row],
                depths=depths,
                seeds=range(seeds),
                stack="decoder" if last.causal else "encoder",
                progress=lambda done, total: progress.update("measuring updates", done, total),
            )
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
