"""Every task's batches are a function of the seed and the step alone."""

from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
import torch

from magneto.data.stream import named_tensors
from magneto.data.workers import BatchPrefetcher
from magneto.progress import SILENT
from magneto.recipe import load_recipe
from magneto.tasks import TASKS
from tests.shrunken import draw_few, shrunken

STEPS, FIRST = 4, 2


@pytest.mark.parametrize("task", TASKS)
def test_neither_workers_nor_where_a_run_goes_on_change_a_batch(
    task: str, tmp_path: Path, module_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two micro-batches; of two built tasks, so that nothing is remembered from before."""
    draw_few(monkeypatch)
    changes = {"training.batch_size": 4, "training.device": "cpu", **shrunken(task, tmp_path)}
    recipe = load_recipe(f"{task}/tiny", changes)

    def batches(first: int, workers: int) -> list[dict[str, torch.Tensor]]:
        built = recipe.build_task()
        built.prepare(SILENT)
        stream = built.train_stream(recipe.training.batch_size, recipe.seed)
        with closing(BatchPrefetcher(stream, 2, [0, 1], num_workers=workers)) as ahead:
            return [
                {name: tensor.clone() for name, tensor in named_tensors(pieces).items()}
                for pieces in islice(ahead.start(first), STEPS - first)
            ]

    alone, resumed = batches(0, 0), batches(FIRST, 2)
    assert len(alone) == STEPS and all(map(bool, alone))
    for one, other in zip(alone[FIRST:], resumed, strict=True):
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            assert torch.equal(tensor, other[name]), name
