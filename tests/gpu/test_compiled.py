"""Every tiny recipe trains compiled, without a break in the graph, and to the same weights."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from magneto.training.optimizer import build_optimizer
from tests.gpu.tiny import TINY, batches, build, cases, distance, gradients, tiny

# Steps, and the parts that a batch is cut in, of which the first is taken. A recipe whose batches
# differ in shape is compiled again for the second, with shapes left open.
SCALES = {"cpu": (1, 2), "cuda": (3, 1)}


def compilable(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the largest parts that torch compiles whole.

    It compiles no recurrent network, and none of its own layers that is called alone.
    """
    if isinstance(model, nn.ModuleList):  # is not called, its members are
        for part in model:
            yield from compilable(part)
    elif any(isinstance(part, nn.RNNBase) for part in model.modules()):
        for part in model.children():
            yield from compilable(part)
    elif not type(model).forward.__module__.startswith("torch."):
        yield model


@pytest.mark.usefixtures("exact_fp32")
@pytest.mark.parametrize(("name", "device"), cases(("causal-lm/tiny",)), indirect=["device"])
def test_compiled_in_one_graph_it_trains_the_same(name: str, device: torch.device) -> None:
    train_compiled(name, device, *SCALES[device.type])


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_with_open_shapes_too(name: str) -> None:
    torch.compiler.reset()
    train_compiled(name, torch.device("cpu"), *SCALES["cuda"])


def train_compiled(name: str, device: torch.device, steps: int, parts: int) -> None:
    recipe, _ = tiny(name)
    config = replace(recipe.training, optimizer="adamw", eps=1e-2, learning_rate=1e-3)
    task, plain = build(name, device)
    compiled = deepcopy(plain)
    whole = list(compilable(compiled))
    for part in whole:
        part.compile(fullgraph=True, backend="inductor" if device.type == "cuda" else "aot_eager")
    torch._dynamo.utils.counters.clear()  # type: ignore[attr-defined]
    for model in (plain, compiled):
        optimizer = build_optimizer(model, config)
        for batch in batches(name, device, steps, parts):
            gradients(task, model, batch)
            optimizer.step()
            optimizer.zero_grad()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= len(whole) > 0  # type: ignore[attr-defined]
    weights = [dict(model.named_parameters()) for model in (compiled, plain)]
    assert distance(*weights) < 1e-4
