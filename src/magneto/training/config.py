"""How to train: the `training` section of a recipe. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Interval

from magneto.fields import (
    Dropout,
    Free,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Share,
    configuration,
    rule,
)

# Beyond it a machine is only filled: a batch's examples are chosen at once.
BatchSize = Annotated[int, Interval(ge=1, le=1 << 24)]
Schedule = Literal["constant", "linear", "polynomial", "cosine", "inverse_sqrt"]


@configuration
class TrainingConfig:
    """The settings of the training loop."""

    steps: PositiveInt = 1000
    """Optimizer steps."""
    batch_size: BatchSize = 32
    """Examples per optimizer step, over all ranks and micro-batches."""
    gradient_accumulation_steps: BatchSize = 1
    """Micro-batches that each rank's part of a batch is cut into, to save memory."""
    learning_rate: PositiveFloat | None = None
    """Peak; None until a recipe's table of rates fills it in."""
    schedule: Schedule = "polynomial"
    """Shape of the learning rate after warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up."""
    epochs: PositiveFloat | None = None
    """Times through the training examples, instead of `steps`; None for `steps`."""
    warmup_ratio: Dropout | None = None
    """Warm-up as a share of all steps, instead of `warmup_steps`; None for those."""
    warmup_start: NonNegativeFloat = 0.0
    """Learning rate at which warm-up starts."""
    final_learning_rate: NonNegativeFloat = 0.0
    """Rate at the last step (the floor of cosine, linear and polynomial)."""
    power: PositiveFloat = 1.0
    """Of the polynomial schedule."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """"adamw", or "sgd" without momentum."""
    betas: tuple[Dropout, Dropout] = (0.9, 0.98)
    """Of AdamW."""
    eps: PositiveFloat = 1e-8
    """Of AdamW."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled; on weight matrices only."""
    clip_norm: PositiveFloat | None = None
    """Largest gradient norm, or None."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """"fp32", or "bf16" by autocast."""
    compile: bool = False
    """Whether to compile the model (minutes at the start, faster steps on a GPU)."""
    ema_decay: Share | None = None
    """Decay of an exponential moving average of the weights, which is then evaluated."""
    log_every: Free[PositiveInt] = 10
    """Steps between rows of metrics."""
    evaluate_every: NonNegativeInt = 0
    """Steps between evaluations; 0 for one at the end."""
    evaluate_limit: PositiveInt | None = None
    """Batches of an evaluation, or None for all."""
    patience: PositiveInt | None = None
    """Evaluations without a better one, by the task's metric, after which training ends; the best
    weights are then the final ones, also where it reaches the last step. None trains to the last
    step and keeps its weights."""
    save_every: Free[NonNegativeInt] = 0
    """Steps between checkpoints; 0 for one at the end."""
    keep_checkpoints: PositiveInt = 2
    """How many undamaged checkpoints stay."""
    async_save: Free[bool] = False
    """Copy what is saved to the CPU's memory and write it while training goes on."""
    average_checkpoints: NonNegativeInt = 0
    """Average the weights of so many checkpoints at the end; 0 for none."""
    average_by: Literal["last", "best"] = "last"
    """Average the last ones or the best ones."""
    device: Free[str] = "auto"
    """"auto", "cpu", "cuda" or any name torch knows."""
    distributed: Literal["auto", "none", "ddp", "fsdp", "hybrid"] = "auto"
    """"auto" is ddp under torchrun and one process elsewhere; "hybrid" shards the model within a
    node and keeps a copy on each."""
    shard_size: PositiveInt | None = None
    """Ranks that hold a copy of the model under "hybrid"; None for those of a node."""
    divergence_patience: PositiveInt = 100
    """Steps in a row after which a run is called diverged whose loss has given back half of its
    progress since the first step, or is half as high again as then."""
    tensorboard: Free[bool] = True
    """Whether to write TensorBoard files."""
    tracker: Literal["none", "wandb"] = "none"
    """"wandb" also sends the curves to Weights & Biases, as --wandb does."""
    threads: Free[Annotated[int, Interval(ge=1, le=4096)] | None] = None
    """CPU threads of torch in each process; None leaves the choice to torch."""
    num_workers: Free[Annotated[int, Interval(ge=0, le=1024)]] = 0
    """Processes per rank that make batches (decode, augment); 0 for a thread of the rank's own. The
    batches do not depend on it."""

    @rule
    def _patience_has_evaluations(self) -> Iterator[str]:
        if self.patience is not None and not self.evaluate_every:
            yield "patience counts evaluations: set evaluate_every"

    @rule
    def _enough_is_kept_to_average(self) -> Iterator[str]:
        if self.average_by == "last" and self.average_checkpoints > self.keep_checkpoints:
            yield (f"average_checkpoints ({self.average_checkpoints}) is more than "
                   f"keep_checkpoints ({self.keep_checkpoints})")  # fmt: skip


def is_stale(config: TrainingConfig, step: int, best: int) -> bool:
    """Return whether as many evaluations as `patience` says have brought nothing better.

    Args:
        config: Of the run.
        step: That was evaluated last.
        best: That whose evaluation was best.
    """
    return config.patience is not None and step - best >= config.patience * config.evaluate_every


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
