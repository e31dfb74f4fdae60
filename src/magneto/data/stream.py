"""Training batches, computed from the number of the step.

A plan is a function that returns the examples of a step's global batch. A plan depends on the seed
and the step alone, so a checkpoint saves no state of the data. The examples of a step are the same
for any number of ranks, micro-batches and worker processes.

Each use of an example gets a new number, `draw`. Random augmentation depends on the seed, on the
example's number and on `draw`.

Plans of numbered examples return an array with a row (draw, number) for each example. Functions
that make a batch from such rows take the columns in the other order, `make(numbers, draws)`.

A batch consists of nested dicts, lists, tuples and dataclasses of tensors.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.config import error_line
from magneto.data.problems import join_words

Plan = Callable[[int], Any]
"""Function that returns the examples of a step's global batch. Steps count from 0.

The result is a sliceable sequence, or a dict of such sequences by name."""

# Batches that are sorted by length together. More of them mean less padding and less shuffling.
POOL = 50
# Seed of validation (order, hidden tokens), the same in all runs so that scores are comparable.
EVALUATION_SEED = 0


def describe_numbers(examples: np.ndarray) -> str:
    return f"examples {join_words(examples[:, 1].tolist())}"


@dataclass(frozen=True)
class BatchStream:
    """Global batches, divided into pieces for ranks and micro-batches.

    Attributes:
        plan: Function that returns the examples of a step's global batch.
        make: Function that makes the batch of a rank or micro-batch from its examples.
        describe: Function that returns the names of examples for messages.
    """

    plan: Plan
    make: Callable[[Any], Any]
    describe: Callable[[Any], str] = describe_numbers

    @property
    def examples(self) -> int | None:
        """Examples per epoch, or None if the plan has no epochs."""
        return self.plan.count if isinstance(self.plan, EpochPlan) else None

    def pieces(self, step: int, parts: int, wanted: Sequence[int]) -> list[Any]:
        """Divide a step's examples into `parts` pieces of nearly equal size.

        Only the pieces with the numbers `wanted` are returned.
        """
        examples = self.plan(step)
        return [cut(examples, number, parts) for number in wanted]

    def batch(self, step: int, parts: int = 1, wanted: Sequence[int] = (0,)) -> list[Any]:
        return [self.make(piece) for piece in self.pieces(step, parts, wanted)]

    def batches(self, parts: int = 1, wanted: Sequence[int] = (0,)) -> Iterator[list[Any]]:
        """Return an endless iterator over steps from step 0.

        For each step, the iterator yields a list of batches, one for each piece in `wanted`.
        """
        return (self.batch(step, parts, wanted) for step in itertools.count())

    def names(self, step: int, parts: int, wanted: Sequence[int]) -> str:
        return "; ".join(self.describe(piece) for piece in self.pieces(step, parts, wanted))


def cut(examples: Any, number: int, parts: int) -> Any:
    """Divide examples into `parts` pieces, and return piece `number`.

    Each value of a dict is divided separately.

    Raises:
        ValueError: If a value of the dict has fewer examples than `parts`.
    """
    if not isinstance(examples, dict):
        size = len(examples)
        return examples[piece_start(number, size, parts) : piece_start(number + 1, size, parts)]
    name, least = min(((key, len(own)) for key, own in examples.items()), key=lambda item: item[1])
    if least < parts:
        raise ValueError(f"a batch of {least} {name} cannot be split into {parts} pieces (ranks x "
                         "training.gradient_accumulation_steps): raise training.batch_size or "
                         "data.batch_shares")  # fmt: skip
    return {key: cut(own, number, parts) for key, own in examples.items()}


def piece_start(number: int, size: int, parts: int) -> int:
    return number * (size // parts) + min(number, size % parts)


def make_batch(make: Callable[[Any], Any], examples: Any, name: Callable[[Any], str]) -> Any:
    """Return `make(examples)`.

    Raises:
        ValueError: If `make` fails. The message names the first example with which `make` fails. If
            `make` succeeds with each single example, the message names the first and the last
            example.
    """
    try:
        return make(examples)
    except Exception as error:
        for place, example in enumerate(examples):
            try:
                make(examples[place : place + 1])
            except Exception as its:
                raise ValueError(f"{name(example)}: {error_line(its)}") from its
        where = f"{name(examples[0])} to {name(examples[-1])}" if len(examples) else "no examples"
        raise ValueError(f"{where}, together: {error_line(error)}") from error


def example_stream(plan: Plan, make: Callable[[np.ndarray, np.ndarray], Any]) -> BatchStream:
    """Return a stream that makes batches by `make(numbers, draws)`.

    `plan` returns an array with a row (draw, number) for each example.
    """

    def make_from_rows(rows: np.ndarray) -> Any:
        draws, numbers = np.ascontiguousarray(rows.T)
        return make(numbers, draws)

    return BatchStream(plan, lambda rows: make_batch(make_from_rows, rows, "example {0[1]}".format))


def epoch_order(count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(count)


def shuffled(count: int, batch_size: int, seed: int, repeats: int = 1) -> Plan:
    """Return a plan that shuffles the examples in each epoch.

    The plan returns an array with a row (draw, number) for each example. An epoch has
    `repeats` copies of each example that it reads ("repeated augmentation", arXiv 1901.09335),
    usually in the same global batch. An epoch has `count` rows, copies included. With two copies,
    an epoch therefore reads only half of the data set. In an epoch, copy number i of an example has
    the draw `epoch * repeats + i`.
    """

    def order(epoch: int) -> np.ndarray:
        numbers = epoch_order(count, seed, epoch)
        if repeats == 1:
            return with_draw(numbers, epoch)
        places = np.arange(count)
        copies, batches = places % repeats, (epoch * count + places) // batch_size
        rows = np.stack([epoch * repeats + copies, numbers.repeat(repeats)[:count]], axis=1)
        # Copies of an image are not neighbours in a batch, unless an epoch has few rows there:
        # mixing neighbours would mix the copies.
        return rows[np.lexsort((copies, batches))]

    return EpochPlan(lru_cache(maxsize=2)(order), count, batch_size)


def by_length(lengths: np.ndarray, batch_size: int, seed: int) -> Plan:
    """Return a plan whose batches have examples of similar length.

    The plan returns an array with a row (draw, number) for each example. Every example comes once
    per epoch, and its draw is the number of the epoch. The shuffled examples are divided into pools
    of `POOL` batches. Each pool is sorted by length and divided into batches. Finally, all full
    batches of the epoch are shuffled.
    """
    count = len(lengths)

    def cut_pool(pool: np.ndarray) -> list[np.ndarray]:
        over = len(pool) % batch_size  # not sorted: a smaller batch has random lengths
        by_size = pool[over:][np.argsort(lengths[pool[over:]], kind="stable")]
        pieces = [by_size[i : i + batch_size] for i in range(0, len(by_size), batch_size)]
        return [*pieces, pool[:over]] if over else pieces

    def order(epoch: int) -> np.ndarray:
        numbers = epoch_order(count, seed, epoch)
        lead = -epoch * count % batch_size
        first, rest = numbers[:lead], numbers[lead:]
        size = POOL * batch_size
        batches = [b for start in range(0, len(rest), size) for b in cut_pool(rest[start:][:size])]
        full = [batch for batch in batches if len(batch) == batch_size]
        last = [batch for batch in batches if len(batch) < batch_size]
        places = np.random.default_rng([seed, epoch, 1]).permutation(len(full))
        return with_draw(np.concatenate([first, *(full[place] for place in places), *last]), epoch)

    return EpochPlan(lru_cache(maxsize=2)(order), count, batch_size)


def with_draw(numbers: np.ndarray, draw: int) -> np.ndarray:
    """Return the rows (draw, number) of examples that have the same draw."""
    return np.stack([np.full_like(numbers, draw), numbers], axis=1)


@dataclass(frozen=True)
class EpochPlan:
    """Plan for data with epochs. `order(epoch)` returns the order of the `count` examples."""

    order: Callable[[int], np.ndarray]
    count: int
    batch_size: int

    def __call__(self, step: int) -> np.ndarray:
        return self.rows(step * self.batch_size, (step + 1) * self.batch_size)

    def rows(self, start: int, stop: int) -> np.ndarray:
        found = []
        while start < stop or not found:
            epoch, offset = divmod(start, self.count)
            found.append(self.order(epoch)[offset : offset + stop - start])
            start += len(found[-1])
        return np.concatenate(found)


def in_blocks(
    block: Callable[[int], Sequence[Any]],
    batch_size: int,
    size: Callable[[int], int | None] = lambda number: None,
) -> Plan:
    """Return a plan that takes examples block by block. Blocks may differ in size.

    `block(number)` returns the examples of a block. `size(number)` returns the size of a block, or
    None if the size is unknown before the block is made. To find the examples of a step, the plan
    needs the sizes of all earlier blocks. Each size is computed only once.
    """
    block = lru_cache(maxsize=2)(block)
    ends = [0]

    def plan(step: int) -> list[Any]:
        place, stop, examples = step * batch_size, (step + 1) * batch_size, []
        while ends[-1] < stop:
            number = len(ends) - 1
            known = size(number)
            ends.append(ends[-1] + (len(block(number)) if known is None else known))
        while place < stop:
            number = bisect_right(ends, place) - 1
            first = place - ends[number]
            examples += block(number)[first : first + stop - place]
            place = min(ends[number + 1], stop)
        return examples

    return plan


def sort_by_length(
    lengths: np.ndarray, others: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Return the indices of the examples, sorted by `lengths` and then by `others`.

    The values of `others` ascend for odd lengths and descend for even lengths, so neighbours have
    similar values. Examples with equal values in both arrays are in random order.
    """
    shuffled = random.permutation(len(lengths))
    lengths, others = lengths[shuffled], others[shuffled]
    return shuffled[np.lexsort((np.where(lengths % 2, others, -others), lengths))]


def cut_groups(order: np.ndarray, sizes: np.ndarray, budgets: Sequence[int]) -> list[np.ndarray]:
    """Divide examples into groups, whose padded sizes stay within `budgets`.

    Args:
        order: Indices of the examples, sorted by length.
        sizes: Lengths, (examples, columns), such as the numbers of frames and labels.
        budgets: Limits of a group's padded size, one for each column. `budgets[0]` limits the
            number of examples times the largest length in column 0. `budgets[1]` limits this
            product times the largest length in column 1, and so on. A group of one example may
            exceed the limits.
    """
    sizes = sizes[order]
    groups, start = [], 0
    while start < len(order):
        most = max(budgets[0] // max(int(sizes[start, 0]), 1), 1)
        widest = np.maximum.accumulate(sizes[start : start + most], axis=0)
        padded = np.cumprod(widest, axis=1) * np.arange(1, len(widest) + 1)[:, None]
        stop = start + max(int((padded <= np.asarray(budgets)).all(1).sum()), 1)
        groups.append(order[start:stop])
        start = stop
    return groups


def group_stream(
    block: Callable[[int], Sequence[np.ndarray]],
    batch_size: int,
    make: Callable[[np.ndarray], Any],
    name: Callable[[np.ndarray], str],
) -> BatchStream:
    """Return a stream of batches. A batch is a list of groups, and a group is an array of examples.

    The groups come in blocks, for example one block per epoch. `block(number)` returns the groups
    of one block, and blocks count from 0. `make` makes the tensors of one group. `batch_size`
    counts groups.
    """

    def make_groups(piece: Sequence[np.ndarray]) -> list[Any]:
        return [make_batch(make, group, name) for group in piece]

    def describe(piece: Sequence[np.ndarray]) -> str:
        return join_words([name(example) for group in piece for example in group])

    return BatchStream(in_blocks(block, batch_size), make_groups, describe)


def join_streams(
    streams: Mapping[str, BatchStream], join: Callable[[dict[str, Any]], Any]
) -> BatchStream:
    """Return batches that combine examples of several streams.

    Every stream has a separate order, separate epochs and a share of each batch. `join` merges a
    dict of batches, one from each stream, into one batch.
    """

    def plan(step: int) -> dict[str, Any]:
        return {name: stream.plan(step) for name, stream in streams.items()}

    def make_joined(piece: dict[str, Any]) -> Any:
        return join({name: streams[name].make(examples) for name, examples in piece.items()})

    def describe(piece: dict[str, Any]) -> str:
        return "; ".join(f"{name}: {streams[name].describe(own)}" for name, own in piece.items())

    return BatchStream(plan, make_joined, describe)


def evaluation_order(count: int) -> np.ndarray:
    """Return the numbers 0 to count - 1 in a fixed random order.

    In this order, the first validation batches represent the whole set, even if the set is sorted
    by class.
    """
    return np.random.default_rng(EVALUATION_SEED).permutation(count)


def evaluation_plans(count: int, batch_size: int) -> list[np.ndarray]:
    """Divide the result of `evaluation_order` into batches."""
    order = evaluation_order(count)
    return [order[start : start + batch_size] for start in range(0, count, batch_size)]


class LazyBatches(Sequence[Any]):
    """Sequence of batches that makes a batch on each access.

    Slicing returns another `LazyBatches`, and makes no batch.

    Args:
        plans: Description of each batch, such as an array of row numbers.
        make: Function that makes a batch from a description.
    """

    def __init__(self, plans: Sequence[Any], make: Callable[[Any], Any]) -> None:
        self.plans, self.make = plans, make

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return LazyBatches(self.plans[number], self.make)
        return self.make(self.plans[number])


def map_tensors(batch: Any, function: Callable[[Tensor], Any]) -> Any:
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {key: map_tensors(value, function) for key, value in batch.items()}
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(
            batch, **{key: map_tensors(value, function) for key, value in named_values(batch)}
        )
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, function) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(value, function) for value in batch)
    return batch


def to_device(batch: Any, device: torch.device) -> Any:
    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))


def pinned(batch: Any) -> Any:
    """Copy every tensor to pinned memory, for asynchronous copies to a GPU."""
    return map_tensors(batch, Tensor.pin_memory)


def named_tensors(batch: Any, prefix: str = "batch") -> dict[str, Tensor]:
    """Return the tensors of a batch by name, such as "batch.1.length"."""
    if isinstance(batch, Tensor):
        return {prefix: batch}
    named: dict[str, Tensor] = {}
    for key, value in named_values(batch):
        named |= named_tensors(value, f"{prefix}.{key}")
    return named


def named_values(batch: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(batch, dict):
        yield from ((str(key), value) for key, value in batch.items())
    elif is_dataclass(batch) and not isinstance(batch, type):
        yield from ((field.name, getattr(batch, field.name)) for field in fields(batch))
    elif isinstance(batch, list | tuple):
        yield from ((str(index), value) for index, value in enumerate(batch))
