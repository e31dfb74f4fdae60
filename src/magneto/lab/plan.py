"""Plan of a training run: memory, operations, and options that fit in memory. No data are read.

The training step runs under torch's FakeTensorMode. Fake tensors have a device, a shape and a type,
but no memory. A dispatch mode counts the bytes of live tensors. Scratch memory inside kernels is
not counted. From the counted bytes, Magneto computes the memory of training on several GPUs.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_iter

from magneto.config import override
from magneto.data.stream import map_tensors, named_tensors
from magneto.nn.attention import DotProductAttention
from magneto.recipe import Recipe, build_recipe
from magneto.training.config import TrainingConfig
from magneto.training.model import (
    CountedOperations,
    StateBytes,
    state_bytes,
    tensor_bytes,
)
from magneto.training.task import Task, place_companion, strategy_error

RECOMPUTE = "model.checkpoint_activations"
# Assumed share of a GPU's memory for libraries, fragmentation and communication.
RESERVE = 0.08
# Tokenizers that are trained on the data.
TRAINED_TOKENIZERS = ("auto", "bpe", "sentencepiece", "characters")
# Assumed numbers of classes of texts, of answers to questions (that of VQA v2), and of codes of
# patches (that of BEiT v2). Assumed number of labels of a speech recogniser with characters: 26
# letters, space, apostrophe, end, unknown character and blank.
CLASSES, ANSWERS, CODES, CHARACTERS = 2, 3129, 8192, 31


def without_data(recipe: Recipe) -> dict[str, Any]:
    """Choose values of recipe fields so that model, batch and loss can be built without data.

    Sizes that depend on the data come from the configuration, or are assumed. A tokenizer that
    training would build is assumed to have its maximum number of tokens. Random codes replace those
    of an image tokenizer.
    """
    model, data, found = recipe.model, recipe.data, dict[str, Any]()
    if hasattr(data, "tokenizer"):
        begun = data.tokenizer == "auto" and getattr(model, "pretrained", None)
        if model.vocab_size is None and data.tokenizer in TRAINED_TOKENIZERS and not begun:
            assumed = CHARACTERS if data.tokenizer == "characters" else data.vocab_size
            found["model.vocab_size"] = assumed
        if found or model.vocab_size is not None:
            found["data.tokenizer"] = "bytes"  # token numbers do not matter
    if hasattr(data, "labels") and not data.labels and not data.regression:
        found["data.labels"] = [str(number) for number in range(model.classes or CLASSES)]
    if hasattr(data, "mask_column") and getattr(model, "classes", 0) is None:
        found["model.classes"] = len(data.classes or range(CLASSES))
    if hasattr(model, "derived_sizes"):
        size, patch = model.derived_sizes()
        sizes = {"image_size": size, "patch_size": patch, "channels": model.channels or 3}
        found |= {f"model.{name}": sizes[name] for name in sizes if getattr(model, name) is None}
    if hasattr(model, "longest_text") and model.max_length is None:
        found["model.max_length"] = model.longest_text
    if getattr(data, "max_length", 0) is None:
        found["data.max_length"] = model.max_length
    if hasattr(model, "answers") and data.answers is None:
        found["model.answers"] = model.answers or ANSWERS
    if hasattr(data, "image_tokenizer"):
        found |= {"data.image_tokenizer": "builtin:noise", "model.codes": model.codes or CODES}
    return found


def task_with(recipe: Recipe, fields: Mapping[str, Any]) -> Task:
    return build_recipe(recipe.name, override(recipe.to_mapping(), fields)).build_task()


@dataclass(frozen=True)
class StepMemory:
    """Bytes and operations of the forward and backward pass of one micro-batch."""

    state: StateBytes
    other: int  # micro-batch, frozen weights, buffers, and `Task.companion`
    kept: int  # activations kept for the backward pass
    peak: int  # of all but weights; it includes gradients
    peak_activations: int  # of all but weights and gradients
    largest_layer: int  # weights that sharded ranks gather
    outside_layers: int  # weights
    flops: float

    def needed(self, strategy: str, shards: int = 1, accumulation: int = 1) -> float:
        """Return a GPU's peak memory in bytes during a step of `accumulation` micro-batches.

        With several micro-batches per step, the first micro-batch's gradients stay in memory during
        later micro-batches. Sharded strategies reduce gradients after the last micro-batch. Until
        the last micro-batch ends, each GPU keeps the gradients of all weights.
        """
        state, full = self.state, self.state.gradients if accumulation > 1 else 0
        if strategy in ("none", "ddp"):
            # DDP keeps copies of the gradients for communication.
            copies = state.gradients if strategy == "ddp" else 0
            peak = self.peak_activations + full if full else self.peak
            return state.total + self.other + copies + max(peak - state.gradients, 0)
        # Gathered are the weights outside the layers, and those of the current and the next layer.
        # Their full gradients, with the copy in communication, take the same memory again.
        gathered = 2 * (self.outside_layers + 2 * self.largest_layer)
        return state.total / shards + self.other + self.peak_activations + gathered + full


class AliveBytes(CountedOperations):
    """Counts the bytes of live tensors, now and at the peak. Tensors in `existing` do not count."""

    def __init__(self, existing: Iterable[Tensor]) -> None:
        super().__init__()
        self.alive = self.gradients = self.peak = self.peak_activations = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in existing}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
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
        assert parameter.grad is not None
        self.gradients += parameter.grad.untyped_storage().nbytes()


def as_on_gpu(model: nn.Module, autocast: bool) -> None:
    """Change a model on the CPU so that its forward pass uses as much memory as on a GPU."""
    # On a GPU autocast computes LayerNorm in fp32, and attention stores no length x length matrix.
    for module in model.modules():
        if isinstance(module, nn.LayerNorm) and autocast:
            module.register_forward_pre_hook(lambda _, given: given[0].float())
            module.register_forward_hook(lambda _, given, found: found.bfloat16())
        if isinstance(module, DotProductAttention):
            module.dropout = 0.0


def trace_step(task: Task, piece: Any, config: TrainingConfig) -> StepMemory:
    """Return the memory of the micro-batch `piece` on a GPU.

    If `Task.companion` returns a frozen model, this model must be on the CPU.
    """
    fake, bf16 = FakeTensorMode(allow_non_fake_inputs=True), config.precision == "bf16"
    with fake:
        model = task.build_model().train()
        as_on_gpu(model, bf16)
        companion, piece = task.companion() or nn.Module(), map_tensors(piece, fake.from_tensor)
        frozen = [p for p in model.parameters() if not p.requires_grad]
        beside = map(fake.from_tensor, (*companion.parameters(), *companion.buffers()))
        other = [*frozen, *model.buffers(), *beside, *named_tensors(piece).values()]
        alive = AliveBytes([*model.parameters(), *other])
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(alive.finish)
        try:
            with alive:
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = task.loss(model, piece)
                kept = alive.alive - alive.gradients
                loss.total.backward()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{type(task).__name__} cannot be planned: {reason}; "
                "run `magneto train RECIPE --dry-run` to measure its memory"
            ) from error
    # Ranks shard these layers one by one (`magneto.training.distributed.shard_model`).
    layers = [layer for m in model.modules() if isinstance(m, nn.ModuleList) for layer in m]
    inside = {id(parameter) for layer in layers for parameter in layer.parameters()}
    return StepMemory(
        state=state_bytes(model, config),
        other=tensor_bytes(*other),
        kept=kept,
        peak=alive.peak,
        peak_activations=alive.peak_activations,
        largest_layer=max((tensor_bytes(*layer.parameters()) for layer in layers), default=0),
        outside_layers=tensor_bytes(*(p for p in model.parameters() if id(p) not in inside)),
        flops=alive.total,
    )


# Memory of a micro-batch and of one with twice the examples, by whether activations are recomputed.
Traced = dict[bool, tuple[StepMemory, StepMemory]]


def trace_recipe(recipe: Recipe, micro: int) -> Traced:
    """Trace micro-batches of `micro` and of `2 * micro` examples. No data are read."""
    fields, traced = without_data(recipe), Traced()
    can_recompute = hasattr(recipe.model, "checkpoint_activations")
    for recompute in (False, True) if can_recompute else (False,):
        task = task_with(recipe, fields | ({RECOMPUTE: recompute} if can_recompute else {}))
        pieces = [task.dummy_batch(examples) for examples in (micro, 2 * micro)]
        place_companion(task, torch.device("cpu"))
        small, large = (trace_step(task, piece, recipe.training) for piece in pieces)
        traced[recompute] = small, large
    return traced


def micro_batch(config: TrainingConfig, gpus: int, accumulation: int) -> int:
    """Return the number of examples in the largest micro-batch of a GPU."""
    return max(1, -(-config.batch_size // (gpus * accumulation)))


@dataclass(frozen=True)
class Way:
    """Options that distribute a training run over GPUs, and the memory that they need."""

    strategy: str
    recompute: bool
    accumulation: int  # micro-batches per step
    needed: float  # bytes per GPU
    fits: bool
    largest: int  # examples of the largest micro-batch that fits; 0 if none does

    def options(self) -> str:
        distributed = "" if self.strategy == "none" else f"--distributed {self.strategy} "
        return (f"{distributed}--{RECOMPUTE} {str(self.recompute).lower()} "
                f"--training.gradient_accumulation_steps {self.accumulation}")  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Computes the memory of a training run on `gpus` GPUs with `memory` bytes each."""

    task: Task
    config: TrainingConfig
    gpus: int
    per_node: int
    memory: float
    traced: Traced

    def strategies(self) -> dict[str, int]:
        """For each supported strategy, return the number of GPUs over which a weight is split."""
        if self.gpus == 1:
            return {"none": 1}
        whole_nodes = self.gpus > self.per_node and self.gpus % self.per_node == 0
        hybrid = {"hybrid": self.per_node} if whole_nodes else {}
        shards = {"ddp": 1, **hybrid, "fsdp": self.gpus}
        return {name: n for name, n in shards.items() if not strategy_error(self.task, name)}

    def way(self, strategy: str, recompute: bool, accumulation: int | None = None) -> Way:
        """Return the memory that a run with these options needs.

        `accumulation` defaults to the recipe's value.
        """
        usual, usable = self.config.gradient_accumulation_steps, self.memory * (1 - RESERVE)
        parts, shards = accumulation or usual, self.strategies()[strategy]
        low, high = (step.needed(strategy, shards, parts) for step in self.traced[recompute])
        traced, wanted = (micro_batch(self.config, self.gpus, count) for count in (usual, parts))
        one = (high - low) / traced  # other sizes are extrapolated linearly
        needed, none = low + (wanted - traced) * one, low - traced * one
        largest = max(0, math.floor((usable - none) / max(one, 1.0)))
        return Way(strategy, recompute, parts, needed, needed <= usable, largest)

    def ways(self, accumulations: Sequence[int | None] = (None,)) -> Iterator[Way]:
        """Yield all combinations of options, the cheapest first.

        Combinations with recomputation of activations come last, because recomputation adds about a
        third to the operations. Of the strategies, "ddp" communicates least, "hybrid" gathers
        weights within a node, and "fsdp" needs the least memory.
        """
        for recompute in sorted(self.traced):
            for strategy in self.strategies():
                yield from (self.way(strategy, recompute, parts) for parts in accumulations)

    def advise(self) -> Way | None:
        """Return the cheapest options that fit in memory; None if none fit.

        For each combination of the other options, 1, 2, 4, ... micro-batches per step are tried, up
        to the number of examples per GPU. The result is the first combination that fits in memory.
        """
        most = max(1, self.config.batch_size // self.gpus)
        cuts = sorted({*(1 << power for power in range(most.bit_length())), most})
        return next((way for way in self.ways(cuts) if way.fits), None)
