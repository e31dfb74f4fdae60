"""Only matrices decay."""

import torch
from torch import nn

from magneto.training.config import TrainingConfig
from magneto.training.optimizer import build_optimizer, split_parameters


def model() -> nn.Module:
    parts = nn.ModuleDict(
        {"table": nn.Embedding(5, 4), "linear": nn.Linear(4, 4), "norm": nn.LayerNorm(4)}
    )
    parts["head"] = nn.Linear(4, 5, bias=False)
    parts["head"].weight = parts["table"].weight
    return parts


def test_only_matrices_decay_and_a_tied_one_is_a_table() -> None:
    parts = model()
    decayed, plain = split_parameters(parts)
    assert [id(p) for p in decayed] == [id(parts["linear"].weight)]
    assert len(plain) == 4


def test_decay_shrinks_matrices_alone() -> None:
    parts = model()
    optimizer = build_optimizer(parts, TrainingConfig(learning_rate=0.1, weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in parts.named_parameters()}
    for parameter in parts.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in parts.named_parameters():
        factor = 0.95 if name == "linear.weight" else 1.0
        assert torch.allclose(parameter, before[name] * factor)
