"""Vision and language on two ranks: as one process."""

from pathlib import Path
from typing import Any

import pytest
import torch

from magneto.weights import open_tensors
from tests.ranks import run_ranks
from tests.unit.vision_language.small_tasks import retrieval_task, run, train_model

pytestmark = pytest.mark.distributed
SCRIPT = "tests/unit/vision_language/small_tasks.py"


def check(one: Path, two: Path, **tolerance: Any) -> None:
    alone, ranks = (open_tensors(run / "final") for run in (one, two))
    assert alone.keys() == ranks.keys()
    for name in alone:
        torch.testing.assert_close(ranks[name].read(), alone[name].read(), **tolerance)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_pre_training(tmp_path: Path, strategy: str) -> None:
    pytest.importorskip("tokenizers")
    train_model(tmp_path / "one")
    words = ["vision-language-modelling", "", str(tmp_path / "two"), f"distributed={strategy}"]
    run_ranks(2, SCRIPT, *words)
    check(tmp_path / "one", tmp_path / "two", rtol=1e-5, atol=1e-5)


def test_retrieval_has_the_negatives_of_the_whole_batch(tmp_path: Path) -> None:
    """Two ranks with two micro-batches each, of unlike sizes, are one process with one."""
    folder, one, two = (tmp_path / name for name in ("data", "one", "two"))
    folder.mkdir()
    run(retrieval_task(folder), one, steps=3, batch_size=7)
    words = ["steps=3", "batch_size=7", "distributed=ddp", "gradient_accumulation_steps=2"]
    run_ranks(2, SCRIPT, "image-text-retrieval", str(folder), str(two), *words)
    check(one, two, rtol=1e-4, atol=1e-5)
