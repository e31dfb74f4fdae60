"""The optimizer: decay and rate of each parameter, scaling and clipping, the weights' average."""

# The torch._foreach functions have no public names.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from magneto.nn.parametrization import Scale, width_scales
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World, all_reduce_sum, any_rank, local_shard

# Kinds of device for which torch has AdamW as one kernel.
FUSED = ("cpu", "cuda", "mps", "xpu")
# The attribute of an optimizer by which its fused kernel divides the gradients, if it is there.
GRAD_SCALE = "grad_scale"


def build_optimizer(
    model: nn.Module, config: TrainingConfig, multipliers: Mapping[str, float] | None = None
) -> torch.optim.Optimizer:
    """Build AdamW (one fused kernel) or SGD over the model's parameters.

    Only matrices of linear and convolutional layers decay: norms, biases, scales and embedding
    tables do not. Of a model of maximal update parametrisation rates are multiplied by it, too, and
    decay divided.

    Args:
        model: Without a wrapper around it, so that its names are the task's.
        config: The optimizer's settings.
        multipliers: Of the learning rate, by parameter's name; 1 where there is none.

    Raises:
        ValueError: If a multiplier is of a parameter that the model has not, or SGD is asked for
            with parametrization "mup", whose rates are Adam's.
    """
    rate = config.learning_rate or 0.0
    scales = width_scales(model)
    if scales and config.optimizer == "sgd":
        raise ValueError("model.parametrization mup: its rates are for training.optimizer adamw")
    groups = parameter_groups(model, config.weight_decay, multipliers or {}, scales)
    for group in groups:
        group["lr"] = rate * group["multiplier"]
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate)
    fused = all(p.device.type in FUSED for p in model.parameters())
    return torch.optim.AdamW(groups, lr=rate, betas=config.betas, eps=config.eps, fused=fused)


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    multipliers: Mapping[str, float],
    scales: Mapping[str, Scale],
) -> list[dict[str, Any]]:
    """Group the trained parameters by decay and by the multiple of the rate.

    Args:
        model: Whose parameters they are.
        weight_decay: Of matrices.
        multipliers: Of the rate, by name.
        scales: Of the rate too, by name; decay is divided by them.

    Raises:
        ValueError: If a multiplier is of a parameter that the model has not.
    """
    unknown = sorted(multipliers.keys() - {name for name, _ in named_parameters(model)})
    if unknown:
        raise ValueError(f"a learning-rate multiplier is of {unknown[0]}, which the model has not")
    by_id = {id(p): multipliers[n] for n, p in named_parameters(model) if n in multipliers}
    scale_by_id = {id(p): scales[n].rate for n, p in named_parameters(model) if n in scales}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameters, decay in zip(split_parameters(model), (weight_decay, 0.0), strict=True):
        for parameter in parameters:
            scale = scale_by_id.get(id(parameter), 1.0)
            key = (decay / scale, scale * by_id.get(id(parameter), 1.0))
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


@torch.no_grad()
def gradient_scale(
    parameters: list[nn.Parameter], count: Tensor, clip_norm: float | None, world: World
) -> tuple[Tensor, Tensor]:
    """Return the gradients' norm before clipping, and what they are to be multiplied by.

    That divides by the global count, and clips. Ranks have averaged their gradients of the sum, so
    it is ranks / count. Both stay on the device.
    """
    gradients = [local_shard(p.grad) for p in parameters if p.grad is not None]
    square = torch.stack(torch._foreach_norm(gradients)).square().sum()
    if world.is_sharded:  # each copy's shards give the square once
        square = all_reduce_sum(square, world) / world.replicas
    scale = world.world_size / count.clamp(min=1)
    norm = square.sqrt() * scale
    if clip_norm is not None:
        scale = scale * (clip_norm / (norm + 1e-6)).clamp(max=1)
    return norm, scale


@torch.no_grad()
def scale_gradients(
    parameters: list[nn.Parameter], count: Tensor, clip_norm: float | None, world: World
) -> Tensor:
    """Multiply the gradients by their scale; return the norm (`gradient_scale`)."""
    norm, scale = gradient_scale(parameters, count, clip_norm, world)
    torch._foreach_mul_([local_shard(p.grad) for p in parameters if p.grad is not None], scale)
    return norm


def take_step(
    optimizer: torch.optim.Optimizer,
    parameters: list[nn.Parameter],
    count: Tensor,
    clip_norm: float | None,
    world: World,
) -> Tensor:
    """Scale the gradients and update the weights, in one pass where torch's kernel does both.

    Returns:
        The norm of the gradients before clipping, on the device.
    """
    if not scales_in_kernel(optimizer, world):
        norm = scale_gradients(parameters, count, clip_norm, world)
        optimizer.step()
        return norm
    norm, scale = gradient_scale(parameters, count, clip_norm, world)
    setattr(optimizer, GRAD_SCALE, scale.reciprocal())
    optimizer.step()
    delattr(optimizer, GRAD_SCALE)
    return norm


def scales_in_kernel(optimizer: torch.optim.Optimizer, world: World) -> bool:
    """Return whether the optimizer's kernel can divide the gradients by a number while it updates.

    Of shards (DTensors) it takes no plain tensor for it.
    """
    fused = bool(optimizer.defaults.get("fused")) and world.device.type in ("cpu", "cuda")
    return fused and not world.is_sharded


def all_finite(parameters: list[nn.Parameter], world: World) -> bool:
    """Return whether every weight is finite on every rank; each rank calls this, and waits.

    The loss of a step is of the weights before it: what its update broke, no loss has seen.
    """
    weights = [local_shard(parameter.detach()) for parameter in parameters]
    largest = torch._foreach_norm([w for w in weights if w.numel()], math.inf)
    broken = bool(largest) and not bool(torch.stack(list(largest)).isfinite().all())
    return not any_rank(broken, world)


class WeightAverage:
    """Follows a model: average <- decay * average + (1 - decay) * weights, after every step."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = list(model.parameters())
        self.average: list[Tensor] = [local_shard(w).detach().clone() for w in self.weights]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights."""
        torch._foreach_lerp_(self.average, [local_shard(w) for w in self.weights], 1 - self.decay)

    @torch.no_grad()
    def reset(self) -> None:
        """Make the average equal to the weights."""
        torch._foreach_copy_(self.average, [local_shard(w) for w in self.weights])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the average into the model for a while."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        shares = [local_shard(w) for w in self.weights]
        kept = [share.clone() for share in shares]
        torch._foreach_copy_(shares, self.average)
        torch._foreach_copy_(self.average, kept)
