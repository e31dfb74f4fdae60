"""Whether a model fits is known before it is built."""

import pytest
import torch
from torch import nn

from magneto.training.config import TrainingConfig
from magneto.training.distributed import one_process
from magneto.training.memory import check_batch, check_memory, kept_bytes, memory_of
from tests.training.toy import Toy

CPU = torch.device("cpu")


def on_meta(rows: int) -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(1000, rows, bias=False)


def test_a_batch_beyond_the_memory_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By what the model keeps of it; more pieces help, until the examples alone are too many."""
    task, world = Toy(), one_process(CPU)
    held = 5 * 4  # of an example, four numbers and an answer
    kept = kept_bytes(task, task.train_stream(8, 1).next(1, [0])[0]) / 8
    # Two layers of 16 and what is around them, in fp32.
    assert 3 * 16 * 4 <= kept <= 20 * 16 * 4
    monkeypatch.setattr("magneto.training.memory.memory_of", lambda device: 10_000 * held)
    for batch_size, pieces, refused in (
        (2_000, 1, None), (9_900, 1, "raise training.gradient_accumulation_steps"),
        (9_900, 50, None), (10_100, 50, "has 0.0002 GB: lower it"),
    ):  # fmt: skip
        config = TrainingConfig(batch_size=batch_size, gradient_accumulation_steps=pieces)
        if refused is None:
            check_batch(task, config, 1, world)
            continue
        with pytest.raises(ValueError, match=f"{refused}$") as caught:
            check_batch(task, config, 1, world)
        assert f"batch_size {batch_size:,}: a batch needs" in str(caught.value)


def test_weights_beyond_the_memory_are_refused_with_both_sizes() -> None:
    there = memory_of(CPU)
    assert there is not None
    rows = there // 4000
    check_memory(on_meta(rows - 1), one_process(CPU))
    with pytest.raises(ValueError, match=r"[\d,]+ parameters.* need [\d,.]+ GB.* has [\d,.]+ GB"):
        check_memory(on_meta(rows + 1), one_process(CPU))
