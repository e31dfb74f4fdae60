"""A training's plan: what each way of spreading it needs, how long it takes, what to choose.

It is also what is said where a training runs out of memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from magneto.config import ConfigError
from magneto.lab.plan.sharding import Cluster, bytes_needed, bytes_sent
from magneto.lab.plan.trace import StepMemory, trace_step
from magneto.mistakes import OutOfMemory, is_out_of_memory, what_happened
from magneto.recipe import Recipe
from magneto.training.config import TrainingConfig
from magneto.training.distributed import pick_device
from magneto.training.memory import gigabytes, memory_of
from magneto.training.task import Task, place_companion, why_not
from magneto.training.throughput import count_flops

RECOMPUTE = "model.checkpoint_activations"
# Tokenizers that are learnt from data.
LEARNT = ("auto", "bpe", "sentencepiece", "characters")
# Where nothing says how many there are: classes of texts, and answers (VQA v2's).
CLASSES, ANSWERS = 2, 3129
# Share of a GPU's memory that is left to libraries, to the allocator's gaps and to exchange. It is
# an assumption.
RESERVE = 0.08
# Of what a step needs by the plan and did not get: what is proposed needs less than this share.
LESS = 0.9


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
        ends = [bytes_needed(s, strategy, cluster, accumulation) for s in (self.small, self.large)]
        return ends[0] + (ends[1] - ends[0]) * (micro - self.examples) / self.examples

    def largest(self, strategy: str, cluster: Cluster, accumulation: int) -> int:
        """Return the largest micro-batch that fits in a GPU's memory; 0 if none does."""
        there = usable(cluster)
        ends = [self.needed(strategy, cluster, n, accumulation) for n in (0, 1)]
        each = max(ends[1] - ends[0], 1.0)
        return max(0, math.floor((there - ends[0]) / each))


def usable(cluster: Cluster) -> float:
    """Return the bytes of a GPU that a plan fills."""
    return cluster.memory * (1 - RESERVE)


def trace_both(
    build: Callable[[Mapping[str, Any]], Recipe],
    micro: int,
    gpu: bool,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[bool, Steps]:
    """Trace a recipe's micro-batches with layers recomputed, and without.

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
        try:
            recipe = build({RECOMPUTE: again})
            recipe = build({RECOMPUTE: again, **without_data(recipe)})
        except ConfigError:
            if again:
                break
            recipe = build({})
            recipe = build(without_data(recipe))
        progress("following a step" + (", layers recomputed" if again else ""))
        task, config = recipe.build_task(), recipe.training
        pieces = [task.dummy_batch(examples) for examples in (micro, 2 * micro)]
        place_companion(task, torch.device("cpu"))
        small, large = (trace_step(task, piece, config, gpu) for piece in pieces)
        found[again] = Steps(
            micro, small, large, count_flops(task, pieces[0], config.precision)[0] / micro
        )
    return found


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
    if hasattr(data, "labels") and not data.labels and not data.number:
        found["data.labels"] = [str(number) for number in range(model.classes or CLASSES)]
    if hasattr(model, "answers") and data.answers is None:
        found["model.answers"] = model.answers or ANSWERS
    if hasattr(data, "image_tokenizer"):
        found["data.image_tokenizer"] = "builtin:noise"
    return found


def micro_batch(config: TrainingConfig, cluster: Cluster) -> int:
    """Return the examples of a GPU's largest micro-batch, by the recipe's own settings."""
    parts = cluster.gpus * config.gradient_accumulation_steps
    return max(1, -(-config.batch_size // parts))


@dataclass(frozen=True)
class Way:
    """One way to spread a training, and what it takes.

    Attributes:
        strategy: "none", "ddp", "hybrid" or "fsdp".
        recompute: Whether layers are recomputed.
        accumulation: Micro-batches of a step.
        micro: Examples of one.
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
    micro: int
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
    micro = micro_batch(config, cluster)
    needed = steps.needed(strategy, cluster, micro, parts)
    sent = bytes_sent(steps.small, strategy, cluster, parts)
    return Way(
        strategy=strategy,
        recompute=recompute,
        accumulation=parts,
        micro=micro,
        needed=needed,
        fits=needed <= usable(cluster),
        largest=steps.largest(strategy, cluster, parts),
        within=sent.within,
        between=sent.between,
        refused=why_not(task, strategy),
    )


def advise(
    task: Task, traced: Mapping[bool, Steps], config: TrainingConfig, cluster: Cluster
) -> Way | None:
    """Return the way to choose: the first that fits, the cheapest first; None if none fits.

    Recomputation costs about a third more operations, so all strategies are tried without it
    before any with it. Of strategies "ddp" sends least, "hybrid" keeps the gathering within nodes,
    "fsdp" needs the least memory. Of numbers of micro-batches the smallest is taken.
    """
    most = max(1, config.batch_size // cluster.gpus)
    for recompute in sorted(traced):
        for strategy in cluster.strategies():
            if why_not(task, strategy):
                continue
            for parts in cuts(most):
                tried = replace(config, gradient_accumulation_steps=parts)
                found = way(task, traced, tried, cluster, strategy, recompute)
                if found.fits:
                    return found
    return None


def cuts(most: int) -> list[int]:
    """Return the numbers of micro-batches to try: powers of two, and the most there can be."""
    powers = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return sorted({*powers, most})


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
    device = pick_device(recipe.training.device)
    there = float(memory_of(device) or 0)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    cluster = Cluster(ranks, int(os.environ.get("LOCAL_WORLD_SIZE", ranks)), there)
    task, config = recipe.build_task(), recipe.training
    traced = trace_both(build, micro_batch(config, cluster), device.type == "cuda")
    strategy = (
        config.distributed
        if config.distributed in ("ddp", "hybrid", "fsdp")
        else (cluster.strategies()[0])
    )
    again = recomputed(recipe) and True in traced
    now = way(task, traced, config, cluster, strategy, again)
    limit = min(usable(cluster), LESS * now.needed)
    smaller = Cluster(cluster.gpus, cluster.per_node, limit * there / usable(cluster))
    found = advise(task, traced, config, smaller)
    lines = [f"by the plan a step needs {gigabytes(now.needed)}, of which "
             f"{gigabytes(traced[again].small.state.total)} whatever the batch; {device.type} has "
             f"{gigabytes(there)} in all"]  # fmt: skip
    if found is None:
        return [*lines, "no way to cut or recompute needs enough less: make the model or the "
                "length smaller"]  # fmt: skip
    return [*lines, f"add {found.options()}, which needs {gigabytes(found.needed)}"]


def recomputed(recipe: Recipe) -> bool:
    """Return whether a recipe's layers are recomputed; not where its model has no such field."""
    return bool(recipe.to_mapping()["model"].get("checkpoint_activations"))
