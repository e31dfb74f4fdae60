"""Matrix products of a training step without anything else, as a lower limit of its time.

One step runs with unfused attention, and every product of both passes is recorded with the sizes
and memory layout of its operands. `replay` repeats the same products in the same order on random
operands. Norms, activations, softmax, sums, the optimizer and copies are omitted. Operands of one
size and layout share their memory, so caches may make the limit too low.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from magneto.training.task import Task

aten = torch.ops.aten
# Of each operation, the places of its two factors; a bias that is added is no product.
FACTORS = {aten.mm: (0, 1), aten.addmm: (1, 2), aten.bmm: (0, 1), aten.baddbmm: (1, 2)}
CONVOLUTIONS = (aten.convolution, aten.convolution_backward)


@dataclass(frozen=True)
class Operand:
    """Sizes and strides of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def draw(self) -> Tensor:
        """Return such a tensor of random numbers; expanded rows share their memory."""
        steps = zip(self.shape, self.stride, strict=True)
        count = 1 + sum((size - 1) * stride for size, stride in steps) if 0 not in self.shape else 0
        return torch.randn(count).as_strided(self.shape, self.stride)


@dataclass(frozen=True)
class Product:
    """One product of a step: a function and its arguments, with `Operand`s for tensors."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    flops: float


def operand(value: Any) -> Any:
    """Return the `Operand` of a tensor; other values unchanged, lists as tuples."""
    if isinstance(value, Tensor):
        return Operand(tuple(value.shape), tuple(value.stride()))
    return tuple(value) if isinstance(value, list) else value


class Recorder(TorchDispatchMode):
    """Recorder of every product within its context."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[Product] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and record it if it is a product."""
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet in FACTORS:
            factors = tuple(operand(args[place]) for place in FACTORS[packet])
            plain = torch.bmm if packet in (aten.bmm, aten.baddbmm) else torch.mm
            flops = flop_registry[packet](*args, **(kwargs or {}), out_val=result)
            self.products.append(Product(plain, factors, flops))
        elif packet in CONVOLUTIONS:
            flops = flop_registry[packet](*args, **(kwargs or {}), out_val=result)
            self.products.append(Product(func, tuple(map(operand, args)), flops))
        return result


def products_of(task: Task, batch: Any) -> list[Product]:
    """Return the products of one training step of a task, forward and backward."""
    model = task.build_model().train()
    with sdpa_kernel(SDPBackend.MATH), Recorder() as recorder:
        task.loss(model, batch).total.backward()
    return recorder.products


def replay(products: list[Product]) -> Callable[[], None]:
    """Return a function that computes all products once; results of one size share memory."""
    drawn: dict[Operand, Tensor] = {}
    results: dict[tuple[int, ...], Tensor] = {}
    ready = []
    for product in products:
        given = [tensor_of(value, drawn) for value in product.arguments]
        plain = product.function in (torch.mm, torch.bmm)
        shape = (*given[0].shape[:-1], given[1].shape[-1]) if plain else ()
        out = {"out": results.setdefault(shape, torch.empty(shape))} if plain else {}
        ready.append((product.function, given, out))

    def step() -> None:
        for function, given, out in ready:
            function(*given, **out)

    return step


def tensor_of(value: Any, drawn: dict[Operand, Tensor]) -> Any:
    """Return the tensor of an operand; other values unchanged."""
    if not isinstance(value, Operand):
        return list(value) if isinstance(value, tuple) else value
    if value not in drawn:
        drawn[value] = value.draw()
    return drawn[value]
