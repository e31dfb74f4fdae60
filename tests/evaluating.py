"""A task's metrics of a model in this process, on the CPU."""

import torch
from torch import nn

from magneto.training.distributed import single_process
from magneto.training.evaluation import evaluate
from magneto.training.task import Task
from tests.watched import host_reads


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


def reads_while_scoring(task: Task, model: nn.Module) -> list[str]:
    """Score two batches; return what made the host wait meanwhile."""
    batches = [task.validation_batches()[number] for number in (0, -1)]
    with host_reads() as reads, torch.no_grad():
        for batch in batches:
            task.score(model, batch)
    # A number that is written into a tensor, as captions are decoded, waits for nothing.
    return [name for name in reads if name != "lift_fresh"]
