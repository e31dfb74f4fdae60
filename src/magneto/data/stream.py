"""Batches as functions of the step: which examples they have, and what is made of them.

A plan says which examples the global batch of a step has. It depends on the seed and the step, so
the step is the whole state of the data: ranks, micro-batches, worker processes and a resumed run
find the same examples. What is random in an example is a function of (seed, draw, number).
A batch is nested dicts, lists, tuples and dataclasses of tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.config import error_line
from magneto.data.problems import listed

Plan = Callable[[int], Any]
"""From a step, the first of which is 0, to the examples of its global batch: a sequence that can be
sliced, or a sequence for each of several names."""

# Batches that are sorted by length together: more waste less and shuffle less.
POOL = 50
# Of all that is drawn for validation (order, hidden tokens): one for all runs, so that they answer
# the same questions.
EVALUATION_SEED = 0


def numbers_of(examples: np.ndarray) -> str:
    """Name examples, rows (draw, number), by their numbers."""
    return f"examples {listed(examples[:, 1].tolist())}"


@dataclass(frozen=True)
class BatchStream:
    """Global batches, each cut in pieces for ranks and micro-batches.

    Attributes:
        plan: From a step to the examples of its global batch.
        make: From the examples of a piece to a batch.
        describe: Names examples in messages.
    """

    plan: Plan
    make: Callable[[Any], Any]
    describe: Callable[[Any], str] = numbers_of

    @property
    def examples(self) -> int | None:
        """Examples of an epoch; None where the plan has no epochs: blocks, or several streams."""
        return self.plan.count if isinstance(self.plan, EpochPlan) else None

    def pieces(self, step: int, parts: int, wanted: Sequence[int]) -> list[Any]:
        """Cut a step's examples in near-equal `parts`; return the pieces numbered `wanted`."""
        examples = self.plan(step)
        return [cut(examples, number, parts) for number in wanted]

    def batch(self, step: int, parts: int = 1, wanted: Sequence[int] = (0,)) -> list[Any]:
        """Make the pieces numbered `wanted` of a step's global batch."""
        return [self.make(piece) for piece in self.pieces(step, parts, wanted)]

    def batches(self, parts: int = 1, wanted: Sequence[int] = (0,)) -> Iterator[list[Any]]:
        """Make the wanted pieces of one step after the other, from the first on, without end."""
        step = 0
        while True:
            yield self.batch(step, parts, wanted)
            step += 1

    def names(self, step: int, parts: int, wanted: Sequence[int]) -> str:
        """Say of which examples the pieces of a step are made."""
        return "; ".join(self.describe(piece) for piece in self.pieces(step, parts, wanted))


def cut(examples: Any, number: int, parts: int) -> Any:
    """Return piece `number` of examples that are cut in `parts`; of several names each for itself.

    Raises:
        ValueError: If there are several names, and fewer examples of one of them than pieces.
    """
    if not isinstance(examples, dict):
        size = len(examples)
        return examples[place_of(number, size, parts) : place_of(number + 1, size, parts)]
    name, least = min(((key, len(own)) for key, own in examples.items()), key=lambda item: item[1])
    if least < parts:
        raise ValueError(f"a batch has {least} {name} and is cut in {parts} pieces (ranks times "
                         "training.gradient_accumulation_steps): enlarge training.batch_size, "
                         "or data.batch_shares")  # fmt: skip
    return {key: cut(own, number, parts) for key, own in examples.items()}


def place_of(number: int, size: int, parts: int) -> int:
    """Return where piece `number` begins in `size` examples that are cut in `parts`."""
    return number * (size // parts) + min(number, size % parts)


def make_named(make: Callable[[Any], Any], examples: Any, name: Callable[[Any], str]) -> Any:
    """Make a batch of examples.

    Args:
        make: From a sequence of examples to a batch.
        examples: The sequence.
        name: Of one example, for messages.

    Raises:
        ValueError: If it can't be made; names the first example that can't be made alone, or the
            first and the last where each can.
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
    """Return batches of examples that are known by their number.

    Args:
        plan: Of rows (draw, number).
        make: From the numbers of examples and their draws to a batch.
    """

    def make_rows(rows: np.ndarray) -> Any:
        draws, numbers = np.ascontiguousarray(rows.T)
        return make(numbers, draws)

    return BatchStream(plan, lambda rows: make_named(make_rows, rows, "example {0[1]}".format))


def epoch_order(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of `count` examples in an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def shuffled(count: int, batch_size: int, seed: int, repeats: int = 1) -> Plan:
    """Return a plan of rows (draw, number) in which every example comes once in an epoch.

    Args:
        count: Examples there are.
        batch_size: Examples of a global batch.
        seed: Of the order.
        repeats: Times that an example comes in one global batch ("repeated augmentation", arXiv
            1901.09335). An epoch is as long as before, so that it has a share of the examples. The
            draw is the epoch, or the epoch's and the repeat's number.
    """
    # Repeats lie apart, so that neighbours, which are mixed with each other, are others.
    chunk = max(1, batch_size // repeats)

    def order(epoch: int) -> np.ndarray:
        numbers = epoch_order(count, seed, epoch)[: -(-count // repeats)]
        rows = [
            with_draw(numbers[start : start + chunk], epoch * repeats + repeat)
            for start in range(0, len(numbers), chunk)
            for repeat in range(repeats)
        ]
        return np.concatenate(rows)[:count]

    return EpochPlan(lru_cache(maxsize=2)(order), count, batch_size)


def by_length(lengths: np.ndarray, batch_size: int, seed: int) -> Plan:
    """Return a plan of rows (epoch, number) whose batches have examples of like length.

    Every example comes once in an epoch. Its order is cut in pools of `POOL` batches, a pool is
    sorted by length and cut in batches, and the batches are shuffled; an epoch that begins inside a
    batch fills that one first.

    Args:
        lengths: Of the examples.
        batch_size: Examples of a global batch.
        seed: Of the order.
    """
    count = len(lengths)

    def cut_pool(pool: np.ndarray) -> list[np.ndarray]:
        """Cut a pool in batches of like length; what does not fill one is drawn from anywhere."""
        over = len(pool) % batch_size
        by_size = pool[over:][np.argsort(lengths[pool[over:]], kind="stable")]
        pieces = [by_size[i : i + batch_size] for i in range(0, len(by_size), batch_size)]
        return [*pieces, pool[:over]] if over else pieces

    def order(epoch: int) -> np.ndarray:
        numbers = epoch_order(count, seed, epoch)
        lead = -epoch * count % batch_size
        first, rest = numbers[:lead], numbers[lead:]
        size = POOL * batch_size
        batches = [b for start in range(0, len(rest), size) for b in cut_pool(rest[start:][:size])]
        whole = [batch for batch in batches if len(batch) == batch_size]
        last = [batch for batch in batches if len(batch) < batch_size]
        places = np.random.default_rng([seed, epoch, 1]).permutation(len(whole))
        return with_draw(np.concatenate([first, *(whole[place] for place in places), *last]), epoch)

    return EpochPlan(lru_cache(maxsize=2)(order), count, batch_size)


def with_draw(numbers: np.ndarray, draw: int) -> np.ndarray:
    """Return rows (draw, number)."""
    return np.stack([np.full_like(numbers, draw), numbers], axis=1)


@dataclass(frozen=True)
class EpochPlan:
    """A plan of the epochs' rows, end to end.

    Attributes:
        order: From an epoch to its rows.
        count: Of them in each epoch.
        batch_size: Rows of a global batch.
    """

    order: Callable[[int], np.ndarray]
    count: int
    batch_size: int

    def __call__(self, step: int) -> np.ndarray:
        """Return the rows of a step's global batch."""
        place, stop, rows = step * self.batch_size, (step + 1) * self.batch_size, []
        while place < stop:
            epoch, offset = divmod(place, self.count)
            rows.append(self.order(epoch)[offset : offset + stop - place])
            place += len(rows[-1])
        return np.concatenate(rows)


def in_blocks(
    block: Callable[[int], Sequence[Any]],
    batch_size: int,
    size: Callable[[int], int | None] = lambda number: None,
) -> Plan:
    """Return a plan of blocks, end to end, each of as many examples as it happens to have.

    The first time that a step is asked for, the blocks before it are counted.

    Args:
        block: From a block's number to its examples.
        batch_size: Examples of a global batch.
        size: From a block's number to how many examples it has; None where only the block tells.
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


def cut_groups(order: np.ndarray, sizes: np.ndarray, budgets: Sequence[int]) -> list[np.ndarray]:
    """Cut examples of like length into groups that fit when each is padded to its longest.

    Args:
        order: Their numbers, sorted by length.
        sizes: (examples, sizes): what each is padded to, as of its source and of its target.
        budgets: The largest padded volume of a group by each size: budget i is of how many there
            are times the largest of sizes 0 to i. One example alone may have more.
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
    """Return batches that are lists of groups, each group padded to its own longest example.

    Args:
        block: From a block's number to its groups, each rows that tell its examples.
        batch_size: Groups of a global batch.
        make: From the rows of a group to tensors.
        name: Of the example of a row, for messages.
    """

    def make_groups(piece: Sequence[np.ndarray]) -> list[Any]:
        return [make_named(make, group, name) for group in piece]

    def describe(piece: Sequence[np.ndarray]) -> str:
        return listed([name(example) for group in piece for example in group])

    return BatchStream(in_blocks(block, batch_size), make_groups, describe)


def joined(
    streams: Mapping[str, BatchStream], join: Callable[[dict[str, Any]], Any]
) -> BatchStream:
    """Return batches that have examples of several streams, each in its own order.

    A stream has its own number of examples in a batch, so that one may begin its third epoch while
    another is in its first. Piece i has the i-th piece of every stream.

    Args:
        streams: By name.
        join: From a batch of each stream, by name, to a batch.
    """

    def plan(step: int) -> dict[str, Any]:
        return {name: stream.plan(step) for name, stream in streams.items()}

    def make(piece: dict[str, Any]) -> Any:
        return join({name: streams[name].make(examples) for name, examples in piece.items()})

    def describe(piece: dict[str, Any]) -> str:
        return "; ".join(f"{name}: {streams[name].describe(own)}" for name, own in piece.items())

    return BatchStream(plan, make, describe)


def mixed_order(count: int) -> np.ndarray:
    """Return 0 ... count - 1 in an order that is always the same and does not follow the content.

    The first validation batches are then like all of them, also of data that is sorted by class.
    """
    return np.random.default_rng(EVALUATION_SEED).permutation(count)


def mixed_plans(count: int, batch_size: int) -> list[np.ndarray]:
    """Return the rows 0 ... count - 1 in mixed order, `batch_size` at a time."""
    order = mixed_order(count)
    return [order[start : start + batch_size] for start in range(0, count, batch_size)]


class LazyBatches(Sequence[Any]):
    """A sequence of batches; batch i is made from the i-th plan each time it is asked for.

    A slice, such as the first batches, makes none of them: it is such a sequence again.

    Args:
        plans: What each batch is made of, its row numbers for example.
        make: From a plan to a batch.
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
    """Return the same structure with the function applied to every tensor in it."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {key: map_tensors(value, function) for key, value in batch.items()}
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{key: map_tensors(value, function) for key, value in parts(batch)})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, function) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(value, function) for value in batch)
    return batch


def to_device(batch: Any, device: torch.device) -> Any:
    """Move every tensor to a device, without waiting where the tensor is pinned."""
    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))


def pinned(batch: Any) -> Any:
    """Put every tensor in memory from which a GPU copies while it computes."""
    return map_tensors(batch, Tensor.pin_memory)


def named_tensors(batch: Any, prefix: str = "batch") -> dict[str, Tensor]:
    """List the tensors with names that tell where they were, as "batch.1.length"."""
    if isinstance(batch, Tensor):
        return {prefix: batch}
    named: dict[str, Tensor] = {}
    for key, value in parts(batch):
        named |= named_tensors(value, f"{prefix}.{key}")
    return named


def parts(batch: Any) -> Iterator[tuple[str, Any]]:
    """Give the parts of one level of a batch with their names; nothing for a plain value."""
    if isinstance(batch, dict):
        yield from ((str(key), value) for key, value in batch.items())
    elif is_dataclass(batch) and not isinstance(batch, type):
        yield from ((field.name, getattr(batch, field.name)) for field in fields(batch))
    elif isinstance(batch, list | tuple):
        yield from ((str(index), value) for index, value in enumerate(batch))
