"""Memory of a step counted by hand, memory of several GPUs, and suggested options."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from magneto.lab.plan import RESERVE, Plan, StepMemory, micro_batch, trace_step
from magneto.training.config import TrainingConfig
from magneto.training.model import StateBytes
from magneto.training.task import Loss
from tests.unit.training.toy import Toy, ToyData

WIDTH, ROWS = 8, 100
ROW = 4 * WIDTH  # bytes of one row in fp32


class Two(nn.Module):
    """Two layers of one matrix each, and a matrix above them, optionally with recomputation."""

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
    """A task with the two layers and a given number of rows."""

    def build_model(self) -> Any:
        return Two()

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        return Loss(model(batch).sum(), torch.ones(()))


def traced(**changes: Any) -> StepMemory:
    config = TrainingConfig(learning_rate=1e-3, **changes)
    return trace_step(Stack(), torch.zeros(ROWS, WIDTH), config)


def test_weights_and_what_comes_with_them_are_counted() -> None:
    weights = 4 * (2 * WIDTH**2 + WIDTH)
    found = traced(ema_decay=0.9)
    state = found.state
    assert (state.weights, state.gradients, state.average) == (weights, weights, weights)
    assert (state.optimizer, state.total) == (2 * weights, 5 * weights)
    assert traced(optimizer="sgd").state.total == 2 * weights
    assert found.other == 3 * 4 + ROWS * ROW
    assert (found.largest_layer, found.outside_layers) == (4 * WIDTH**2, 4 * WIDTH)
    # Two for each weight and row forward, four backward; of the first layer's input no gradient.
    assert found.flops == ROWS * (6 * weights // 4 - 2 * WIDTH**2)


def test_activations_are_counted() -> None:
    found = traced()
    # Beside both outputs the loss has its sum and its count; the head's output is freed: a sum
    # needs it no more.
    assert found.kept == 2 * ROWS * ROW + 2 * 4
    # Backward, beside both outputs, of each matrix the gradient of its output and of its input.
    assert 3 * ROWS * ROW <= found.peak_activations <= found.peak <= 4.5 * ROWS * ROW
    # In bf16 outputs take half; rows in bf16 and copies of the matrices are kept for the gradients.
    kept = traced(precision="bf16").kept
    assert 3 * ROWS * ROW // 2 < kept < 3 * ROWS * ROW // 2 + 3 * 2 * WIDTH**2
    looking = Toy(ToyData(explode_at=0.1))
    with pytest.raises(ValueError, match="Toy cannot be planned: "):
        trace_step(looking, looking.train_stream(8, 0).batch(0)[0], TrainingConfig())


STEP = StepMemory(
    state=StateBytes(weights=400, gradients=400, optimizer=800, average=0),
    other=15, kept=80, peak=500, peak_activations=300,
    largest_layer=40, outside_layers=80, flops=1.0,
)  # fmt: skip
CONFIG = TrainingConfig(learning_rate=1e-3, batch_size=64)


@pytest.mark.parametrize(
    ("strategy", "shards", "accumulation", "needed"),
    [
        ("none", 1, 1, 1200 + 15 + 500),
        ("none", 1, 2, 1200 + 15 + 300 + 400),
        ("ddp", 1, 1, 1200 + 15 + 400 + 500),
        # A share of the state, what is whole on each, gathered weights and moving gradients.
        ("fsdp", 16, 1, 1600 / 16 + 15 + 300 + 2 * (80 + 2 * 40)),
        ("hybrid", 8, 1, 1600 / 8 + 15 + 300 + 2 * (80 + 2 * 40)),
        ("fsdp", 16, 4, 1600 / 16 + 15 + 300 + 2 * (80 + 2 * 40) + 400),
    ],
)
def test_a_gpu_needs(strategy: str, shards: int, accumulation: int, needed: float) -> None:
    assert STEP.needed(strategy, shards, accumulation) == needed


def plan(memory: float, gpus: int = 1, recomputed: int = 10, each: int = 100) -> Plan:
    """Return a plan in which an example takes the given bytes in addition to 100."""

    def traced(each: int) -> tuple[StepMemory, StepMemory]:
        micro = micro_batch(CONFIG, gpus, 1)
        peaks = [100 + each * count for count in (micro, 2 * micro)]
        small, large = (replace(STEP, peak=p + 400, peak_activations=p) for p in peaks)
        return small, large

    steps = {False: traced(each), True: traced(recomputed)}
    return Plan(Toy(), CONFIG, gpus, 8, memory / (1 - RESERVE), steps)


def test_strategies_follow_the_cluster() -> None:
    found = {gpus: plan(1e3, gpus).strategies() for gpus in (1, 8, 12, 16)}
    assert found == {1: {"none": 1}, 8: {"ddp": 1, "fsdp": 8}, 12: {"ddp": 1, "fsdp": 12},
                     16: {"ddp": 1, "hybrid": 8, "fsdp": 16}}  # fmt: skip
    # 64 examples in 4 micro-batches: the largest of a GPU, if some get one more than others.
    assert [micro_batch(CONFIG, gpus, 4) for gpus in (1, 12, 99)] == [16, 2, 1]


def test_the_largest_micro_batch_just_fits() -> None:
    for memory in (3000, 3024, 10_000):
        # 1200 and 15 are held, 500 is alive without an example, and each takes 50.
        assert plan(memory, each=50).way("none", False).largest == (memory - 1715) // 50
    assert plan(900, each=50).way("none", False).largest == 0


@pytest.mark.parametrize(
    ("memory", "gpus", "words"),
    [
        (1e5, 1, "--model.checkpoint_activations false --training.gradient_accumulation_steps 1"),
        # 1215 held, 100 and 400 of gradients: 885 are left, 8 examples of 100 fit.
        (2600, 1, "--model.checkpoint_activations false --training.gradient_accumulation_steps 8"),
        (1780, 1, "--model.checkpoint_activations true --training.gradient_accumulation_steps 16"),
        # Ranks share before layers are recomputed.
        (1500, 16, "--distributed hybrid --model.checkpoint_activations false "
         "--training.gradient_accumulation_steps 1"),
        (1000, 1, None),
    ],
)  # fmt: skip
def test_the_cheapest_way_that_fits_is_proposed(
    memory: float, gpus: int, words: str | None
) -> None:
    found = plan(memory, gpus).advise()
    assert (found and found.options()) == words
