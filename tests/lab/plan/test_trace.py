"""What a step is said to need is what it allocates, counted by hand where that can be done."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from magneto.lab.plan.trace import StepMemory, trace_step
from magneto.training.config import TrainingConfig
from magneto.training.task import Loss
from tests.training.toy import Toy

WIDTH, ROWS = 8, 100
ROW = 4 * WIDTH  # bytes of one row in fp32


class Two(nn.Module):
    """Two layers of one matrix each, and a matrix above them; maybe layers are recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.head = nn.Linear(WIDTH, 1, bias=False)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Stack(Toy):
    """The two layers on rows of a given number."""

    def __init__(self, looks: bool = False) -> None:
        super().__init__()
        self.looks = looks

    def build_model(self) -> Any:
        return Two()

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        found = model(batch).sum()
        if self.looks and found.item() > 0:
            found = found * 2
        return Loss(found, torch.ones(()))


def traced(**changes: Any) -> StepMemory:
    config = TrainingConfig(learning_rate=1e-3, **changes)
    return trace_step(Stack(), torch.zeros(ROWS, WIDTH), config, gpu=False)


def test_weights_and_what_comes_with_them_are_counted() -> None:
    weights = 4 * (2 * WIDTH**2 + WIDTH)
    found = traced(ema_decay=0.9)
    state = found.state
    assert (state.weights, state.gradients, state.average) == (weights, weights, weights)
    assert (state.optimizer, state.total) == (2 * weights, 5 * weights)
    assert traced(optimizer="sgd").state.total == 2 * weights
    assert (found.fixed, found.batch) == (3 * 4, ROWS * ROW)
    assert (found.largest_layer, found.outside_layers) == (4 * WIDTH**2, 4 * WIDTH)
    assert found.held == 4 * weights + 3 * 4


def test_activations_are_counted() -> None:
    found = traced()
    assert found.layers == 2 * ROWS * ROW
    # The loss has its sum and its count; the head's output is freed: a sum needs it no more.
    assert found.around == 2 * 4
    # Backward, beside both outputs, of each matrix the gradient of its output and of its input.
    assert 3 * ROWS * ROW <= found.peak_activations <= found.peak <= 4.5 * ROWS * ROW


def test_bf16_keeps_half() -> None:
    """Kept too: the rows in bf16, and the copy of the upper matrix, for its input's gradient."""
    found = traced(precision="bf16")
    assert found.layers == 3 * ROWS * ROW // 2 + 2 * WIDTH**2


def test_a_loss_that_looks_at_values_is_refused_in_one_line() -> None:
    config = TrainingConfig(learning_rate=1e-3)
    with pytest.raises(ValueError, match="Stack can't be planned: "):
        trace_step(Stack(looks=True), torch.zeros(ROWS, WIDTH), config, gpu=False)
