"""The learning rate as a function of the step."""

from __future__ import annotations

import math

from magneto.training.config import TrainingConfig


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Return the rate of `step`, counted from 0.

    Warm-up goes linearly from `warmup_start` to the peak, which step `warmup_steps` has. Linear,
    polynomial and cosine then end at `final_learning_rate` at step `steps`; inverse_sqrt falls as
    sqrt(warmup_steps / step) (arXiv 1706.03762, section 5.3).

    Raises:
        ValueError: If no peak is set.
    """
    if config.learning_rate is None:
        raise ValueError("training.learning_rate is not set")
    peak, warmup = config.learning_rate, config.warmup_steps
    if step < warmup:
        return config.warmup_start + (peak - config.warmup_start) * step / warmup
    if config.schedule == "constant":
        return peak
    if config.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / max(step, 1))
    left = max(0.0, 1 - (step - warmup) / max(config.steps - warmup, 1))
    shape = {
        "linear": left,
        "polynomial": left**config.power,
        "cosine": 0.5 * (1 - math.cos(math.pi * left)),
    }[config.schedule]
    floor = config.final_learning_rate
    return floor + (peak - floor) * shape
