"""What a step needs, counted by hand; what GPUs hold and send; and what is proposed."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from magneto.lab.plan import RESERVE, Cluster, StepMemory, Steps, advise, micro_batch, trace_step
from magneto.training.config import TrainingConfig
from magneto.training.model import StateBytes
from magneto.training.task import Loss
from tests.unit.training.toy import Toy

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
    # Beside both outputs the loss has its sum and its count; the head's output is freed: a sum
    # needs it no more.
    assert found.kept == 2 * ROWS * ROW + 2 * 4
    # Backward, beside both outputs, of each matrix the gradient of its output and of its input.
    assert 3 * ROWS * ROW <= found.peak_activations <= found.peak <= 4.5 * ROWS * ROW


def test_bf16_keeps_half() -> None:
    """Kept too: the rows in bf16, and the copies of matrices, for their inputs' gradients."""
    kept = traced(precision="bf16").kept
    assert 3 * ROWS * ROW // 2 < kept < 3 * ROWS * ROW // 2 + 3 * 2 * WIDTH**2


def test_a_loss_that_looks_at_values_is_refused_in_one_line() -> None:
    config = TrainingConfig(learning_rate=1e-3)
    with pytest.raises(ValueError, match="Stack can't be planned: "):
        trace_step(Stack(looks=True), torch.zeros(ROWS, WIDTH), config, gpu=False)


STEP = StepMemory(
    state=StateBytes(weights=400, gradients=400, optimizer=800, average=0),
    fixed=10, batch=5, kept=80, peak=500, peak_activations=300,
    largest_layer=40, outside_layers=80,
)  # fmt: skip
CLUSTER = Cluster(gpus=16, per_node=8, memory=1e3)


def test_strategies_follow_the_cluster() -> None:
    assert CLUSTER.nodes == 2
    assert CLUSTER.strategies() == ("ddp", "hybrid", "fsdp")
    assert Cluster(8, 8, 1e3).strategies() == ("ddp", "fsdp")
    assert Cluster(1, 8, 1e3).strategies() == ("none",)
    assert [CLUSTER.shards(name) for name in ("ddp", "hybrid", "fsdp")] == [1, 8, 16]


@pytest.mark.parametrize(
    ("strategy", "accumulation", "needed"),
    [
        ("none", 1, 1200 + 15 + 500),
        ("none", 2, 1200 + 15 + 300 + 400),
        ("ddp", 1, 1200 + 15 + 400 + 500),
        # A share of the state, what is whole on each, gathered weights and moving gradients.
        ("fsdp", 1, 1200 / 16 + 15 + 400 / 16 + 300 + 2 * (80 + 2 * 40)),
        ("hybrid", 1, 1200 / 8 + 15 + 400 / 8 + 300 + 2 * (80 + 2 * 40)),
        ("fsdp", 4, 1200 / 16 + 15 + 400 / 16 + 300 + 2 * (80 + 2 * 40) + 400),
    ],
)
def test_a_gpu_needs(strategy: str, accumulation: int, needed: float) -> None:
    assert STEP.needed(strategy, CLUSTER, accumulation) == needed


def test_a_gpu_sends() -> None:
    assert STEP.sent("none", Cluster(1, 8, 1e3)) == (0, 0)
    assert STEP.sent("ddp", CLUSTER) == (2 * 400 * 15 / 16, 0)
    # Weights forward and, of the layers, backward; then the gradients.
    assert STEP.sent("fsdp", CLUSTER) == ((400 + 320 + 400) * 15 / 16, 0)
    assert STEP.sent("fsdp", CLUSTER, 3) == ((3 * 720 + 400) * 15 / 16, 0)
    assert STEP.sent("hybrid", CLUSTER) == (1120 * 7 / 8, 2 * 400 / 8 * 1 / 2)


CONFIG = TrainingConfig(learning_rate=1e-3, batch_size=64)


def steps(each: int, examples: int = 4) -> Steps:
    """Return traces in which an example takes so many bytes beside 100."""

    def step(count: int) -> Any:
        peak = 100 + each * count
        return replace(STEP, batch=0, peak=peak + 400, peak_activations=peak)

    return Steps(examples, step(examples), step(2 * examples), flops=1.0)


def cluster(memory: float, gpus: int = 1) -> Cluster:
    return Cluster(gpus, 8, memory / (1 - RESERVE))


def test_the_largest_micro_batch_just_fits() -> None:
    traced = steps(each=50)
    for memory in (3000, 3024, 10_000):
        here = cluster(memory)
        most = traced.largest("none", here, 1)
        assert traced.needed("none", here, most, 1) <= here.usable
        assert traced.needed("none", here, most + 1, 1) > here.usable
    assert steps(50).largest("none", cluster(900), 1) == 0


def test_a_line_goes_through_both_traces() -> None:
    traced, here = steps(50), cluster(1e4)
    for examples, step in ((4, traced.small), (8, traced.large)):
        assert traced.needed("none", here, examples, 1) == step.needed("none", here)


def test_micro_batches_are_the_largest_piece() -> None:
    assert micro_batch(CONFIG, cluster(1, 16)) == 4
    assert micro_batch(replace(CONFIG, gradient_accumulation_steps=3), cluster(1, 16)) == 2
    assert micro_batch(CONFIG, cluster(1, 1000)) == 1


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (1e5, "--model.checkpoint_activations false --training.gradient_accumulation_steps 1"),
        # 1210 held, 100 and 400 of gradients: 890 are left, 8 examples of 100 fit.
        (2600, "--model.checkpoint_activations false --training.gradient_accumulation_steps 8"),
        (1780, "--model.checkpoint_activations true --training.gradient_accumulation_steps 16"),
    ],
)
def test_the_cheapest_way_that_fits_is_proposed(memory: float, words: str) -> None:
    traced = {False: steps(each=100), True: steps(each=10)}
    found = advise(Toy(), traced, CONFIG, cluster(memory))
    assert found is not None
    assert found.options() == words


def test_ranks_share_before_layers_are_recomputed() -> None:
    traced = {False: steps(each=100), True: steps(each=10)}
    found = advise(Toy(), traced, CONFIG, cluster(1500, 16))
    assert found is not None
    assert (found.strategy, found.recompute) == ("hybrid", False)


def test_where_nothing_fits_nothing_is_proposed() -> None:
    assert advise(Toy(), {False: steps(1)}, CONFIG, cluster(1000)) is None
