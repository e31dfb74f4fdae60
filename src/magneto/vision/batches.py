"""Batches of images: shuffled and augmented for training, fixed for evaluation.

A broken image never ends a run. In training another one, drawn by (seed, draw, index), takes its
place; in evaluation it is a grey one, and marked, so that it counts as wrong. Either way it is True
in the batch's "broken".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.data import stream
from magneto.data.problems import guarded
from magneto.data.stream import BatchStream, LazyBatches, evaluation_plans
from magneto.vision.decoding import BrokenImage, Picture
from magneto.vision.images import ImageSplit

Example = Callable[[int, np.random.Generator], dict[str, Any]]
"""From an index and a generator to what a batch has of it, by name."""
Read = Callable[[int, np.random.Generator], np.ndarray]
"""From an index and a generator to an image, or to several, as the model reads them."""
Finish = Callable[[dict[str, Tensor], np.ndarray, np.ndarray], dict[str, Tensor]]
"""From a batch, the numbers of its examples and their draws to what is given out."""
OnBroken = Callable[[int, BrokenImage], None]
"""Told the index of an example that is broken, and why; such as `ImageSplit.broken`."""
Transform = Callable[[Picture, np.random.Generator], np.ndarray]
"""From a picture to what the model reads, float32 (channels, height, width)."""

# Images drawn in place of a broken one, before it is said that something else is wrong.
TRIES = 32


def read_or_replace(
    make: Example,
    count: int,
    index: int,
    key: Sequence[int],
    broken: OnBroken = lambda index, error: None,
) -> tuple[dict[str, Any], int]:
    """Make one of `count` examples, and say which; if its image is broken, another in its place.

    The randomness is a function of the key (seed and draw) and the index.

    Raises:
        ValueError: If `TRIES` images are broken, one after the other.
    """
    number, last = index, ""
    for attempt in range(TRIES):
        random = np.random.default_rng([*key, index, attempt])
        if attempt:
            number = int(random.integers(count))
        try:
            with guarded(BrokenImage):
                return make(number, random), number
        except BrokenImage as error:
            broken(number, error)
            last = str(error)
    raise ValueError(f"{TRIES} images drawn one after the other are broken; the last: {last}")


def read_or_blank(
    make: Read,
    rows: Sequence[int] | np.ndarray,
    blank: np.ndarray,
    broken: OnBroken = lambda index, error: None,
) -> dict[str, Tensor]:
    """Read the images of rows to evaluate on, stacked as "images"; nothing is drawn.

    The blank one, of the form that `make` returns, stands for what is broken: True in "broken".
    """
    images, lost = [], []
    for row in rows:
        try:
            with guarded(BrokenImage):
                image, unread = make(int(row), np.random.default_rng(0)), False
        except BrokenImage as error:
            broken(int(row), error)
            image, unread = blank, True
        images.append(image)
        lost.append(unread)
    return {"images": torch.from_numpy(np.stack(images)), "broken": torch.tensor(lost)}


def example_stream(
    count: int,
    example: Example,
    batch_size: int,
    seed: int,
    repeats: int = 1,
    finish: Finish = lambda batch, numbers, draws: batch,
    broken: OnBroken = lambda index, error: None,
) -> BatchStream:
    """Return shuffled batches of examples of any kind.

    Args:
        count: Examples there are.
        example: Makes one, by name: arrays and numbers, which are stacked; may raise anything.
        batch_size: Examples of a global batch.
        seed: Of order and randomness.
        repeats: Times that an example comes in a batch.
        finish: What is done to a batch, or to a piece of one.
        broken: Told of examples that are.

    Returns:
        A stream of the stacked examples, and "broken" (batch): True where another one stands in
        place of a broken one.
    """

    def make(numbers: np.ndarray, draws: np.ndarray) -> dict[str, Tensor]:
        made = [
            read_or_replace(example, count, int(number), (seed, int(draw)), broken)
            for number, draw in zip(numbers, draws, strict=True)
        ]
        others = torch.tensor([n for _, n in made]) != torch.from_numpy(numbers)
        batch = {**stacked([values for values, _ in made]), "broken": others}
        return finish(batch, numbers, draws)

    return stream.example_stream(stream.shuffled(count, batch_size, seed, repeats), make)


def stacked(examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Stack the arrays and numbers of examples, by name."""
    return {
        name: torch.from_numpy(np.stack([values[name] for values in examples]))
        for name in examples[0]
    }


def evaluation_images(
    split: ImageSplit, transform: Transform, batch_size: int, blank: np.ndarray
) -> LazyBatches:
    """Return the batches of a split in mixed order: "images", "labels" and "broken".

    A blank image stands for a broken one; the transform draws nothing.
    """

    def read(index: int, random: np.random.Generator) -> np.ndarray:
        return transform(split.open(index), random)

    def make(rows: np.ndarray) -> dict[str, Tensor]:
        seen = read_or_blank(read, rows, blank, split.broken)
        return {**seen, "labels": torch.from_numpy(split.labels_of(rows))}

    return LazyBatches(evaluation_plans(len(split), batch_size), make)
