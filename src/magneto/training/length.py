"""How long a run is: epochs and warmup_ratio as numbers of steps."""

from __future__ import annotations

import math
from dataclasses import replace

from magneto.training.config import TrainingConfig


def in_steps(config: TrainingConfig, examples: int | None) -> TrainingConfig:
    """Return a configuration with `steps` and `warmup_steps` as `epochs` and `warmup_ratio` say.

    The last step of the last epoch is a whole batch; warm-up is rounded to the nearest step.

    Args:
        config: As the recipe has it.
        examples: Of an epoch; None where there are no epochs.

    Raises:
        ValueError: If epochs are asked for and there are none.
    """
    steps, warmup = config.steps, config.warmup_steps
    if config.epochs is not None:
        if examples is None:
            raise ValueError("training.epochs: the batches of this task and its data have no "
                             "epochs; give training.steps")  # fmt: skip
        steps = math.ceil(config.epochs * examples / config.batch_size)
    if config.warmup_ratio is not None:
        warmup = round(config.warmup_ratio * steps)
    return replace(config, steps=steps, warmup_steps=warmup)
