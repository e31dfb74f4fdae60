"""Mixup (arXiv 1710.09412) and CutMix (arXiv 1905.04899): neighbours of a batch are mixed.

Images 0 and 1 of a batch are mixed with each other, 2 and 3, and so on. So a batch that is cut in
pieces of an even number of images, for ranks or micro-batches, is mixed as the whole is, where
`draw_mixing` has the generators of `pair_generators`. To be called where the batch is made, on a
worker: to a GPU it is hundreds of small operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Mixing:
    """How a pair is mixed.

    Attributes:
        share: Of an image's own label; its neighbour's has the rest.
        box: Rows and columns (top, bottom, left, right) that come from the neighbour, by CutMix;
            None mixes all pixels by `share`.
    """

    share: float = 1.0
    box: tuple[int, int, int, int] | None = None


def draw_mixing(
    random: np.random.Generator, mixup: float, cutmix: float, height: int, width: int
) -> Mixing:
    """Draw how a pair is mixed: by one of the two, each with probability 0.5 where both are on.

    Args:
        random: Draws.
        mixup: Alpha of the Beta distribution of the share (0.8 in the paper's fine-tuning); 0 is
            off.
        cutmix: Likewise of the share of pixels that stay (1.0); 0 is off.
        height: Of the images.
        width: Of the images.
    """
    if not mixup and not cutmix:
        return Mixing()
    cuts = random.random() < 0.5 if mixup and cutmix else bool(cutmix)
    alpha = cutmix if cuts else mixup
    share = float(random.beta(alpha, alpha))
    if not cuts:
        return Mixing(share)
    high, wide = int(height * math.sqrt(1 - share)), int(width * math.sqrt(1 - share))
    row, column = int(random.integers(height)), int(random.integers(width))
    top, bottom = max(0, row - high // 2), min(height, row + high // 2)
    left, right = max(0, column - wide // 2), min(width, column + wide // 2)
    # What lies outside of the image is not cut: the share is that of the pixels.
    return Mixing(
        1 - (bottom - top) * (right - left) / (height * width), (top, bottom, left, right)
    )


def pair_generators(seed: int, draws: np.ndarray, numbers: np.ndarray) -> list[np.random.Generator]:
    """Return a generator for each pair of a batch, by draw and number of its first example.

    Args:
        seed: Of all.
        draws: Of the examples, as `magneto.data.stream.shuffled` gives them.
        numbers: Of the examples.
    """
    firsts = zip(draws[::2].tolist(), numbers[::2].tolist(), strict=True)
    return [np.random.default_rng([seed, draw, number, 0, 1]) for draw, number in firsts]


def mixed(images: Tensor, targets: Tensor, how: Sequence[Mixing]) -> tuple[Tensor, Tensor]:
    """Mix the pairs of a batch; the last image of an odd number stays as it is.

    Args:
        images: (batch, channels, height, width).
        targets: (batch, classes), as `soft_targets` makes them.
        how: Of each pair, batch / 2 rounded up.

    Returns:
        Images and targets.
    """
    images, targets = images.clone(), targets.clone()
    for pair, mixing in enumerate(how[: len(images) // 2]):
        rows = slice(2 * pair, 2 * pair + 2)
        targets[rows] = targets[rows].lerp(targets[rows].flip(0), 1 - mixing.share)
        if mixing.box is None:
            images[rows] = images[rows].lerp(images[rows].flip(0), 1 - mixing.share)
        else:
            top, bottom, left, right = mixing.box
            part = images[rows, :, top:bottom, left:right]
            images[rows, :, top:bottom, left:right] = part.flip(0)
    return images, targets


def soft_targets(labels: Tensor, classes: int, smoothing: float = 0.0) -> Tensor:
    """Return the shares of classes, float32 (batch, classes), of labels (batch).

    Args:
        labels: Numbers of classes.
        classes: How many there are.
        smoothing: Share that is spread over all classes evenly (label smoothing).
    """
    one_hot = torch.nn.functional.one_hot(labels, classes).float()
    return one_hot * (1 - smoothing) + smoothing / classes


@dataclass(frozen=True)
class PairMixing:
    """Gives a batch its targets, and mixes its pairs.

    Attributes:
        seed: Of what is drawn.
        mixup: As in `draw_mixing`.
        cutmix: Likewise.
        classes: How many there are.
        smoothing: As in `soft_targets`.
    """

    seed: int
    mixup: float
    cutmix: float
    classes: int
    smoothing: float

    def __call__(
        self, batch: dict[str, Tensor], numbers: np.ndarray, draws: np.ndarray
    ) -> dict[str, Tensor]:
        """Return the batch with "targets", (batch, classes).

        Args:
            batch: With "images" and "labels".
            numbers: Of its examples.
            draws: Of its examples.
        """
        targets = soft_targets(batch["labels"], self.classes, self.smoothing)
        if not (self.mixup or self.cutmix):
            return {**batch, "targets": targets}
        size = batch["images"].shape[2:]
        randoms = pair_generators(self.seed, draws, numbers)
        how = [draw_mixing(random, self.mixup, self.cutmix, *size) for random in randoms]
        images, targets = mixed(batch["images"], targets, how)
        return {**batch, "images": images, "targets": targets}
