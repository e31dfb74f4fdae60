"""A task small enough to train in a blink, and a script that trains it in a process of its own.

python toy.py RUN [key=value ...]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from magneto.data.stream import BatchStream
from magneto.fields import configuration
from magneto.progress import SILENT, Progress, ProgressBars
from magneto.training.config import TrainingConfig
from magneto.training.logging import TrainingResult, read_metrics
from magneto.training.loop import Hook, train
from magneto.training.task import Loss, Scores, Task
from magneto.weights import open_tensors

# Of a row of metrics, what is never twice the same.
TIMED = ("rows_per_second", "flops_utilisation", "data_wait_seconds")


@configuration
class ToyData:
    examples: int = 64
    explode_at: float = 0.0
    pause: float = 0.0
    wrong_way: bool = False


def toy_stream(data: tuple[Tensor, Tensor], batch_size: int, seed: int) -> BatchStream:
    """Rows of a fixed set, shuffled anew each epoch."""
    count = len(data[0])

    def plan(step: int) -> Tensor:
        rows = []
        for i in range(step * batch_size, (step + 1) * batch_size):
            generator = torch.Generator().manual_seed(seed + i // count)
            rows.append(int(torch.randperm(count, generator=generator)[i % count]))
        return torch.tensor(rows)

    return BatchStream(plan, lambda rows: (data[0][rows], data[1][rows]), str)


class Toy(Task):
    """Regression; rows weigh differently, so that a mean of means would be wrong."""

    unit = "rows"
    DataConfig = ToyData

    def __init__(self, data: ToyData | None = None, seed: int = 0, dropout: float = 0.0) -> None:
        super().__init__(None, data or ToyData(), seed)
        self.dropout = dropout
        # Then the first evaluation stays the best.
        self.higher_is_better = self.data_config.wrong_way
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(self.data_config.examples, 4, generator=generator)
        self.set = (x, x.sin().sum(1, keepdim=True))

    def build_model(self) -> nn.Module:
        layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        return ToyModel(layers, self.dropout)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        return toy_stream(self.set, batch_size, seed)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        time.sleep(self.data_config.pause)
        x, y = batch
        weight = (x[:, :1] > 0).float() + 0.5
        errors = (model(x) - y).square() * weight
        least = self.data_config.explode_at
        if least and float(errors.detach().mean()) < least:
            errors = errors * float("nan")
        return Loss(errors.sum(), weight.sum(), {"absolute": errors.detach().sqrt().sum()})

    def validation_batches(self) -> list[tuple[Tensor, Tensor]]:
        """Batches of unequal sizes, so that a mean of means would be wrong."""
        sizes = (25, 7, 19, 1, self.data_config.examples - 52)
        return list(zip(*(part.split(sizes) for part in self.set), strict=True))

    def score(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Scores:
        x, y = batch
        answers = model(x).float()
        errors = (answers - y).square()
        sums = {"error": errors.sum(), "rows": errors.new_tensor(len(x))}
        return Scores(sums, {"answers": answers[:, 0], "known": y[:, 0]})

    def summarise(self, sums, predictions) -> dict[str, float]:
        answers, known = (torch.cat([p[key] for p in predictions]) for key in ("answers", "known"))
        right = ((answers > 0) == (known > 0)).double().mean().item()
        return {"loss": sums["error"] / sums["rows"], "sign": right}


class ToyModel(nn.Module):
    def __init__(self, layers: nn.ModuleList, dropout: float) -> None:
        super().__init__()
        self.into, self.layers, self.out = nn.Linear(4, 16), layers, nn.Linear(16, 1)
        self.table, self.head = nn.Linear(16, 16), nn.Linear(16, 16, bias=False)
        self.head.weight = self.table.weight
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(self.into(x))
        for layer in self.layers:
            x = x + self.dropout(layer(x).tanh())
        return self.out(self.head(x))


def toy_model() -> nn.Module:
    torch.manual_seed(5)
    return Toy(dropout=0.5).build_model()


class Noting(Toy):
    """A task that finds one row odd before training, and one on each rank while it trains."""

    def prepare(self, progress: Progress = SILENT) -> None:
        self.problems.record("odd row", "of all", "found before training")

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        rank = os.environ.get("RANK", "0")
        self.problems.record("late row", f"of rank {rank}", "found in training")
        return super().loss(model, batch)


class MovingModel(ToyModel):
    """Its `mean` is made of the first batches and follows the rows since; `seen` is a step's."""

    def __init__(self) -> None:
        super().__init__(nn.ModuleList(nn.Linear(16, 16) for _ in range(2)), 0.0)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("seen", torch.zeros(5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += torch.cat((x.sum(0), torch.full_like(x[:1, 0], len(x))))
        return super().forward(x - self.mean)


class Moving(Toy):
    """Learns what its companion says of the rows; its first layer learns at a tenth of the rate."""

    def build_model(self) -> nn.Module:
        return MovingModel()

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


def config(**changes: Any) -> TrainingConfig:
    kept = {
        "steps": 30, "batch_size": 16, "learning_rate": 1e-2, "warmup_steps": 3, "log_every": 4,
        "save_every": 7, "evaluate_every": 10, "device": "cpu", "tensorboard": False,
    }  # fmt: skip
    return TrainingConfig(**{**kept, **changes})


def run_toy(
    run: Path,
    resume: bool = False,
    task: Toy | None = None,
    hooks: Sequence[Hook] = (),
    quiet: bool = True,
    **changes: Any,
) -> TrainingResult:
    task, report = task or Toy(dropout=changes.pop("dropout", 0.0)), ProgressBars(quiet)
    return train(task, config(**changes), run, seed=3, resume=resume, hooks=hooks, report=report)


def tensors(directory: Path) -> dict[str, Tensor]:
    return {name: tensor.read() for name, tensor in open_tensors(directory).items()}


def rows(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMED} for row in read_metrics(run)]


def equal(first: Path, second: Path) -> bool:
    """Whether two directories hold the same bits."""
    a, b = tensors(first), tensors(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def same(first: Path, second: Path) -> bool:
    """Whether two runs ended with the same bits, by way of the same metrics."""
    return rows(first) == rows(second) and equal(first / "final", second / "final")


def furthest(first: Path, second: Path) -> float:
    """Return the largest difference of two directories' weights."""
    a, b = tensors(first), tensors(second)
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    settings = dict(word.split("=") for word in sys.argv[2:])
    kind = {"toy": Toy, "noting": Noting, "moving": Moving}[settings.pop("task", "toy")]
    data = ToyData(
        pause=float(settings.pop("pause", 0)), wrong_way=bool(settings.pop("wrong_way", ""))
    )
    kinds = {"distributed": str, "clip_norm": float, "ema_decay": float}
    values = {key: kinds.get(key, int)(value) for key, value in settings.items()}
    values |= {key: bool(values[key]) for key in values.keys() & {"async_save"}}
    toy = kind(data, dropout=0.0 if "distributed" in values else 0.1)
    run_toy(directory, resume=True, task=toy, **values)
