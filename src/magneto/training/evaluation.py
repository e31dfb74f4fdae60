"""Evaluation on validation data, and detection of divergence.

Each rank scores a part of the validation batches. Sums and predictions of all ranks are gathered,
so metrics do not depend on the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from magneto.data.stream import map_tensors, to_device
from magneto.progress import SILENT, Progress
from magneto.training.distributed import World, all_reduce_sum, gather_lists, reshard, unwrap
from magneto.training.task import Task


class Evaluation(NamedTuple):
    """Result of an evaluation.

    Attributes:
        metrics: Values of the metrics by name.
        predictions: Predictions from `Task.score`, in the order of the batches.
    """

    metrics: dict[str, float]
    predictions: list[Any]


def evaluate(
    task: Task,
    model: nn.Module,
    world: World,
    precision: str,
    limit: int | None = None,
    progress: Progress = SILENT,
) -> Evaluation:
    """Return metrics and predictions of a model on validation data.

    Every rank must call this function, and every rank gets the same metrics and predictions.

    Args:
        task: Task whose `prepare` has been called.
        model: Model, distributed or not. After evaluation, each module has the same mode (training
            or evaluation) as before.
        world: Ranks of the run. Batch i is scored by rank i % world size.
        precision: Precision: "bf16" for autocast, or "fp32".
        limit: Number of batches to score, from the first batch on, or None for all batches.
        progress: Progress display.

    Raises:
        ValueError: If there is no validation batch.
    """
    batches = task.validation_batches()
    count = len(batches) if limit is None else min(limit, len(batches))
    if count < 1:
        raise ValueError("no validation batch: the validation data is empty")
    sums: dict[str, Tensor] = {}
    predictions: list[tuple[int, Any]] = []
    with evaluation_mode(model), torch.no_grad(), world.autocast(precision):
        for start in range(0, count, world.world_size):
            # A rank without a batch scores the last one again and drops the result, because ranks
            # with shards of the model run it together.
            number = start + world.rank
            batch = to_device(batches[min(number, count - 1)], world.device)
            found = task.score(unwrap(model), batch)
            add_sums(sums, found.sums, counted=number < count)
            if number < count and found.predictions is not None:
                predictions.append((number, found.predictions))
            done = min(start + world.world_size, count)
            progress.update("evaluating batches", done, count)
        reshard(model)
    mine = [(number, map_tensors(value, Tensor.cpu)) for number, value in predictions]
    everyone = sorted(gather_lists(mine, world), key=lambda pair: pair[0])
    found = [value for _, value in everyone]
    metrics = task.summarise(total_sums(sums, world), found)
    return Evaluation({name: float(value) for name, value in metrics.items()}, found)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def add_sums(sums: dict[str, Tensor], found: Mapping[str, Tensor], counted: bool) -> None:
    for name, value in found.items():
        wide = value.detach().double()
        zero = torch.zeros_like(wide)
        sums[name] = sums.get(name, zero) + (wide if counted else zero)


def total_sums(sums: Mapping[str, Tensor], world: World) -> dict[str, Any]:
    if not sums:
        return {}
    flat = all_reduce_sum(torch.cat([value.flatten() for value in sums.values()]), world).cpu()
    sizes = [math.prod(value.shape) for value in sums.values()]
    parts = zip(sums.items(), flat.split(sizes), strict=True)
    return {name: part.reshape(value.shape).tolist() for (name, value), part in parts}


# Weight of the newest loss in the smoothed loss.
SMOOTHING = 0.1
# Progress below this share of the first loss counts as noise.
MIN_PROGRESS = 0.05
# Share of the progress that is lost again when a run counts as diverging.
LOST_PROGRESS = 0.5
# Multiple of the first loss above which a run counts as diverging.
FAR_ABOVE_FIRST = 1.5


@dataclass
class DivergenceDetector:
    """Detector of divergence, based on the loss of each step.

    Attributes:
        patience: Number of consecutive steps of high loss after which a run counts as diverged.
    """

    patience: int
    first: float | None = None
    smooth: float = 0.0
    best: float = math.inf
    bad: int = 0

    def update(self, loss: float) -> str | None:
        """Add the next loss. If the run has diverged, return the reason, else None."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if self.first is None:
            self.first = self.smooth = loss
        self.smooth += SMOOTHING * (loss - self.smooth)
        self.best = min(self.best, self.smooth)
        progress = self.first - self.best
        lost = (
            progress > MIN_PROGRESS * abs(self.first)
            and self.smooth > self.best + LOST_PROGRESS * progress
        )
        far_above = self.smooth > FAR_ABOVE_FIRST * abs(self.first) + 1e-12
        self.bad = self.bad + 1 if lost or far_above else 0
        if self.bad < self.patience:
            return None
        return (
            f"the loss stays at {self.smooth:.3g} for {self.bad} steps "
            f"(best {self.best:.3g}, first {self.first:.3g})"
        )

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("first", "smooth", "best", "bad"):
            setattr(self, name, state[name])
