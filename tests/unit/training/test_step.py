"""The arithmetic of a step: gradients over the global count, clipping, a seed for every step."""

import pytest
import torch
from torch import Tensor, nn

from magneto.training.distributed import World
from magneto.training.loop import accumulate, step_seed
from magneto.training.optimizer import scale_gradients
from magneto.training.task import Loss
from tests.unit.training.toy import Toy, config


def parameters() -> list[nn.Parameter]:
    """Two parameters with gradients 3 and 4 in norm, and one without any."""
    made = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))]
    made[0].grad, made[1].grad = torch.tensor([0.0, 30.0]), torch.tensor([-40.0])
    return made


def world(world_size: int = 1) -> World:
    return World(rank=0, world_size=world_size, device=torch.device("cpu"), strategy="none")


def test_gradients_are_divided_by_the_count() -> None:
    given = parameters()
    norm = scale_gradients(given, torch.tensor(10.0), None, world())
    assert norm == pytest.approx(5)
    torch.testing.assert_close(given[0].grad, torch.tensor([0.0, 3.0]))
    assert given[2].grad is None


def test_ranks_averaged_what_is_a_sum() -> None:
    given = parameters()
    assert scale_gradients(given, torch.tensor(10.0), None, world(2)) == pytest.approx(10)
    torch.testing.assert_close(given[1].grad, torch.tensor([-8.0]))


def test_clipping_is_torchs() -> None:
    for clip_norm in (0.5, 5.0, 50.0, 500.0):  # the last is never reached: nothing is scaled up
        given, theirs = parameters(), parameters()
        norm = scale_gradients(given, torch.tensor(1.0), clip_norm, world())
        assert norm == pytest.approx(50), "the norm that is returned is the one before clipping"
        assert nn.utils.clip_grad_norm_(theirs, clip_norm) == pytest.approx(50)
        for ours, other in zip(given[:2], theirs[:2], strict=True):
            torch.testing.assert_close(ours.grad, other.grad)


def test_a_step_that_predicts_nothing_is_finite() -> None:
    given = parameters()
    assert torch.isfinite(scale_gradients(given, torch.tensor(0.0), 1.0, world()))


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_a_model_computes_in_the_precision_that_is_asked_for(precision: str, dtype: str) -> None:
    seen = []

    class Watched(Toy):
        def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
            seen.append(model(batch[0]).dtype)
            return super().loss(model, batch)

    task = Watched()
    pieces = task.validation_batches()[:2]
    accumulate(task, task.build_model(), pieces, config(precision=precision), world())
    assert seen == [getattr(torch, dtype)] * 2


def test_every_step_of_every_rank_has_its_own_seed() -> None:
    seeds = {step_seed(s, step, rank) for s in (1, 2) for step in range(50) for rank in range(4)}
    assert len(seeds) == 2 * 50 * 4 and all(0 <= seed < 2**63 for seed in seeds)
    assert step_seed(1, 2, 3) == step_seed(1, 2, 3)
