"""A task's metrics of a model in this process, on the CPU."""

import torch
from torch import nn

from magneto.training.distributed import one_process
from magneto.training.evaluation import evaluate
from magneto.training.task import Task


def measured(task: Task, model: nn.Module, limit: int | None = None) -> dict[str, float]:
    return evaluate(task, model, one_process(torch.device("cpu")), "fp32", limit)
