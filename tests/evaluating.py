"""A task's metrics of a model in this process, on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from magneto.training.distributed import single_process
from magneto.training.evaluation import evaluate
from magneto.training.task import Task


def taught(task: Task, steps: int, batch_size: int = 16, rate: float = 3e-3) -> nn.Module:
    """Return the task's model after some steps of AdamW, in evaluation mode."""
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98))
    stream = task.train_stream(batch_size, 1).batches()
    for _ in range(steps):
        loss = task.loss(model, next(stream)[0])
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    return model.eval()


def measured(task: Task, model: nn.Module, limit: int | None = None) -> dict[str, float]:
    return evaluate(task, model, single_process(torch.device("cpu")), "fp32", limit).metrics


def predicted(task: Task, model: nn.Module) -> list:
    """Return what a model predicts of the validation data, batch by batch."""
    return evaluate(task, model, single_process(torch.device("cpu")), "fp32").predictions


@contextmanager
def watched_reads(*more: str) -> Iterator[list[str]]:
    """Yield a list of the methods by which a tensor is turned into a number meanwhile."""
    reads: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("item", "tolist", "cpu", "__bool__", "__float__", *more):
            kept = getattr(torch.Tensor, name)

            def read(self, *rest, kept=kept, name=name):
                reads.append(name)
                return kept(self, *rest)

            patch.setattr(torch.Tensor, name, read)
        yield reads
        assert torch.ones(1).item() == 1 and reads.pop() == "item", "the watch works"


def reads_while_scoring(task: Task) -> list[str]:
    """Score two batches; return by which methods a tensor was turned into a number meanwhile."""
    model = task.build_model().eval()
    batches = [task.validation_batches()[number] for number in (0, -1)]
    with watched_reads("numpy", "__int__") as reads, torch.no_grad():
        for batch in batches:
            task.score(model, batch)
    return reads
