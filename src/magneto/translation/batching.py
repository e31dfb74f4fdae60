"""Groups of sentences of like length, of about the same number of tokens each.

Directions are sampled by temperature, block by block: a block takes from every direction its share,
going on where the block before stopped, so that no sentence of a direction is seen twice before
all of it was seen once. A block is sorted by length, cut into groups, and the groups are shuffled.
All is a function of (seed, block), so that a run resumes exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from magneto.data.problems import listed
from magneto.data.stream import BatchStream, in_blocks, make_named
from magneto.functional.cross_entropy import IGNORED
from magneto.translation.prepare import ParallelSplit, TranslationVocabulary
from magneto.translation.text import Pair

# Sides of sentences whose tokens are counted at a time; an even number.
SIDES = 1 << 20

Group = dict[str, Any]
"""source, source_mask (batch, source length); target, targets (batch, target length): tensors.
predicted: targets that count; cells: places of both sides; real: those that are not padding."""


def temperature_shares(sizes: Sequence[int], temperature: float) -> np.ndarray:
    """Return each direction's share of what is sampled: size ** (1 / temperature), normalised."""
    weights = np.asarray(sizes, np.float64) ** (1 / temperature)
    return weights / weights.sum()


def endless(count: int, start: int, stop: int, seed: Sequence[int]) -> np.ndarray:
    """Return places start to stop of an endless row of permutations of `count` numbers."""
    parts = [np.zeros(0, np.int64)]
    while start < stop:
        epoch, offset = divmod(start, count)
        order = np.random.default_rng([*seed, epoch]).permutation(count)
        parts.append(order[offset : offset + stop - start])
        start += len(parts[-1])
    return np.concatenate(parts)


def cut_groups(lengths: np.ndarray, budget: int, random: np.random.Generator) -> list[np.ndarray]:
    """Sort examples by length and cut them into groups.

    Args:
        lengths: (examples, 2) of source and target.
        budget: Largest count x longest side of a group.
        random: Orders examples of equal lengths.

    Returns:
        Numbers of the examples of each group, short ones first.
    """
    shuffled = random.permutation(len(lengths))
    source, target = lengths[shuffled].T
    # Sources rise and fall in turn, so that they don't jump where the target length changes.
    order = shuffled[np.lexsort((np.where(target % 2, source, -source), target))]
    longest = lengths[order].max(1)
    groups, start = [], 0
    while start < len(order):
        widest = np.maximum.accumulate(longest[start : start + budget // longest[start]])
        fits = widest * np.arange(1, len(widest) + 1) <= budget
        stop = start + max(int(fits.sum()), 1)
        groups.append(order[start:stop])
        start = stop
    return groups


def longest_group(max_tokens: int, max_length: int) -> Group:
    """Return a group of the longest sentences, as many as fit; their tokens mean nothing."""
    shape = (max(max_tokens // max_length, 1), max_length)
    tokens = torch.zeros(shape, dtype=torch.long)
    tensors = {name: tokens.clone() for name in ("source", "target", "targets")}
    mask = torch.ones(shape, dtype=torch.bool)
    cells = 2 * tokens.numel()
    numbers = {"predicted": tokens.numel(), "real": cells, "cells": cells}
    return {**tensors, "source_mask": mask, **numbers}


class GroupMaker:
    """Makes groups from a split's examples.

    Args:
        split: Prepared text.
        vocabulary: Its tags and end.
        directions: From which language to which.
    """

    def __init__(
        self,
        split: ParallelSplit,
        vocabulary: TranslationVocabulary,
        directions: Sequence[Pair],
    ) -> None:
        self.split, self.end = split, vocabulary.end
        there = [d for d in directions if self._range(d)[1] > self._range(d)[0]]
        self.directions = there
        self.sizes = [self._range(d)[1] - self._range(d)[0] for d in there]
        self.tags = [vocabulary.tag(target) for _, target in there]
        self.flipped = [source > target for source, target in there]

    def _range(self, direction: Pair) -> tuple[int, int]:
        return self.split.ranges.get((min(direction), max(direction)), (0, 0))

    def lengths(self, direction: int, numbers: np.ndarray) -> np.ndarray:
        """Return (examples, 2) tokens of source and target, with tag and end."""
        pair = self.directions[direction]
        found = self.split.lengths((min(pair), max(pair)))[numbers]
        return (found[:, ::-1] if self.flipped[direction] else found) + np.array([2, 1])

    def target_counts(self, size: int) -> np.ndarray:
        """Return how often each of `size` tokens is a target, ends included, (size,)."""
        counts = np.zeros(size, np.int64)
        for pair, flipped, number in zip(self.directions, self.flipped, self.sizes, strict=True):
            start, stop = self._range(pair)
            offsets = self.split.offsets[2 * start : 2 * stop + 1]
            for first in range(0, len(offsets) - 1, SIDES):
                part = offsets[first : first + SIDES + 1]
                side = np.arange(len(part) - 1) % 2 != flipped
                places = np.repeat(side, np.diff(part))
                counts += np.bincount(self.split.tokens[part[0] : part[-1]][places], minlength=size)
            counts[self.end] += number
        return counts

    def make(self, directions: np.ndarray, numbers: np.ndarray) -> Group:
        """Return a padded group of examples (direction, number within it)."""
        rows = [self._sides(d, n) for d, n in zip(directions, numbers, strict=True)]
        widths = [max(len(row[side]) for row in rows) for side in (0, 1)]
        source = np.full((len(rows), widths[0] + 2), self.end)
        mask = np.zeros(source.shape, bool)
        target = np.full((len(rows), widths[1] + 1), self.end)
        targets = np.full(target.shape, IGNORED)
        for row, (direction, (one, other)) in enumerate(zip(directions, rows, strict=True)):
            source[row, 0] = self.tags[direction]
            source[row, 1 : len(one) + 1] = one
            mask[row, : len(one) + 2] = True
            target[row, 1 : len(other) + 1] = other
            targets[row, : len(other)] = other
            targets[row, len(other)] = self.end
        tensors = {"source": source, "source_mask": mask, "target": target, "targets": targets}
        predicted = sum(len(other) + 1 for _, other in rows)
        return {name: torch.from_numpy(value) for name, value in tensors.items()} | {
            "predicted": predicted,
            "real": predicted + int(mask.sum()),
            "cells": source.size + target.size,
        }

    def _sides(self, direction: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        example = self._range(self.directions[direction])[0] + number
        flipped = self.flipped[direction]
        return self.split.side(example, flipped), self.split.side(example, not flipped)


def group_stream(
    maker: GroupMaker, batch_size: int, budget: int, temperature: float, block: int, seed: int
) -> BatchStream:
    """Return batches of groups; a piece of a batch is a list of groups.

    Args:
        maker: Of groups.
        batch_size: Groups of a global batch.
        budget: Largest padded size of a group.
        temperature: Of the sampling over directions.
        block: Sentences sorted by length at a time.
        seed: Of the order.
    """
    shares = temperature_shares(maker.sizes, temperature)
    size = min(block, sum(maker.sizes))

    def groups(number: int) -> list[np.ndarray]:
        """Choose the examples of a block, rows (direction, number), and cut them into groups."""
        rows, lengths = [], []
        for direction, (share, count) in enumerate(zip(shares, maker.sizes, strict=True)):
            start, stop = (int(share * size * block) for block in (number, number + 1))
            chosen = endless(count, start, stop, (seed, direction))
            rows.append(np.stack([np.full_like(chosen, direction), chosen], axis=1))
            lengths.append(maker.lengths(direction, chosen))
        random = np.random.default_rng([seed, number])
        examples = np.concatenate(rows)
        found = cut_groups(np.concatenate(lengths), budget, random)
        return [examples[found[place]] for place in random.permutation(len(found))]

    def name(example: np.ndarray) -> str:
        source, target = maker.directions[example[0]]
        return f"{example[1]} of {source}-{target}"

    def make(piece: list[np.ndarray]) -> list[Group]:
        return [
            make_named(lambda rows: maker.make(*rows.T), group, lambda row: f"sentence {name(row)}")
            for group in piece
        ]

    def describe(piece: list[np.ndarray]) -> str:
        return f"sentences {listed([name(example) for group in piece for example in group])}"

    return BatchStream(in_blocks(groups, batch_size), make, describe)
