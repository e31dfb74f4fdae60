"""A task with a frozen companion, weights made of data, and a moving average of what it saw.

python moving.py RUN [key=value ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from magneto.training.task import Loss
from tests.unit.training.toy import Toy, ToyModel, run_toy


class Moving(ToyModel):
    """Its `mean` is made of the first batches and follows the rows since; `seen` is a step's."""

    def __init__(self) -> None:
        super().__init__(nn.ModuleList(nn.Linear(16, 16) for _ in range(2)), 0.0)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("seen", torch.zeros(5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += torch.cat((x.sum(0), torch.full_like(x[:1, 0], len(x))))
        return super().forward(x - self.mean)


class MovingTask(Toy):
    """Learns what its companion says of the rows; its first layer learns at a tenth of the rate."""

    def build_model(self) -> nn.Module:
        return Moving()

    @cached_property
    def teacher(self) -> nn.Linear:
        made = nn.Linear(4, 1)
        nn.init.constant_(made.weight, 0.5)
        nn.init.zeros_(made.bias)
        return made

    def companion(self) -> nn.Module:
        return self.teacher

    def rate_multipliers(self, model: nn.Module) -> Mapping[str, float]:
        return {name: 0.1 for name, _ in model.named_parameters() if name.startswith("into")}

    def begin_training(
        self, model: Any, batches: Iterator[Sequence[Any]], gather: Callable[[Tensor], Tensor]
    ) -> None:
        rows = gather(torch.cat([x for _ in range(2) for x, _ in next(batches)]))
        model.mean.copy_(rows.mean(0))

    def end_step(self, model: Any, add_up: Callable[[Tensor], Tensor]) -> None:
        total = add_up(model.seen)
        model.mean.lerp_(total[:4] / total[4], 0.1)
        model.seen.zero_()

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        return super().loss(model, (batch[0], self.teacher(batch[0])))


if __name__ == "__main__":
    words = dict(word.split("=") for word in sys.argv[2:])
    run_toy(Path(sys.argv[1]), resume=True, task=MovingTask(), steps=12, **words)
