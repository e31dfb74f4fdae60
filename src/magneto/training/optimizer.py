"""Which parameters decay, at which multiple of the rate they learn, and the optimizer over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from magneto.training.config import TrainingConfig

# Kinds of device for which torch has AdamW as one kernel.
FUSED = ("cpu", "cuda", "mps", "xpu")


def build_optimizer(
    model: nn.Module, config: TrainingConfig, multipliers: Mapping[str, float] | None = None
) -> torch.optim.Optimizer:
    """Build AdamW (one fused kernel) or SGD over the model's parameters.

    Only matrices of linear and convolutional layers decay: norms, biases, scales and embedding
    tables do not.

    Args:
        model: Without a wrapper around it, so that its names are the task's.
        config: The optimizer's settings.
        multipliers: Of the learning rate, by parameter's name; 1 where there is none.

    Raises:
        ValueError: If a multiplier is of a parameter that the model has not.
    """
    rate = config.learning_rate or 0.0
    groups = parameter_groups(model, config.weight_decay, multipliers or {})
    for group in groups:
        group["lr"] = rate * group["multiplier"]
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate)
    fused = all(p.device.type in FUSED for p in model.parameters())
    return torch.optim.AdamW(groups, lr=rate, betas=config.betas, eps=config.eps, fused=fused)


def parameter_groups(
    model: nn.Module, weight_decay: float, multipliers: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Group the trained parameters by decay and by the multiple of the rate.

    Raises:
        ValueError: If a multiplier is of a parameter that the model has not.
    """
    unknown = sorted(multipliers.keys() - {name for name, _ in named_parameters(model)})
    if unknown:
        raise ValueError(f"a learning-rate multiplier is of {unknown[0]}, which the model has not")
    by_id = {id(p): multipliers[n] for n, p in named_parameters(model) if n in multipliers}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameters, decay in zip(split_parameters(model), (weight_decay, 0.0), strict=True):
        for parameter in parameters:
            key = (decay, by_id.get(id(parameter), 1.0))
            groups.setdefault(key, []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "multiplier": multiplier}
        for (decay, multiplier), parameters in groups.items()
    ]


def named_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """List parameters with each of the names that a tied one has."""
    return list(model.named_parameters(remove_duplicate=False))


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return (decayed, not decayed) parameters; a shared one is counted once."""
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    decayed, plain = [], []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        matrix = parameter.ndim >= 2 and id(parameter) not in tables
        (decayed if matrix else plain).append(parameter)
    return decayed, plain


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group: its own multiple of this one."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["multiplier"]
