"""Which parameters decay, and the optimizer over them."""

from __future__ import annotations

import torch
from torch import nn

from magneto.training.config import TrainingConfig

# Kinds of device for which torch has AdamW as one kernel.
FUSED = ("cpu", "cuda", "mps", "xpu")


def build_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build AdamW (one fused kernel) or SGD over the model's parameters.

    Only matrices of linear and convolutional layers decay: norms, biases, scales and embedding
    tables do not.
    """
    groups = [
        {"params": parameters, "weight_decay": decay}
        for parameters, decay in zip(
            split_parameters(model), (config.weight_decay, 0.0), strict=True
        )
        if parameters
    ]
    rate = config.learning_rate or 0.0
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate)
    fused = all(p.device.type in FUSED for p in model.parameters())
    return torch.optim.AdamW(groups, lr=rate, betas=config.betas, eps=config.eps, fused=fused)


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
    """Set the rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
