"""How well a model does: its metrics on validation data, and whether its training has diverged.

Evaluation is the same in training and afterwards: score the validation batches, add up, summarise.
The batches are cut among the ranks, whose sums and predictions are brought together at the end, so
that neither the number of ranks nor who evaluates changes a metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
    """What an evaluation gives.

    Attributes:
        metrics: By name.
        predictions: What `Task.score` gave of each batch that has any, in the batches' order.
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
    """Return a task's metrics and predictions of a model on validation data; every rank calls this.

    Args:
        task: Prepared.
        model: As the loop has it, distributed or not; its modules are left in the modes they had.
        world: The ranks; batch i is scored by rank i % world size.
        precision: "bf16" for autocast, as in training; "fp32".
        limit: Batches to score at most: the first ones.
        progress: Shows it.

    Returns:
        The same on every rank.

    Raises:
        ValueError: If there is not one validation batch.
    """
    batches = task.validation_batches()
    count = len(batches) if limit is None else min(limit, len(batches))
    if count < 1:
        raise ValueError("there is nothing to evaluate on: the validation data makes no batch")
    autocast = torch.autocast(world.device.type, torch.bfloat16, enabled=precision == "bf16")
    sums: dict[str, Tensor] = {}
    predictions: list[tuple[int, Any]] = []
    with evaluation_mode(model), torch.no_grad(), autocast:
        for start in range(0, count, world.world_size):
            # A rank without a batch of its own scores the last one again and throws it away: ranks
            # that hold shards of the model run it together.
            number = start + world.rank
            batch = to_device(batches[min(number, count - 1)], world.device)
            found = task.score(unwrap(model), batch)
            add_sums(sums, found.sums, counted=number < count)
            if number < count and found.predictions is not None:
                predictions.append((number, found.predictions))
            done = min(start + world.world_size, count)
            progress.update("evaluating batches", done, count)
        reshard(model)
    found = gather_predictions(predictions, world)
    metrics = task.summarise(total_sums(sums, world), found)
    return Evaluation({name: float(value) for name, value in metrics.items()}, found)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode for a while; modules that were in it before stay in it."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def add_sums(sums: dict[str, Tensor], found: Mapping[str, Tensor], counted: bool) -> None:
    """Add a batch's sums in float64; of one that does not count, only the names and shapes."""
    for name, value in found.items():
        wide = value.detach().double()
        zero = torch.zeros_like(wide)
        sums[name] = sums.get(name, zero) + (wide if counted else zero)


def total_sums(sums: Mapping[str, Tensor], world: World) -> dict[str, Any]:
    """Add sums up over the ranks and read them from the device, all at once."""
    if not sums:
        return {}
    flat = all_reduce_sum(torch.cat([value.flatten() for value in sums.values()]), world).cpu()
    sizes = [math.prod(value.shape) for value in sums.values()]
    parts = zip(sums.items(), flat.split(sizes), strict=True)
    return {name: part.reshape(value.shape).tolist() for (name, value), part in parts}


def gather_predictions(predictions: Sequence[tuple[int, Any]], world: World) -> list[Any]:
    """Bring the ranks' numbered predictions together on the CPU, in the order of their batches."""
    mine = [(number, map_tensors(value, Tensor.cpu)) for number, value in predictions]
    return [value for _, value in sorted(gather_lists(mine, world), key=lambda pair: pair[0])]


# Weight of the newest loss in the smoothed one.
SMOOTHING = 0.1
# Progress below this share of the first loss is noise, not something that could be lost.
LEAST_PROGRESS = 0.05
# Share of the progress since the first loss that is too much to give back.
GIVEN_BACK = 0.5
# A loss this much above the first one is far above any past.
FAR_ABOVE_FIRST = 1.5


@dataclass
class DivergenceDetector:
    """Watches the loss, one step at a time; its state is plain values.

    Attributes:
        patience: Steps in a row for which a loss must be too high.
    """

    patience: int
    first: float | None = None
    smooth: float = 0.0
    best: float = math.inf
    bad: int = 0

    def update(self, loss: float) -> str | None:
        """Take in the next loss; return why the run has diverged, or None."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if self.first is None:
            self.first = self.smooth = loss
        self.smooth += SMOOTHING * (loss - self.smooth)
        self.best = min(self.best, self.smooth)
        progress = self.first - self.best
        given_back = (
            progress > LEAST_PROGRESS * abs(self.first)
            and self.smooth > self.best + GIVEN_BACK * progress
        )
        far_above = self.smooth > FAR_ABOVE_FIRST * abs(self.first) + 1e-12
        self.bad = self.bad + 1 if given_back or far_above else 0
        if self.bad < self.patience:
            return None
        return (
            f"the loss stays at {self.smooth:.3g} for {self.bad} steps; "
            f"it was {self.best:.3g} at best and {self.first:.3g} at first"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from another detector's state."""
        for name in ("first", "smooth", "best", "bad"):
            setattr(self, name, state[name])
