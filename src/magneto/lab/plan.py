"""What a training takes, before it is begun: memory, exchange between GPUs, operations.

The product's own step runs under torch's FakeTensorMode, where every tensor has a device, a shape
and a type and no memory, and a dispatch mode adds up the bytes of what is alive; what is inside a
kernel (a library's scratch memory) is not seen. What many GPUs hold and send is arithmetic;
docs/concepts/plan.md has a table. Rings are assumed: an all-reduce of n bytes among k GPUs sends
2 n (k - 1) / k from each, a gathering or a scattered sum n (k - 1) / k. Weights and gradients
travel in the weights' own type.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from magneto.config import ConfigError
from magneto.data.stream import map_tensors, named_tensors
from magneto.lab.without_data import without_data
from magneto.mistakes import OutOfMemory, is_out_of_memory, what_happened
from magneto.nn.attention import DotProductAttention
from magneto.recipe import Recipe
from magneto.training.config import TrainingConfig
from magneto.training.distributed import pick_device
from magneto.training.model import (
    META_SHAPES,
    StateBytes,
    count_flops,
    gigabytes,
    memory_of,
    state_bytes,
    tensor_bytes,
)
from magneto.training.task import Task, place_companion, strategy_error

RECOMPUTE = "model.checkpoint_activations"
# Share of a GPU's memory that is left to libraries, gaps and exchange: an assumption.
RESERVE = 0.08
# Of what a step needs by the plan and did not get: what is proposed needs less than this share.
LESS = 0.9


@dataclass(frozen=True)
class Cluster:
    """The GPUs of a training: how many, how many of them in a machine, the bytes of each."""

    gpus: int
    per_node: int
    memory: float

    @property
    def nodes(self) -> int:
        """Machines; the last may not be full."""
        return -(-self.gpus // self.per_node)

    @property
    def usable(self) -> float:
        """Bytes of a GPU that a plan fills."""
        return self.memory * (1 - RESERVE)

    def strategies(self) -> tuple[str, ...]:
        """Return how the GPUs can share a training: nothing to share on one, no nodes on one."""
        if self.gpus == 1:
            return ("none",)
        return ("ddp", "hybrid", "fsdp") if self.nodes > 1 else ("ddp", "fsdp")

    def shards(self, strategy: str) -> int:
        """Return among how many GPUs each weight is cut."""
        return {"fsdp": self.gpus, "hybrid": min(self.per_node, self.gpus)}.get(strategy, 1)


@dataclass(frozen=True)
class StepMemory:
    """Bytes of one micro-batch, forward and backward, by what they are for.

    Attributes:
        state: What the weights take, whatever the batch.
        fixed: Weights that are not trained, buffers, and the companion that the loss asks.
        batch: The tensors of the micro-batch.
        kept: What the forward pass keeps for the backward pass.
        peak: The most alive at once beside weights, gradients included.
        peak_activations: The most alive at once, neither weights nor gradients.
        largest_layer: Weights of the largest layer, which sharded ranks gather as a whole.
        outside_layers: Weights outside the layers.
    """

    state: StateBytes
    fixed: int
    batch: int
    kept: int
    peak: int
    peak_activations: int
    largest_layer: int
    outside_layers: int

    @property
    def held(self) -> int:
        """What is there before a step, and after it, on a device that has the whole model."""
        return self.state.total - self.state.gradients + self.fixed

    def needed(self, strategy: str, cluster: Cluster, accumulation: int = 1) -> float:
        """Return the most bytes that a GPU needs in a step.

        With more than one micro-batch of a step gradients are there from the second on; sharded
        ones are exchanged after the last, and until then each GPU has all.
        """
        state, shards = self.state, cluster.shards(strategy)
        whole = state.gradients if accumulation > 1 else 0
        if shards == 1:
            # DDP exchanges copies of the gradients, which it keeps.
            held = self.held + self.batch + (state.gradients if strategy == "ddp" else 0)
            peak = self.peak_activations + whole if whole else self.peak
            return held + max(peak, state.gradients)
        held = (self.held - self.fixed) / shards + self.fixed + self.batch
        # Around the layers weights stay gathered; of layers there is the one at work, and the next.
        # Their whole gradients, and the copy of these that is on its way, take as much again.
        gathered = 2 * (self.outside_layers + 2 * self.largest_layer)
        return held + state.gradients / shards + self.peak_activations + gathered + whole

    def sent(self, strategy: str, cluster: Cluster, accumulation: int = 1) -> tuple[float, float]:
        """Return the bytes that a GPU sends in a step to those it shares with; to other nodes."""
        state, shards = self.state, cluster.shards(strategy)
        if shards == 1:
            copies = cluster.gpus if strategy == "ddp" else 1
            return 2 * state.gradients * others(copies), 0.0
        # Forward all weights, backward those of the layers once more, for each micro-batch.
        gathered = (2 * state.weights - self.outside_layers) * accumulation
        between = 2 * state.gradients / shards * others(cluster.gpus / shards)
        return (gathered + state.gradients) * others(shards), between


def others(ranks: float) -> float:
    """Return the share that is not one's own among so many."""
    return (ranks - 1) / ranks


class AliveBytes(TorchDispatchMode):
    """Adds up the bytes of all tensors made while it is on, and lets go of those that are freed.

    Attributes:
        alive: Bytes now.
        gradients: Of these, of finished gradients of parameters.
        peak: The most there were.
        peak_activations: The most there were without finished gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.gradients = self.peak = self.peak_activations = 0
        self._sizes: dict[int, int] = {}
        self._finished: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count what it makes."""
        result = META_SHAPES.get(func, func)(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._count(value)
        return result

    def leave_out(self, tensor: Tensor) -> None:
        """Count nothing of a tensor that was there before."""
        self._sizes[tensor.untyped_storage()._cdata] = 0

    def finish(self, parameter: nn.Parameter) -> None:
        """Count a parameter's gradient among those that are finished."""
        key = parameter.grad.untyped_storage()._cdata if parameter.grad is not None else None
        if key is not None and key in self._sizes and key not in self._finished:
            self._finished.add(key)
            self.gradients += self._sizes[key]

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._sizes:
            return
        self._sizes[storage._cdata] = storage.nbytes()
        self.alive += storage.nbytes()
        self.peak = max(self.peak, self.alive)
        self.peak_activations = max(self.peak_activations, self.alive - self.gradients)
        weakref.finalize(storage, self._free, storage._cdata)

    def _free(self, key: int) -> None:
        size = self._sizes.pop(key)
        self.alive -= size
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
    with fake:
        model = task.build_model().train()
        if gpu:
            as_on_gpu(model)
        companion = task.companion()
        beside = [] if companion is None else [*companion.parameters(), *companion.buffers()]
        frozen = [p for p in model.parameters() if not p.requires_grad]
        fixed = [*frozen, *model.buffers(), *(fake.from_tensor(each) for each in beside)]
        piece = map_tensors(piece, fake.from_tensor)
        given = list(named_tensors(piece).values())
        for tensor in (*model.parameters(), *fixed, *given):
            alive.leave_out(tensor)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(alive.finish)
        try:
            with alive:
                with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"):
                    loss = task.loss(model, piece)
                kept = alive.alive - alive.gradients
                loss.total.backward()
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            raise ValueError(f"{type(task).__name__} can't be planned: {why}") from error
    # Those that ranks shard one by one (`magneto.training.distributed.shard_model`).
    layers = [layer for m in model.modules() if isinstance(m, nn.ModuleList) for layer in m]
    inside = {id(parameter) for layer in layers for parameter in layer.parameters()}
    return StepMemory(
        state=state_bytes(model, config),
        fixed=tensor_bytes(*fixed),
        batch=tensor_bytes(*given),
        kept=kept,
        peak=alive.peak,
        peak_activations=alive.peak_activations,
        largest_layer=max((tensor_bytes(*layer.parameters()) for layer in layers), default=0),
        outside_layers=tensor_bytes(*(p for p in model.parameters() if id(p) not in inside)),
    )


@dataclass(frozen=True)
class Steps:
    """Micro-batches of two sizes, traced: between them, and beyond, memory is a straight line.

    Attributes:
        examples: Of the smaller one.
        small: What it needs.
        large: What one of twice the examples needs.
        flops: Floating-point operations of one example, forward and backward.
    """

    examples: int
    small: StepMemory
    large: StepMemory
    flops: float

    def needed(self, strategy: str, cluster: Cluster, micro: int, accumulation: int) -> float:
        """Return the bytes that a GPU needs for micro-batches of so many examples."""
        low, high = (s.needed(strategy, cluster, accumulation) for s in (self.small, self.large))
        return low + (high - low) * (micro - self.examples) / self.examples

    def largest(self, strategy: str, cluster: Cluster, accumulation: int) -> int:
        """Return the largest micro-batch that fits in a GPU's memory; 0 if none does."""
        none, one = (self.needed(strategy, cluster, n, accumulation) for n in (0, 1))
        return max(0, math.floor((cluster.usable - none) / max(one - none, 1.0)))


def trace_both(
    build: Callable[[Mapping[str, Any]], Recipe],
    micro: int,
    gpu: bool,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[bool, Steps]:
    """Trace a recipe's micro-batches, without data, with layers recomputed and without.

    Args:
        build: From dotted fields to the recipe with these.
        micro: Examples of a micro-batch.
        gpu: Whether operations take what they take on a GPU.
        progress: Told what is traced.

    Returns:
        By whether layers are recomputed; only False where the recipe has no such field.
    """
    found = {}
    for again in (False, True):
        changes = {RECOMPUTE: again}
        try:
            recipe = build(changes)
        except ConfigError:
            if again:
                break
            recipe = build(changes := {})
        progress("following a step" + (", layers recomputed" if again else ""))
        recipe = build({**changes, **without_data(recipe)})
        task, config = recipe.build_task(), recipe.training
        pieces = [task.dummy_batch(examples) for examples in (micro, 2 * micro)]
        place_companion(task, torch.device("cpu"))
        small, large = (trace_step(task, piece, config, gpu) for piece in pieces)
        flops, _ = count_flops(task, pieces[0], config.precision)
        found[again] = Steps(micro, small, large, flops / micro)
    return found


def micro_batch(config: TrainingConfig, cluster: Cluster) -> int:
    """Return the examples of a GPU's largest micro-batch, by the recipe's own settings."""
    return max(1, -(-config.batch_size // (cluster.gpus * config.gradient_accumulation_steps)))


@dataclass(frozen=True)
class Way:
    """One way to spread a training, and what it takes.

    Attributes:
        strategy: "none", "ddp", "hybrid" or "fsdp".
        recompute: Whether layers are recomputed.
        accumulation: Micro-batches of a step.
        needed: Bytes of a GPU.
        fits: Whether they are there.
        largest: Examples of the largest micro-batch that fits.
        within: Bytes that a GPU sends in a step to those it shares weights or gradients with.
        between: Bytes that it sends to other nodes beside these.
        refused: Why the task can't be trained so; "" if it can.
    """

    strategy: str
    recompute: bool
    accumulation: int
    needed: float
    fits: bool
    largest: int
    within: float
    between: float
    refused: str

    def options(self) -> str:
        """Return the options to type."""
        words = [] if self.strategy == "none" else [f"--distributed {self.strategy}"]
        words += [f"--{RECOMPUTE} {str(self.recompute).lower()}",
                  f"--training.gradient_accumulation_steps {self.accumulation}"]  # fmt: skip
        return " ".join(words)


def way(
    task: Task,
    traced: Mapping[bool, Steps],
    config: TrainingConfig,
    cluster: Cluster,
    strategy: str,
    recompute: bool,
) -> Way:
    """Return what one way takes, with the accumulation that the configuration says."""
    steps, parts = traced[recompute], config.gradient_accumulation_steps
    needed = steps.needed(strategy, cluster, micro_batch(config, cluster), parts)
    return Way(
        strategy, recompute, parts, needed, needed <= cluster.usable,
        steps.largest(strategy, cluster, parts),
        *steps.small.sent(strategy, cluster, parts), strategy_error(task, strategy),
    )  # fmt: skip


def advise(
    task: Task, traced: Mapping[bool, Steps], config: TrainingConfig, cluster: Cluster
) -> Way | None:
    """Return the way to choose: the first that fits, the cheapest first; None if none fits.

    Recomputation costs about a third more operations, so all strategies are tried without it
    before any with it. Of strategies "ddp" sends least, "hybrid" keeps the gathering within nodes,
    "fsdp" needs the least memory. Of numbers of micro-batches the smallest is taken.
    """
    most = max(1, config.batch_size // cluster.gpus)
    cuts = sorted({*(1 << power for power in range(most.bit_length())), most})
    for recompute in sorted(traced):
        for strategy in cluster.strategies():
            for parts in [] if strategy_error(task, strategy) else cuts:
                tried = replace(config, gradient_accumulation_steps=parts)
                found = way(task, traced, tried, cluster, strategy, recompute)
                if found.fits:
                    return found
    return None


@contextmanager
def advised(build: Callable[[Mapping[str, Any]], Recipe]) -> Iterator[None]:
    """Let a training that runs out of memory say what a step needs, and options that fit.

    Args:
        build: From dotted fields to the recipe with these.

    Raises:
        OutOfMemory: In the place of torch's error, where the recipe can be planned.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        try:
            lines = planned_lines(build)
        except Exception:  # the advice must not hide what happened
            raise error from None
        raise OutOfMemory("\n".join([what_happened(error), *lines])) from error


def planned_lines(build: Callable[[Mapping[str, Any]], Recipe]) -> list[str]:
    """Return what a step needs by the plan, and options by which it needs less."""
    recipe = build({})
    task, config, device = recipe.build_task(), recipe.training, pick_device(recipe.training.device)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    cluster = Cluster(ranks, int(os.environ.get("LOCAL_WORLD_SIZE", ranks)), memory_of(device) or 0)
    traced = trace_both(build, micro_batch(config, cluster), device.type == "cuda")
    known = cluster.strategies()
    strategy = config.distributed if config.distributed in known else known[0]
    again = recomputed(recipe) and True in traced
    now = way(task, traced, config, cluster, strategy, again)
    less = replace(cluster, memory=min(cluster.usable, LESS * now.needed) / (1 - RESERVE))
    found = advise(task, traced, config, less)
    lines = [f"by the plan a step needs {gigabytes(now.needed)}, of which "
             f"{gigabytes(traced[again].small.state.total)} whatever the batch; {device.type} has "
             f"{gigabytes(cluster.memory)} in all"]  # fmt: skip
    if found is None:
        return [*lines, "no way to cut or recompute needs enough less: make the model or the "
                "length smaller"]  # fmt: skip
    return [*lines, f"add {found.options()}, which needs {gigabytes(found.needed)}"]


def recomputed(recipe: Recipe) -> bool:
    """Return whether a recipe's layers are recomputed; not where its model has no such field."""
    return bool(recipe.to_mapping()["model"].get("checkpoint_activations"))
