"""All that can be said of one recipe before it is trained: bound, measurements, verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from magneto.lab.probe.probe import find_stacks
from magneto.lab.probe.scales import measured_bound
from magneto.lab.probe.short_run import (
    PEAK_STEPS,
    ShortRun,
    initial_model,
    short_run,
    steps_at_peak,
)
from magneto.lab.probe.update import Growth, growth, measure_growth, measured_shape
from magneto.lab.probe.verdict import Verdict, judge
from magneto.progress import SILENT, Progress
from magneto.recipe import Recipe
from magneto.theory.bounds import bound, encoder_decoder_bound, find_family
from magneto.theory.placement import Placement
from magneto.theory.scales import derived_scales
from magneto.training.distributed import one_process, pick_device
from magneto.training.memory import check_memory


@dataclass(frozen=True)
class Bound:
    """What the theory bounds: the model update of one SGD step, divided by rate and width.

    Attributes:
        derived: With the scales that the placement's initialisation has on square matrices, for
            each form of the formula.
        measured: With the scales of the model's own weights.
        note: Why there is no bound, or what to know of it.
    """

    derived: dict[str, float]
    measured: dict[str, float]
    note: str = ""


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
    task = recipe.build_task()
    check_memory(task, recipe.training, one_process(pick_device(recipe.training.device)))
    task.prepare(progress)
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


def theory_of(model: nn.Module) -> Bound:
    """Return the bound of a model's update, where one is derived."""
    stacks = list(find_stacks(model).values())
    row = stacks[-1].config.row
    derived, measured = {}, {}
    try:
        family = find_family(row)
        scales = [
            derived_scales(row, stack.config.depth("decoder" if stack.causal else "encoder"))
            for stack in stacks
        ]
        for form in family.backward:
            measured[form] = measured_bound(model, form=form)
            derived[form] = (
                bound(row, scales[0], form=form)
                if len(scales) == 1
                else encoder_decoder_bound(row, *scales, form=form).total
            )
    except ValueError as reason:
        return Bound({}, {}, str(reason))
    return Bound(derived, measured, family.note)
