"""Bytes of a GPU, and bytes it sends, by hand."""

import pytest

from magneto.lab.plan.sharding import Cluster, bytes_needed, bytes_sent
from magneto.lab.plan.trace import StepMemory
from magneto.training.memory import StateBytes

STEP = StepMemory(
    state=StateBytes(weights=400, gradients=400, optimizer=800, average=0),
    fixed=10, batch=5, layers=60, around=20, peak=500, peak_activations=300,
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
    assert bytes_needed(STEP, strategy, CLUSTER, accumulation) == needed


def test_a_gpu_sends() -> None:
    assert bytes_sent(STEP, "none", Cluster(1, 8, 1e3)).total == 0
    assert bytes_sent(STEP, "ddp", CLUSTER).total == 2 * 400 * 15 / 16
    # Weights forward and, of the layers, backward; then the gradients.
    assert bytes_sent(STEP, "fsdp", CLUSTER).total == (400 + 320 + 400) * 15 / 16
    assert bytes_sent(STEP, "fsdp", CLUSTER, 3).total == (3 * 720 + 400) * 15 / 16
    hybrid = bytes_sent(STEP, "hybrid", CLUSTER)
    assert (hybrid.within, hybrid.between) == (1120 * 7 / 8, 2 * 400 / 8 * 1 / 2)
