"""Whether a model fits is known before it is built."""

import pytest
import torch
from torch import nn

from magneto.training.distributed import one_process
from magneto.training.memory import check_memory, memory_of

CPU = torch.device("cpu")


def on_meta(rows: int) -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(1000, rows, bias=False)


def test_weights_beyond_the_memory_are_refused_with_both_sizes() -> None:
    there = memory_of(CPU)
    assert there is not None
    rows = there // 4000
    check_memory(on_meta(rows - 1), one_process(CPU))
    with pytest.raises(ValueError, match=r"[\d,]+ parameters.* need [\d,.]+ GB.* has [\d,.]+ GB"):
        check_memory(on_meta(rows + 1), one_process(CPU))
