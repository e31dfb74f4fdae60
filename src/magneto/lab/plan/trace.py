"""What a training step allocates, followed without computing it: tensors here have only shapes.

The product's own step runs under torch's FakeTensorMode, where every tensor has a device, a shape
and a type and no memory, and a dispatch mode adds up the bytes of what is alive. What is inside a
kernel (a library's scratch memory) is not seen.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from magneto.data.batch import map_tensors, named_tensors
from magneto.nn.attention import DotProductAttention
from magneto.training.config import TrainingConfig
from magneto.training.memory import StateBytes, state_bytes, tensor_bytes
from magneto.training.task import Task


def ctc_loss(
    log_probabilities: Tensor, targets: Tensor, lengths: list[int], labels: list[int], *_: Any
) -> tuple[Tensor, Tensor]:
    """Return what `aten::_ctc_loss` gives: a loss for each row, and its lattice of both."""
    frames, rows = log_probabilities.shape[:2]
    lattice = [rows, frames, 2 * max(labels) + 1]
    return log_probabilities.new_empty(rows), log_probabilities.new_empty(lattice)


# Operations of which torch knows no shapes without values.
SHAPES: dict[Any, Any] = {torch.ops.aten._ctc_loss.default: ctc_loss}


@dataclass(frozen=True)
class StepMemory:
    """Bytes of one micro-batch, forward and backward, by what they are for.

    Attributes:
        state: What the weights take, whatever the batch.
        fixed: Weights that are not trained, buffers, and the companion that the loss asks.
        batch: The tensors of the micro-batch.
        layers: What the forward pass keeps inside the layers for the backward pass.
        around: What it keeps around them: embeddings, the head, the loss.
        peak: The most alive at once beside weights, gradients included.
        peak_activations: The most alive at once, neither weights nor gradients.
        largest_layer: Weights of the largest layer, which sharded ranks gather as a whole.
        outside_layers: Weights outside the layers.
    """

    state: StateBytes
    fixed: int
    batch: int
    layers: int
    around: int
    peak: int
    peak_activations: int
    largest_layer: int
    outside_layers: int

    @property
    def held(self) -> int:
        """What is there before a step, and after it, on a device that has the whole model."""
        return self.state.total - self.state.gradients + self.fixed

    @property
    def total(self) -> int:
        """What a step of this one micro-batch needs, on a device of its own."""
        return self.held + self.batch + max(self.peak, self.state.gradients)


class AliveBytes(TorchDispatchMode):
    """Adds up the bytes of all tensors made while it is on, and lets go of those that are freed.

    Attributes:
        alive: Bytes now.
        gradients: Of these, of finished gradients of parameters.
        inside: Of these, made inside a layer.
        peak: The most there were.
        peak_activations: The most there were without finished gradients.
        depth: Layers that are being run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.gradients = self.inside = self.peak = self.peak_activations = 0
        self.depth = 0
        self._sizes: dict[int, int] = {}
        self._finished: set[int] = set()
        self._inside: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count what it makes."""
        result = SHAPES.get(func, func)(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._count(value)
        return result

    def leave_out(self, tensor: Tensor) -> None:
        """Count nothing of a tensor that was there before."""
        self._sizes[tensor.untyped_storage()._cdata] = 0

    def finish(self, parameter: nn.Parameter) -> None:
        """Count a parameter's gradient among those that are finished."""
        gradient = parameter.grad
        key = None if gradient is None else gradient.untyped_storage()._cdata
        if key is not None and key in self._sizes and key not in self._finished:
            self._finished.add(key)
            self.gradients += self._sizes[key]

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        size = self._sizes[key] = storage.nbytes()
        self.alive += size
        if self.depth:
            self._inside.add(key)
            self.inside += size
        self.peak = max(self.peak, self.alive)
        self.peak_activations = max(self.peak_activations, self.alive - self.gradients)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        size = self._sizes.pop(key)
        self.alive -= size
        if key in self._inside:
            self._inside.remove(key)
            self.inside -= size
        if key in self._finished:
            self._finished.remove(key)
            self.gradients -= size


def as_on_gpu(model: nn.Module) -> None:
    """Let a model on the CPU take what it takes on a GPU.

    There autocast computes LayerNorm in fp32, and attention with dropout needs no matrix of length
    by length.
    """

    def widen(module: nn.Module, given: tuple[Tensor]) -> Tensor | None:
        return given[0].float() if torch.is_autocast_enabled("cpu") else None

    def narrow(module: nn.Module, given: tuple[Tensor], found: Tensor) -> Tensor | None:
        return found.bfloat16() if torch.is_autocast_enabled("cpu") else None

    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_pre_hook(widen)
            module.register_forward_hook(narrow)
        if isinstance(module, DotProductAttention):
            module.dropout = 0.0


def trace_step(task: Task, piece: Any, config: TrainingConfig, gpu: bool) -> StepMemory:
    """Return what a micro-batch needs, forward and backward.

    Args:
        task: Whose model is built; its companion, if it has one, on the CPU.
        piece: The micro-batch.
        config: Says precision, optimizer and average.
        gpu: Whether operations take what they take on a GPU, or on this CPU.

    Raises:
        ValueError: If the task's loss looks at values, which are not there.
    """
    fake, alive = FakeTensorMode(allow_non_fake_inputs=True), AliveBytes()
    with ExitStack() as stack:
        stack.enter_context(fake)
        model = task.build_model().train()
        if gpu:
            as_on_gpu(model)
        frozen = [p for p in model.parameters() if not p.requires_grad]
        companion = task.companion()
        beside = [] if companion is None else [*companion.parameters(), *companion.buffers()]
        fixed = [*frozen, *model.buffers(), *(fake.from_tensor(each) for each in beside)]
        piece = map_tensors(piece, fake.from_tensor)
        given = list(named_tensors(piece).values())
        for tensor in (*model.parameters(), *fixed, *given):
            alive.leave_out(tensor)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(alive.finish)
        layers = mark_layers(model, alive)
        try:
            with alive:
                inside, around = run(task, model, piece, config, alive)
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            raise ValueError(f"{type(task).__name__} can't be planned: {why}") from error
        return StepMemory(
            state=state_bytes(model, config),
            fixed=tensor_bytes(*fixed),
            batch=tensor_bytes(*given),
            layers=inside,
            around=around,
            peak=alive.peak,
            peak_activations=alive.peak_activations,
            largest_layer=max((tensor_bytes(*layer.parameters()) for layer in layers), default=0),
            outside_layers=tensor_bytes(*outside(model, layers)),
        )


def run(
    task: Task, model: nn.Module, piece: Any, config: TrainingConfig, alive: AliveBytes
) -> tuple[int, int]:
    """Take a micro-batch; return what was kept for its backward pass, in layers and around them."""
    with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"):
        loss = task.loss(model, piece)
    inside = alive.inside
    around = alive.alive - alive.gradients - inside
    loss.total.backward()
    return inside, around


def outside(model: nn.Module, layers: list[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters that are in none of the layers."""
    inside = {id(parameter) for layer in layers for parameter in layer.parameters()}
    return [parameter for parameter in model.parameters() if id(parameter) not in inside]


def mark_layers(model: nn.Module, alive: AliveBytes) -> list[nn.Module]:
    """Let it be counted what is made inside a stack's layers; return the layers.

    The layers are those that ranks shard one by one (`magneto.training.distributed.shard_model`).
    """

    def enter(*_: Any) -> None:
        alive.depth += 1

    def leave(*_: Any) -> None:
        alive.depth -= 1

    layers = [layer for m in model.modules() if isinstance(m, nn.ModuleList) for layer in m]
    for layer in layers:
        layer.register_forward_pre_hook(enter)
        layer.register_forward_hook(leave)
    return layers
