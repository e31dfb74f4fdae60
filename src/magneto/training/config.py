"""How to train: the `training` section of a recipe. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from magneto.config import ConfigError

# Beyond these a machine is only filled: a batch's examples are chosen at once.
MOST = {"batch_size": 1 << 24, "gradient_accumulation_steps": 1 << 24, "num_workers": 1024}

Schedule = Literal["constant", "linear", "polynomial", "cosine", "inverse_sqrt"]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The settings of the training loop.

    Attributes:
        steps: Optimizer steps.
        batch_size: Examples per optimizer step, over all ranks and micro-batches.
        gradient_accumulation_steps: Micro-batches that each rank's part of a batch is cut into, to
            save memory.
        learning_rate: Peak; None until a recipe's table of rates fills it in.
        schedule: Shape of the learning rate after warm-up.
        warmup_steps: Steps of linear warm-up.
        epochs: Times through the training examples, instead of `steps`; None for `steps`.
        warmup_ratio: Warm-up as a share of all steps, instead of `warmup_steps`; None for those.
        warmup_start: Learning rate at which warm-up starts.
        final_learning_rate: Rate at the last step (the floor of cosine, linear and polynomial).
        power: Of the polynomial schedule.
        optimizer: "adamw", or "sgd" without momentum.
        betas: Of AdamW.
        eps: Of AdamW.
        weight_decay: Decoupled; on weight matrices only.
        clip_norm: Largest gradient norm, or None.
        precision: "fp32", or "bf16" by autocast.
        compile: Whether to compile the model (minutes at the start, faster steps on a GPU).
        ema_decay: Decay of an exponential moving average of the weights, which is then evaluated.
        log_every: Steps between rows of metrics.
        evaluate_every: Steps between evaluations; 0 for one at the end.
        evaluate_limit: Batches of an evaluation, or None for all.
        patience: Evaluations without a better one, by the task's metric, after which training
            ends; the best weights are then the final ones, also where it reaches the last step.
            None trains to the last step and keeps its weights.
        save_every: Steps between checkpoints; 0 for one at the end.
        keep_checkpoints: How many undamaged checkpoints stay.
        async_save: Copy what is saved to the CPU's memory and write it while training goes on.
        average_checkpoints: Average the weights of so many checkpoints at the end; 0 for none.
        average_by: Average the last ones or the best ones.
        device: "auto", "cpu", "cuda" or any name torch knows.
        distributed: "auto" is ddp under torchrun and one process elsewhere; "hybrid" shards the
            model within a node and keeps a copy on each.
        shard_size: Ranks that hold a copy of the model under "hybrid"; None for those of a node.
        divergence_ratio: A loss that has given back more than this share of its progress since
            the first step, or is half as high again as then, counts towards divergence.
        divergence_patience: Steps in a row after which the run is called diverged.
        tensorboard: Whether to write TensorBoard files.
        tracker: "wandb" also sends the curves to Weights & Biases, as --wandb does.
        threads: CPU threads of torch in each process; None leaves the choice to torch.
        num_workers: Processes per rank that make batches (decode, augment); 0 for a thread of the
            rank's own. The batches do not depend on it.

    Raises:
        ValueError: For impossible values, all in one message.
    """

    steps: int = 1000
    batch_size: int = 32
    gradient_accumulation_steps: int = 1
    learning_rate: float | None = None
    schedule: Schedule = "polynomial"
    warmup_steps: int = 0
    epochs: float | None = None
    warmup_ratio: float | None = None
    warmup_start: float = 0.0
    final_learning_rate: float = 0.0
    power: float = 1.0
    optimizer: Literal["adamw", "sgd"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip_norm: float | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    ema_decay: float | None = None
    log_every: int = 10
    evaluate_every: int = 0
    evaluate_limit: int | None = None
    patience: int | None = None
    save_every: int = 0
    keep_checkpoints: int = 2
    async_save: bool = False
    average_checkpoints: int = 0
    average_by: Literal["last", "best"] = "last"
    device: str = "auto"
    distributed: Literal["auto", "none", "ddp", "fsdp", "hybrid"] = "auto"
    shard_size: int | None = None
    divergence_ratio: float = 0.5
    divergence_patience: int = 100
    tensorboard: bool = True
    tracker: Literal["none", "wandb"] = "none"
    threads: int | None = None
    num_workers: int = 0

    def __post_init__(self) -> None:
        least = {
            "steps": 1, "batch_size": 1, "gradient_accumulation_steps": 1, "warmup_steps": 0,
            "log_every": 1, "evaluate_every": 0, "save_every": 0, "keep_checkpoints": 1,
            "average_checkpoints": 0, "divergence_patience": 1, "num_workers": 0,
        }  # fmt: skip
        wrong = [
            f"{name} must be {bound} or more, not {getattr(self, name)}"
            for name, bound in least.items()
            if getattr(self, name) < bound
        ]
        wrong += [
            f"{name} must be at most {most:,}, not {getattr(self, name)}"
            for name, most in MOST.items()
            if getattr(self, name) > most
        ]
        wrong += wrong_numbers(self)
        if self.threads is not None and not 1 <= self.threads <= 4096:
            wrong.append(f"threads must be 1 to 4096 (or null), not {self.threads}")
        if self.shard_size is not None and self.shard_size < 1:
            wrong.append(f"shard_size must be 1 or more (or null), not {self.shard_size}")
        for name in ("evaluate_limit", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                wrong.append(f"{name} must be 1 or more (or null), not {value}")
        if self.patience is not None and not self.evaluate_every:
            wrong.append("patience counts evaluations: set evaluate_every")
        if self.average_checkpoints > self.keep_checkpoints and self.average_by == "last":
            wrong.append(
                f"average_checkpoints ({self.average_checkpoints}) is more than "
                f"keep_checkpoints ({self.keep_checkpoints})"
            )
        if wrong:
            raise ConfigError(wrong)


def wrong_numbers(config: TrainingConfig) -> list[str]:
    """Return what is wrong with the rates, powers and shares, a line for each.

    None passes: where a field may be left out, it is what leaves it out.
    """
    above_zero = {
        "learning_rate": "", "power": "", "eps": "", "clip_norm": " (or null for none)",
        "epochs": " (or null for steps)",
    }  # fmt: skip
    lines = []
    for name, otherwise in above_zero.items():
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            lines.append(f"{name} must be above 0 and finite{otherwise}, not {value}")
    for name in ("warmup_start", "final_learning_rate", "weight_decay", "divergence_ratio"):
        if not 0 <= getattr(config, name) < math.inf:
            lines.append(f"{name} must be 0 or more and finite, not {getattr(config, name)}")
    if not all(0 <= beta < 1 for beta in config.betas):
        lines.append(f"betas must be in [0, 1), not {', '.join(map(str, config.betas))}")
    if config.ema_decay is not None and not 0 < config.ema_decay < 1:
        lines.append(f"ema_decay must be between 0 and 1, not {config.ema_decay}")
    if config.warmup_ratio is not None and not 0 <= config.warmup_ratio < 1:
        lines.append(f"warmup_ratio must be in [0, 1) (or null), not {config.warmup_ratio}")
    return lines


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
