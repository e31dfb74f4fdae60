"""Optimizer: parameter groups, gradient scaling and clipping, and averaged weights."""

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

# Device types for which torch has a fused AdamW kernel.
FUSED = ("cpu", "cuda", "mps", "xpu")
# Attribute of an optimizer by which its fused kernel divides the gradients.
GRAD_SCALE = "grad_scale"
# Tensors of `build_optimizer` for each trained weight, of the weight's type.
OPTIMIZER_TENSORS = {"adamw": 2, "sgd": 0}


# Another optimizer needs these changes, in this order:
# 1. training/config.py: the name in `TrainingConfig.optimizer`, and a field for each
#    hyper-parameter beside `betas` and `eps`.
# 2. lab/scores.py: the new fields in TRAINED, the fields that a row's seeds must share.
# 3. A case in `build_optimizer`, and an entry in OPTIMIZER_TENSORS. With "mup", `build_optimizer`
#    refuses all optimizers but AdamW, because the scales in nn/parametrization.py are Adam's.
# 4. Nothing in training/checkpoint.py, if `optimizer.state` has only tensors and numbers for each
#    parameter. Tensors of another shape than the parameter's are read as float32.
def build_optimizer(
    model: nn.Module, config: TrainingConfig, multipliers: Mapping[str, float] | None = None
) -> torch.optim.Optimizer:
    """Build AdamW, fused where possible, or SGD over the trained parameters.

    Matrices of linear and convolutional layers have weight decay. Norms, biases, scales and
    embedding tables have no weight decay. Pass `model` without DDP's wrapper, which would change
    the parameter names.

    Raises:
        ValueError: If one of the `multipliers` of the learning rate names no parameter.
        ValueError: If the parametrisation is "mup", but the optimizer is not AdamW.
    """
    rate = config.learning_rate or 0.0
    scales = width_scales(model)
    if scales and config.optimizer != "adamw":  # the scales are those of Adam
        raise ValueError("model.parametrization 'mup' needs training.optimizer 'adamw'")
    groups = parameter_groups(model, config.weight_decay, multipliers or {}, scales)
    for group in groups:
        group["lr"] = rate * group["multiplier"]
    match config.optimizer:
        case "adamw":
            fused = all(p.device.type in FUSED for p in model.parameters())
            return torch.optim.AdamW(
                groups, lr=rate, betas=config.betas, eps=config.eps, fused=fused
            )
        case "sgd":
            return torch.optim.SGD(groups, lr=rate)


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    multipliers: Mapping[str, float],
    scales: Mapping[str, Scale],
) -> list[dict[str, Any]]:
    named = dict(model.named_parameters(remove_duplicate=False))
    unknown = sorted(multipliers.keys() - named.keys())
    if unknown:
        raise ValueError(
            f"learning-rate multiplier of {unknown[0]}: the model has no such parameter"
        )
    by_id = {id(p): multipliers[n] for n, p in named.items() if n in multipliers}
    scale_by_id = {id(p): scales[n].rate for n, p in named.items() if n in scales}
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


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        # Transformer-XL's biases are matrices: one row per head.
        matrix = parameter.ndim >= 2 and not name.endswith("bias") and id(parameter) not in tables
        (decayed if matrix else plain).append(parameter)
    return decayed, plain


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["multiplier"]


@torch.no_grad()
def gradient_scale(
    parameters: list[nn.Parameter], count: Tensor, clip_norm: float | None, world: World
) -> tuple[Tensor, Tensor]:
    """Return the gradient norm before clipping, and the factor that averages and clips gradients.

    Each rank must compute the gradients of its summed loss, and DDP or FSDP must average them over
    ranks. Gradients multiplied by the factor are the clipped gradients of the mean loss. `count` is
    the number of predictions on all ranks. Both results are tensors on the device, so
    the host does not wait.
    """
    gradients = [local_shard(p.grad) for p in parameters if p.grad is not None]
    square = torch.stack(torch._foreach_norm(gradients)).square().sum()
    if world.is_sharded:  # the shards of each replica add up to the square
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
    """Average and clip the gradients by `gradient_scale`. Return their norm before clipping."""
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
    """Scale the gradients, update the weights, and drop the gradients.

    A fused kernel gets the reciprocal of the factor as the attribute GRAD_SCALE of the optimizer,
    and scales the gradients itself. Otherwise `scale_gradients` multiplies them before the step.

    Returns:
        The gradient norm before clipping, on the device.
    """
    fused = bool(optimizer.defaults.get("fused")) and world.device.type in ("cpu", "cuda")
    if fused and not world.is_sharded:  # the kernel can't scale DTensors
        norm, scale = gradient_scale(parameters, count, clip_norm, world)
        setattr(optimizer, GRAD_SCALE, scale.reciprocal())
        optimizer.step()
        delattr(optimizer, GRAD_SCALE)
    else:
        norm = scale_gradients(parameters, count, clip_norm, world)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def all_finite(parameters: list[nn.Parameter], world: World) -> bool:
    """Return whether all weights are finite on every rank. Every rank must call this function.

    A step's loss is computed before the update, so the loss does not show weights that have become
    infinite or NaN.
    """
    weights = [local_shard(parameter.detach()) for parameter in parameters]
    largest = torch._foreach_norm([w for w in weights if w.numel()], math.inf)
    broken = bool(largest) and not bool(torch.stack(list(largest)).isfinite().all())
    return not any_rank(broken, world)


class WeightAverage:
    """Exponential moving average: average <- decay * average + (1 - decay) * weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = list(model.parameters())
        self.average: list[Tensor] = [local_shard(w).detach().clone() for w in self.weights]

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self.average, [local_shard(w) for w in self.weights], 1 - self.decay)

    @torch.no_grad()
    def reset(self) -> None:
        torch._foreach_copy_(self.average, [local_shard(w) for w in self.weights])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averaged weights into the model during a `with` block."""
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
