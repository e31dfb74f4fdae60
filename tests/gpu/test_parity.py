"""A device computes what float64 computes on the CPU: loss, gradients, one optimizer step."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from magneto.data.stream import map_tensors, to_device
from magneto.training.optimizer import build_optimizer
from magneto.training.task import place_companion
from tests.gpu.tiny import FAMILIES, batches, build, cases, distance, gradients, tiny

CPU = torch.device("cpu")
# Relative errors allowed: of the loss, of all gradients together, of all changes of the weights.
# bf16 keeps 8 bits, so that each product is wrong by up to 0.4 %.
ALLOWED = {"fp32": (1e-5, 1e-4, 1e-3), "bf16": (1e-2, 6e-2, 1e-1)}


@pytest.mark.usefixtures("exact_fp32")
@pytest.mark.parametrize(("name", "device"), cases(), indirect=["device"])
def test_a_step_equals_float64_on_the_cpu(name: str, device: torch.device) -> None:
    check(name, "fp32", device)


@pytest.mark.parametrize(("name", "device"), cases(FAMILIES[:1]), indirect=["device"])
def test_a_step_in_bf16_is_near_float64_on_the_cpu(name: str, device: torch.device) -> None:
    check(name, "bf16", device)


def check(name: str, precision: str, device: torch.device) -> None:
    recipe, _ = tiny(name)
    # A large epsilon: Adam divides a gradient that is zero but for rounding by itself.
    config = replace(recipe.training, optimizer="adamw", eps=1e-2, learning_rate=1e-3)
    task, model = build(name, CPU)
    parts = 4 if precision == "bf16" and device == CPU else 1  # bf16 is slow there
    batch = batches(name, CPU, 1, parts)[0]
    wide = map_tensors(batch, lambda x: x.double() if x.is_floating_point() else x)
    found = []
    for copy, given, kind in (
        (deepcopy(model).double(), wide, "fp64"),
        (deepcopy(model).to(device), to_device(batch, device), precision),
    ):
        before = {n: p.detach().clone() for n, p in copy.named_parameters()}
        place_companion(task, next(copy.parameters()).device)
        with torch.autocast(device.type, torch.bfloat16, enabled=kind == "bf16"):
            loss, gradient = gradients(task, copy, given)
        build_optimizer(copy, config).step()
        change = {n: p.detach() - before[n] for n, p in copy.named_parameters()}
        found.append((loss.item(), gradient, change))
    (loss, gradient, change), (real_loss, real_gradient, real_change) = found
    allowed = ALLOWED[precision]
    apart = (
        abs(real_loss - loss) / abs(loss),
        distance(real_gradient, gradient),
        distance(real_change, change),
    )
    assert all(a < most for a, most in zip(apart, allowed, strict=True)), apart
    assert precision == "fp32" or apart[1] > 1e-4, "nothing was computed in bf16"
