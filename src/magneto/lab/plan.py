"""What a training takes, before its data is read: memory, operations, and options that fit.

The product's own step runs under torch's FakeTensorMode, where every tensor has a device, a shape
and a type and no memory, and a dispatch mode adds up the bytes of what is alive; what is inside a
kernel (a library's scratch memory) is not seen. What many GPUs hold is arithmetic.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_iter

from magneto.config import override
from magneto.data.stream import map_tensors, named_tensors
from magneto.nn.attention import DotProductAttention
from magneto.progress import SILENT, Progress
from magneto.recipe import Recipe, build_recipe
from magneto.training.config import TrainingConfig
from magneto.training.distributed import pick_device, single_process
from magneto.training.model import (
    CountedOperations,
    FillRecorder,
    StateBytes,
    check_memory,
    check_model_memory,
    state_bytes,
    tensor_bytes,
)
from magneto.training.task import Task, place_companion, strategy_error

RECOMPUTE = "model.checkpoint_activations"
# Share of a GPU's memory that is left to libraries, gaps and exchange: an assumption.
RESERVE = 0.08
# Tokenizers that are learnt from data.
LEARNT = ("auto", "bpe", "sentencepiece", "characters")
# Where nothing says how many there are: classes of texts, and answers (VQA v2's).
CLASSES, ANSWERS = 2, 3129
# Where images tell the size: the largest that is derived has so many patches a side, of so many
# pixels each.
PATCHES = 8


def without_data(recipe: Recipe) -> dict[str, Any]:
    """Return fields with which a recipe's model, its largest batch and its loss need no data.

    What only data tells is taken from the configuration, or assumed: a learnt tokenizer has all
    the tokens that it may have, and a tokenizer of images is small.
    """
    model, data, found = recipe.model, recipe.data, dict[str, Any]()
    if hasattr(data, "tokenizer"):
        begun = data.tokenizer == "auto" and getattr(model, "pretrained", None)
        if model.vocab_size is None and data.tokenizer in LEARNT and not begun:
            found["model.vocab_size"] = data.vocab_size
        if found or model.vocab_size is not None:
            found["data.tokenizer"] = "bytes"  # its numbers are not looked at
    if hasattr(data, "labels") and not data.labels and not data.regression:
        found["data.labels"] = [str(number) for number in range(model.classes or CLASSES)]
    if hasattr(data, "mask_column") and getattr(model, "classes", 0) is None:
        found["model.classes"] = len(data.classes or range(CLASSES))
    if hasattr(model, "image_size"):
        size = model.image_size or PATCHES * (model.patch_size or PATCHES)
        patch = model.patch_size or (size // PATCHES if size % PATCHES == 0 else size)
        sizes = {"image_size": size, "patch_size": patch, "channels": model.channels or 3}
        found |= {f"model.{name}": sizes[name] for name in sizes if getattr(model, name) is None}
    if hasattr(model, "answers") and data.answers is None:
        found["model.answers"] = model.answers or ANSWERS
    if hasattr(data, "image_tokenizer"):
        found["data.image_tokenizer"] = "builtin:noise"
    return found


def check_weights_first(recipe: Recipe) -> None:
    """See that one process can hold what a model's weights take, before its data is read.

    Of a task of one's own data may tell the sizes: they are seen once there is data
    (`magneto.training.model.check_memory`).

    Raises:
        ValueError: If it can't; says what to lower.
    """
    if ":" in recipe.task:
        return
    plain = build_recipe(recipe.name, override(recipe.to_mapping(), without_data(recipe)))
    with torch.device("meta"), FillRecorder():
        model = plain.build_task().build_model()
    check_model_memory(model, recipe.training, single_process(pick_device(recipe.training.device)))


def prepare_task(recipe: Recipe, progress: Progress = SILENT) -> Task:
    """Return a recipe's task with its data, where one process can hold its training.

    Raises:
        ValueError: If the memory is too small, which may be known before the data is read; or the
            data is not as it should be.
    """
    check_weights_first(recipe)
    task = recipe.build_task()
    task.prepare(progress)
    world = single_process(pick_device(recipe.training.device))
    check_memory(task, recipe.training, world, recipe.seed)
    return task


@dataclass(frozen=True)
class StepMemory:
    """What one micro-batch needs, forward and backward, in bytes.

    Attributes:
        state: What the weights take, whatever the batch.
        beside: The micro-batch, weights that are not trained, buffers, and the loss's companion.
        kept: What the forward pass keeps for the backward pass.
        peak: The most alive at once beside weights, gradients included.
        peak_activations: The most alive at once, neither weights nor gradients.
        largest_layer: Weights of the largest layer, which sharded ranks gather as a whole.
        outside_layers: Weights outside the layers.
        flops: Floating-point operations of both passes.
    """

    state: StateBytes
    beside: int
    kept: int
    peak: int
    peak_activations: int
    largest_layer: int
    outside_layers: int
    flops: float

    def needed(self, strategy: str, shards: int = 1, accumulation: int = 1) -> float:
        """Return the most bytes that a GPU needs in a step.

        With more than one micro-batch of a step gradients are there from the second on; sharded
        ones are exchanged after the last, and until then each GPU has all.

        Args:
            strategy: "none", "ddp", "hybrid" or "fsdp".
            shards: Among how many GPUs each weight is cut.
            accumulation: Micro-batches of a step.
        """
        state, whole = self.state, self.state.gradients if accumulation > 1 else 0
        if strategy in ("none", "ddp"):
            # DDP exchanges copies of the gradients, which it keeps.
            copies = state.gradients if strategy == "ddp" else 0
            peak = self.peak_activations + whole if whole else self.peak
            return state.total + self.beside + copies + max(peak - state.gradients, 0)
        # Around the layers weights stay gathered; of layers there is the one at work, and the next.
        # Their whole gradients, and the copy of these that is on its way, take as much again.
        gathered = 2 * (self.outside_layers + 2 * self.largest_layer)
        return state.total / shards + self.beside + self.peak_activations + gathered + whole


class AliveBytes(CountedOperations):
    """Adds up the bytes of all tensors made while it is on, and lets go of those that are freed.

    Attributes:
        alive: Bytes now.
        gradients: Of these, of finished gradients of parameters.
        peak: The most there were.
        peak_activations: The most there were without finished gradients.
    """

    def __init__(self, there: Iterable[Tensor]) -> None:
        """Take the tensors that are there before, of which nothing is counted."""
        super().__init__()
        self.alive = self.gradients = self.peak = self.peak_activations = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in there}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count what it makes."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        for tensor in filter(torch.is_tensor, tree_iter(result)):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                self._known.add(storage._cdata)
                self.alive += storage.nbytes()
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.alive)
        self.peak_activations = max(self.peak_activations, self.alive - self.gradients)
        return result

    def _free(self, key: int, size: int) -> None:
        self._known.remove(key)
        self.alive -= size

    def finish(self, parameter: nn.Parameter) -> None:
        """Count a parameter's gradient among those that are finished."""
        assert parameter.grad is not None
        self.gradients += parameter.grad.untyped_storage().nbytes()


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


def trace_step(task: Task, piece: Any, config: TrainingConfig) -> StepMemory:
    """Return what a micro-batch needs on a GPU, forward and backward.

    Args:
        task: Whose model is built; its companion, if it has one, on the CPU.
        piece: The micro-batch.
        config: Says precision, optimizer and average.

    Raises:
        ValueError: If the task's loss looks at values, which are not there.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = task.build_model().train()
        as_on_gpu(model)
        companion = task.companion()
        beside = [] if companion is None else [*companion.parameters(), *companion.buffers()]
        frozen = [p for p in model.parameters() if not p.requires_grad]
        piece = map_tensors(piece, fake.from_tensor)
        beside = [*frozen, *model.buffers(), *(fake.from_tensor(each) for each in beside),
                  *named_tensors(piece).values()]  # fmt: skip
        alive = AliveBytes([*model.parameters(), *beside])
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
        beside=tensor_bytes(*beside),
        kept=kept,
        peak=alive.peak,
        peak_activations=alive.peak_activations,
        largest_layer=max((tensor_bytes(*layer.parameters()) for layer in layers), default=0),
        outside_layers=tensor_bytes(*(p for p in model.parameters() if id(p) not in inside)),
        flops=alive.total,
    )


@dataclass(frozen=True)
class Way:
    """One way to spread a training, and what it takes.

    Attributes:
        strategy: "none", "ddp", "hybrid" or "fsdp".
        recompute: Whether layers are recomputed.
        accumulation: Micro-batches of a step.
        needed: Bytes of a GPU.
        fits: Whether they are there.
        largest: Examples of the largest micro-batch that fits; 0 if none does.
    """

    strategy: str
    recompute: bool
    accumulation: int
    needed: float
    fits: bool
    largest: int

    def options(self) -> str:
        """Return the options to type."""
        words = [] if self.strategy == "none" else [f"--distributed {self.strategy}"]
        words += [f"--{RECOMPUTE} {str(self.recompute).lower()}",
                  f"--training.gradient_accumulation_steps {self.accumulation}"]  # fmt: skip
        return " ".join(words)


@dataclass(frozen=True)
class Plan:
    """A recipe on a cluster: its micro-batches traced, and the ways to spread its training.

    Attributes:
        task: The recipe's.
        config: Its training.
        gpus: How many.
        per_node: How many of them in a machine.
        memory: Bytes of each.
        traced: By whether layers are recomputed, what the recipe's micro-batch needs and what one
            of twice the examples: between them, and beyond, memory is a straight line.
    """

    task: Task
    config: TrainingConfig
    gpus: int
    per_node: int
    memory: float
    traced: Mapping[bool, tuple[StepMemory, StepMemory]]

    def strategies(self) -> dict[str, int]:
        """Return how the GPUs can share a training, and among how many each weight is then cut.

        Ways that the task refuses are left out.
        """
        if self.gpus == 1:
            return {"none": 1}
        hybrid = {"hybrid": self.per_node} if self.gpus > self.per_node else {}
        shards = {"ddp": 1, **hybrid, "fsdp": self.gpus}
        return {
            name: count for name, count in shards.items() if not strategy_error(self.task, name)
        }

    def way(self, strategy: str, recompute: bool, accumulation: int | None = None) -> Way:
        """Return what one way takes; the number of micro-batches is by default the recipe's."""
        config, usable = self.config, self.memory * (1 - RESERVE)
        parts, shards = accumulation or config.gradient_accumulation_steps, self.strategies()
        low, high = (step.needed(strategy, shards[strategy], parts)
                     for step in self.traced[recompute])  # fmt: skip
        traced, wanted = (micro_batch(config, self.gpus, count)
                          for count in (config.gradient_accumulation_steps, parts))  # fmt: skip
        one = (high - low) / traced
        needed, none = low + (wanted - traced) * one, low - traced * one
        largest = max(0, math.floor((usable - none) / max(one, 1.0)))
        return Way(strategy, recompute, parts, needed, needed <= usable, largest)

    def ways(self) -> list[Way]:
        """Return what each way takes, with the recipe's number of micro-batches."""
        return [self.way(strategy, recompute)
                for recompute in sorted(self.traced) for strategy in self.strategies()]  # fmt: skip

    def advise(self) -> Way | None:
        """Return the way to choose: the first that fits, the cheapest first; None if none fits.

        Recomputation costs about a third more operations, so all strategies are tried without it
        before any with it. Of strategies "ddp" sends least, "hybrid" keeps the gathering within
        nodes, "fsdp" needs the least memory. Of numbers of micro-batches the smallest is taken.
        """
        most = max(1, self.config.batch_size // self.gpus)
        cuts = sorted({*(1 << power for power in range(most.bit_length())), most})
        found = (
            self.way(strategy, recompute, parts)
            for recompute in sorted(self.traced)
            for strategy in self.strategies()
            for parts in cuts
        )
        return next((way for way in found if way.fits), None)


def micro_batch(config: TrainingConfig, gpus: int, accumulation: int) -> int:
    """Return the examples of a GPU's largest micro-batch."""
    return max(1, -(-config.batch_size // (gpus * accumulation)))


def trace_recipe(
    build: Callable[[Mapping[str, Any]], Recipe], micro: int
) -> dict[bool, tuple[StepMemory, StepMemory]]:
    """Trace a recipe's micro-batches without data, see `Plan.traced`.

    Args:
        build: From dotted fields to the recipe with these.
        micro: Examples of the smaller micro-batch.
    """
    plain, traced = build({}), {}
    fields = without_data(plain)
    can_recompute = "checkpoint_activations" in plain.to_mapping()["model"]
    for recompute in (False, True) if can_recompute else (False,):
        task = build({**fields, **({RECOMPUTE: recompute} if can_recompute else {})}).build_task()
        pieces = [task.dummy_batch(examples) for examples in (micro, 2 * micro)]
        place_companion(task, torch.device("cpu"))
        small, large = (trace_step(task, piece, plain.training) for piece in pieces)
        traced[recompute] = small, large
    return traced
