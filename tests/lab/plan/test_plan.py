"""The largest micro-batch, and what is proposed."""

from dataclasses import replace
from typing import Any

import pytest

from magneto.lab.plan.plan import RESERVE, Steps, advise, cuts, micro_batch, usable
from magneto.lab.plan.sharding import Cluster, bytes_needed
from magneto.training.config import TrainingConfig
from tests.lab.plan.test_sharding import STEP
from tests.training.toy import Toy

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
        assert traced.needed("none", here, most, 1) <= usable(here)
        assert traced.needed("none", here, most + 1, 1) > usable(here)
    assert steps(50).largest("none", cluster(900), 1) == 0


def test_a_line_goes_through_both_traces() -> None:
    traced, here = steps(50), cluster(1e4)
    for examples, step in ((4, traced.small), (8, traced.large)):
        assert traced.needed("none", here, examples, 1) == bytes_needed(step, "none", here)


def test_micro_batches_are_the_largest_piece() -> None:
    assert micro_batch(CONFIG, cluster(1, 16)) == 4
    assert micro_batch(replace(CONFIG, gradient_accumulation_steps=3), cluster(1, 16)) == 2
    assert micro_batch(CONFIG, cluster(1, 1000)) == 1
    assert cuts(12) == [1, 2, 4, 8, 12] and cuts(1) == [1]


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
