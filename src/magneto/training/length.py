"""How long a run is: epochs and warmup_ratio as numbers of steps."""

from __future__ import annotations

import math
from dataclasses import replace

from magneto.training.config import TrainingConfig
from magneto.training.task import Task


def in_steps(config: TrainingConfig, task: Task) -> TrainingConfig:
    """Return a configuration with `steps` and `warmup_steps` as `epochs` and `warmup_ratio` say.

    The last step of the last epoch is a whole batch; warm-up is rounded to the nearest step.

    Raises:
        ValueError: If epochs are asked for of a task that does not count its examples.
    """
    steps, warmup = config.steps, config.warmup_steps
    if config.epochs is not None:
        count = task.examples()
        if count is None:
            name = type(task).__name__
            raise ValueError(f"training.epochs: {name} has no epochs; give training.steps")
        steps = math.ceil(config.epochs * count / config.batch_size)
    if config.warmup_ratio is not None:
        warmup = round(config.warmup_ratio * steps)
    return replace(config, steps=steps, warmup_steps=warmup)
