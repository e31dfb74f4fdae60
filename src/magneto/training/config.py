"""Configuration of the training loop: the `training` section of a recipe."""

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

# Larger batches only fill memory: the examples of a batch are chosen at once.
BatchSize = Annotated[int, Interval(ge=1, le=1 << 24)]
Schedule = Literal["constant", "linear", "polynomial", "cosine", "inverse_sqrt"]
# Values of `distributed` that shard the model. With the others, each rank has a whole model.
SHARDED = ("fsdp", "hybrid")


@configuration
class TrainingConfig:
    """Settings of the training loop."""

    steps: PositiveInt = 1000
    """Optimizer steps."""
    batch_size: BatchSize = 32
    """Examples per optimizer step, over all ranks and micro-batches."""
    gradient_accumulation_steps: BatchSize = 1
    """Micro-batches per rank and step. With more micro-batches, a step needs less memory."""
    learning_rate: PositiveFloat | None = None
    """Peak learning rate (default: the recipe's rate for the placement)."""
    schedule: Schedule = "polynomial"
    """Schedule of the learning rate after warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up."""
    epochs: PositiveFloat | None = None
    """Number of epochs. If set, it replaces `steps` (default: null)."""
    warmup_ratio: Dropout | None = None
    """Warm-up as a share of all steps. If this field is set, it replaces `warmup_steps`."""
    warmup_start: NonNegativeFloat = 0.0
    """Learning rate of the first warm-up step."""
    final_learning_rate: NonNegativeFloat = 0.0
    """Learning rate to which cosine, linear and polynomial schedules fall. As in torch and
    transformers, the schedule reaches this rate only after the last step."""
    power: PositiveFloat = 1.0
    """Exponent of the polynomial schedule."""
    # The steps for another optimizer are above build_optimizer in training/optimizer.py.
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """Optimizer: AdamW, or SGD without momentum."""
    betas: tuple[Dropout, Dropout] = (0.9, 0.98)
    """Betas of AdamW."""
    eps: PositiveFloat = 1e-8
    """Epsilon of AdamW."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay of weight matrices. Biases, norms, scales and embeddings do not
    decay."""
    clip_norm: PositiveFloat | None = None
    """Largest gradient norm. Larger gradients are scaled to this norm (default: null, no
    clipping)."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """"fp32", or "bf16" with torch's autocast."""
    compile: bool = False
    """Compile the model with torch.compile. Compilation takes minutes, but makes the steps on a
    GPU faster."""
    ema_decay: Share | None = None
    """Decay of an exponential moving average of the weights (default: null, no average). If there
    is an average, evaluation uses the average."""
    log_every: Free[PositiveInt] = 10
    """Steps between log rows."""
    evaluate_every: NonNegativeInt = 0
    """Steps between evaluations. 0: the run is evaluated once, after the last step."""
    evaluate_limit: PositiveInt | None = None
    """Largest number of batches in an evaluation (default: null, all batches)."""
    patience: PositiveInt | None = None
    """Early stopping: training ends after this number of evaluations without a better primary
    metric (default: null, off). With early stopping, the best weights become the final weights."""
    save_every: Free[NonNegativeInt] = 0
    """Steps between checkpoints. 0: the run writes one checkpoint, after the last step."""
    keep_checkpoints: PositiveInt = 2
    """Number of undamaged checkpoints to keep."""
    async_save: Free[bool] = False
    """Write checkpoints in the background, from a copy in CPU memory, while training continues."""
    average_checkpoints: NonNegativeInt = 0
    """Number of checkpoints whose weights are averaged at the end (default: 0, off)."""
    average_by: Literal["last", "best"] = "last"
    """Checkpoints to average: "last" for the newest weights, or "best" for the weights with the
    best primary metric."""
    device: Free[str] = "auto"
    """Device: auto, cpu, cuda, or any device that torch knows."""
    distributed: Literal["auto", "none", "ddp", "fsdp", "hybrid"] = "auto"
    """Parallel strategy. "auto" is "ddp" if torchrun started several processes, else "none".
    "hybrid" shards the model within a node and replicates the model across nodes."""
    shard_size: PositiveInt | None = None
    """Number of ranks that share one copy of the model under "hybrid" (default: null, the ranks
    of a node)."""
    divergence_patience: PositiveInt = 100
    """Consecutive steps of high loss after which a run counts as diverged. The smoothed loss is
    high if it exceeds 1.5 times the first loss. It is also high if a rise has undone more than half
    of the earlier decrease."""
    tensorboard: Free[bool] = True
    """Write TensorBoard files."""
    tracker: Literal["none", "wandb"] = "none"
    """Experiment tracker: "none", or "wandb" for Weights & Biases."""
    threads: Free[Annotated[int, Interval(ge=1, le=4096)] | None] = None
    """CPU threads of torch per process (default: null, torch's default)."""
    num_workers: Free[Annotated[int, Interval(ge=0, le=1024)]] = 0
    """Worker processes per rank that decode and augment examples. 0: a thread of the main process
    decodes and augments. The number of worker processes does not change the batches."""

    @rule
    def _patience_has_evaluations(self) -> Iterator[str]:
        if self.patience is not None and not self.evaluate_every:
            yield "patience needs evaluations: set evaluate_every above 0"

    @rule
    def _averaged_checkpoints_are_kept(self) -> Iterator[str]:
        if self.average_by == "last" and self.average_checkpoints > self.keep_checkpoints:
            yield (f"average_checkpoints ({self.average_checkpoints}) is above keep_checkpoints "
                   f"({self.keep_checkpoints}): raise keep_checkpoints")  # fmt: skip
        elif self.average_by == "last" and self.average_checkpoints > 1 and not self.save_every:
            yield "average_checkpoints needs several checkpoints: set save_every above 0"


def patience_is_over(config: TrainingConfig, step: int, best: int) -> bool:
    """Return whether at least `patience` evaluations followed the evaluation at step `best`."""
    return config.patience is not None and step - best >= config.patience * config.evaluate_every


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Return the learning rate of `step`, counted from 0.

    The rate rises linearly from `warmup_start` to the peak at step `warmup_steps`. After warm-up,
    the schedules "linear", "polynomial" and "cosine" fall to `final_learning_rate` at step `steps`.
    The schedule "inverse_sqrt" is the peak times sqrt(warmup_steps / step) (arXiv 1706.03762,
    section 5.3).

    Raises:
        ValueError: If no peak learning rate is set.
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


def resolve_steps(config: TrainingConfig, examples: int | None) -> TrainingConfig:
    """Return the configuration with `epochs` and `warmup_ratio` converted to steps.

    `examples` is the number of examples of an epoch, or None for data without epochs.

    Raises:
        ValueError: If `epochs` is set and the data has no epochs.
    """
    steps, warmup = config.steps, config.warmup_steps
    if config.epochs is not None:
        if examples is None:
            raise ValueError("training.epochs: this task's data has no epochs. "
                             "Set training.steps instead.")  # fmt: skip
        steps = math.ceil(config.epochs * examples / config.batch_size)
    if config.warmup_ratio is not None:
        warmup = round(config.warmup_ratio * steps)
    return replace(config, steps=steps, warmup_steps=warmup)
