"""Batches of images: shuffled and augmented for training, fixed for evaluation.

A single broken image does not end a run. In training, a random image replaces a broken image. In
evaluation, a blank image replaces a broken image, and the prediction counts as wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from magneto.data.problems import guarded
from magneto.data.stream import BatchStream, LazyBatches, evaluation_plans, example_stream, shuffled
from magneto.vision.decoding import BrokenImage, Picture
from magneto.vision.images import ImageSplit

Example = Callable[[int, np.random.Generator], dict[str, Any]]
"""Function that makes an example from an index and a random generator."""
Finish = Callable[[dict[str, Tensor], np.ndarray, np.ndarray], dict[str, Tensor]]
"""Function that completes a batch. Its arguments are the batch, and the indices and draws of the
examples. Each use of an example has a different draw, a number that seeds the random augmentation
(see `magneto.data.stream.shuffled`)."""
OnBroken = Callable[[int, BrokenImage], None]
"""Function that is called for a broken example, such as `ImageSplit.broken`."""
Transform = Callable[[Picture, np.random.Generator], np.ndarray]
"""Function that returns a model's input for a picture, float32 (channels, height, width)."""

# Images drawn in place of a broken one before an error is raised.
TRIES = 32


def read_or_replace(
    make: Example,
    count: int,
    index: int,
    key: Sequence[int],
    broken: OnBroken = lambda index, error: None,
) -> tuple[dict[str, Any], int]:
    """Return an example and its index.

    If the image of example `index` is broken, the result is a random example with an intact image.

    The numbers in `key` and the `index` together seed the random generator.

    Raises:
        ValueError: If `TRIES` images in a row are broken.
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
    raise ValueError(f"{TRIES} random images in a row are broken; the last error: {last}")


def read_image(
    make: Callable[[], Any], blank: Any, broken: Callable[[BrokenImage], None]
) -> tuple[Any, bool]:
    """Call `make`, and return the result and False. For a broken image, return `blank` and True."""
    try:
        with guarded(BrokenImage):
            return make(), False
    except BrokenImage as error:
        broken(error)
        return blank, True


def image_stream(
    count: int,
    example: Example,
    batch_size: int,
    seed: int,
    repeats: int = 1,
    finish: Finish = lambda batch, numbers, draws: batch,
    broken: OnBroken = lambda index, error: None,
) -> BatchStream:
    """Return shuffled batches of stacked examples.

    If `example` raises an error, `broken` is called, and a random example replaces the broken one.
    The entry "broken" (batch,) is True for examples that replace broken examples. Each example
    comes `repeats` times, usually in the same global batch. `seed` determines order and
    augmentation. `finish` is applied to each micro-batch of a rank.
    """

    def make(numbers: np.ndarray, draws: np.ndarray) -> dict[str, Tensor]:
        made = [
            read_or_replace(example, count, int(number), (seed, int(draw)), broken)
            for number, draw in zip(numbers, draws, strict=True)
        ]
        others = torch.tensor([n for _, n in made]) != torch.from_numpy(numbers)
        batch = {**default_collate([values for values, _ in made]), "broken": others}
        return finish(batch, numbers, draws)

    return example_stream(shuffled(count, batch_size, seed, repeats), make)


def evaluation_images(
    split: ImageSplit,
    transform: Transform,
    blank: np.ndarray,
    batch_size: int,
    finish: Callable[[dict[str, Tensor], np.ndarray], Any] = lambda batch, rows: batch,
) -> LazyBatches:
    """Return batches of a split in a fixed random order, with the keys "images" and "broken".

    If any image of an example is broken, `blank` replaces all images of this example.
    `finish(batch, rows)` completes a batch. `rows` are the indices of its examples.
    """
    blank = blank if len(split.names) == 1 else np.stack([blank] * len(split.names))

    def make(rows: np.ndarray) -> Any:
        read = [
            read_image(
                partial(split.read, row, transform, np.random.default_rng(0)),
                blank,
                partial(split.broken, row),
            )
            for row in rows.tolist()
        ]
        images, lost = zip(*read, strict=True)
        batch = {"images": torch.from_numpy(np.stack(images)), "broken": torch.tensor(lost)}
        return finish(batch, rows)

    return LazyBatches(evaluation_plans(len(split), batch_size), make)
