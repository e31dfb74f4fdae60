"""What decays, the rate of each weight, the scale of gradients; the average of the weights."""

import pytest
import torch
from torch import nn

from magneto.training import optimizer as module
from magneto.training.distributed import World
from magneto.training.optimizer import (
    WeightAverage,
    build_optimizer,
    scale_gradients,
    set_learning_rate,
    split_parameters,
    take_step,
)
from tests.unit.training.toy import Moving, MovingModel, config


def test_only_matrices_decay_and_a_tied_one_is_a_table() -> None:
    parts = nn.ModuleDict(
        {"table": nn.Embedding(5, 4), "linear": nn.Linear(4, 4), "norm": nn.LayerNorm(4)}
    )
    parts["head"] = nn.Linear(4, 5, bias=False)
    parts["head"].weight = parts["table"].weight
    parts["norm"].register_parameter("head_bias", nn.Parameter(torch.ones(2, 4)))
    decayed, plain = split_parameters(parts)
    assert [id(p) for p in decayed] == [id(parts["linear"].weight)] and len(plain) == 5
    optimizer = build_optimizer(
        parts, config(learning_rate=0.1, weight_decay=0.5, betas=(0.8, 0.7), eps=1e-3)
    )
    assert (optimizer.defaults["betas"], optimizer.defaults["eps"]) == ((0.8, 0.7), 1e-3)
    before = {name: p.detach().clone() for name, p in parts.named_parameters()}
    for parameter in parts.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in parts.named_parameters():
        factor = 0.95 if name == "linear.weight" else 1.0
        assert torch.allclose(parameter, before[name] * factor)


def test_multiples_of_the_rate() -> None:
    model = MovingModel()
    multipliers = Moving().rate_multipliers(model)
    optimizer = build_optimizer(model, config(optimizer="sgd", weight_decay=0.0), multipliers)
    set_learning_rate(optimizer, 1.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        step = 0.1 if name.startswith("into") else 1.0
        assert torch.allclose(before[name] - parameter, torch.full_like(parameter, step))
    with pytest.raises(ValueError, match=r"nothing\.weight: no such parameter"):
        build_optimizer(nn.Linear(2, 2), config(), {"nothing.weight": 0.5})


def parameters() -> list[nn.Parameter]:
    """Two parameters with gradients 30 and 40 in norm, and one without any."""
    made = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))]
    made[0].grad, made[1].grad = torch.tensor([0.0, 30.0]), torch.tensor([-40.0])
    return made


def world(world_size: int = 1) -> World:
    return World(rank=0, world_size=world_size, device=torch.device("cpu"), strategy="none")


def test_gradients_are_divided_by_the_count_and_ranks_averaged_what_is_a_sum(monkeypatch) -> None:
    for size, norm in ((1, 5), (2, 10)):
        given = parameters()
        assert scale_gradients(given, torch.tensor(10.0), None, world(size)) == pytest.approx(norm)
        torch.testing.assert_close(given[0].grad, torch.tensor([0.0, 3.0 * size]))
        assert given[2].grad is None
    assert scale_gradients(given, torch.tensor(0.0), 1.0, world()).isfinite(), "predicts nothing"
    # Four ranks with equal shards are two copies of a model, whose norm is 50 sqrt(2).
    monkeypatch.setattr(module, "all_reduce_sum", lambda tensor, world: 4 * tensor)
    copies = World(0, 4, torch.device("cpu"), "hybrid", 2)
    norm = scale_gradients(parameters(), torch.tensor(10.0), None, copies)
    assert norm == pytest.approx(4 / 10 * 50 * 2**0.5)


def test_scaling_in_the_kernel_is_scaling_before_it() -> None:
    """To rounding: one multiplies by the scale, the other divides by its reciprocal."""
    found = []
    for shards in (False, True):  # of which kernels take no scale
        given = parameters()
        optimizer = torch.optim.AdamW(given, lr=0.1, fused=True)
        alone = World(0, 1, torch.device("cpu"), "fsdp" if shards else "none")
        for _ in range(3):
            norm = take_step(optimizer, given, torch.tensor(10.0), 0.5, alone)
            assert norm == pytest.approx(5)
            given[0].grad, given[1].grad = torch.tensor([0.0, 30.0]), torch.tensor([-40.0])
        found.append([*given, *(v for p in given[:2] for v in optimizer.state[p].values())])
    torch.testing.assert_close(*found, rtol=1e-6, atol=0)
    assert not torch.equal(found[0][0], torch.zeros(2))


def test_the_average_has_a_closed_form_and_is_exchanged() -> None:
    model = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
        average = WeightAverage(model, 0.9)
        model.weight.fill_(1.0)
    for _ in range(5):
        average.update()
    expected = torch.full((2, 2), 1 - 0.9**5)
    with average.in_place():
        assert torch.allclose(model.weight, expected)
    assert torch.equal(model.weight, torch.ones(2, 2))
    assert torch.allclose(average.average[0], expected)
    average.reset()
    assert torch.equal(average.average[0], torch.ones(2, 2))
