"""What a masked image model guesses: which patches are hidden, and a frozen tokenizer's codes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.functional.cross_entropy import without_autocast
from magneto.vision.config import ImageModelConfig
from magneto.vision.teachers import PixelTeacher, weights_digest
from magneto.vision.tokenizer import ImageTokenizer, k_means, nearest
from magneto.vision.transforms import NORMALISATIONS

# Share of the grid that a block has at least: 16 of BEiT's 196 patches.
SMALLEST = 16 / 196
# A block's height by its width lies between this and its inverse, drawn on a log scale.
NARROWEST = 0.3
# Draws for one block, before the rest is filled up with single patches.
TRIES = 10

# As `magneto.runs.load_run` is told, and `magneto.vision.tokenizer` says that it is.
VERB = "train image-modelling/tiny --data.image_tokenizer"
K_MEANS_ITERATIONS = 20


class BlockMasking:
    """Hides the same number of patches in every image.

    Blocks of 16 of 196 patches or more are drawn until the count is reached; they may overlap and
    are strictly smaller than the grid both ways. What a block has too many is given back, patches
    drawn at random; where no block fits any more, single patches are added.

    Args:
        rows: Of the grid.
        columns: Of the grid.
        ratio: Share of the patches that is hidden; rounded, at least one, never all.
    """

    def __init__(self, rows: int, columns: int, ratio: float) -> None:
        self.rows, self.columns = rows, columns
        patches = rows * columns
        self.count = min(max(1, round(ratio * patches)), patches - 1)
        self.smallest = max(1.0, SMALLEST * patches)

    def draw(self, random: np.random.Generator) -> np.ndarray:
        """Return the numbers of the hidden patches in order, (count,), int64."""
        hidden = np.zeros((self.rows, self.columns), bool)
        left = self.count
        while left > 0:
            added = self._add_block(hidden, left, random)
            if added == 0:
                break
            left -= added
        flat = hidden.reshape(-1)
        if left > 0:
            flat[random.choice(np.flatnonzero(~flat), left, replace=False)] = True
        elif left < 0:
            flat[random.choice(np.flatnonzero(flat), -left, replace=False)] = False
        return np.flatnonzero(flat)

    def _add_block(self, hidden: np.ndarray, left: int, random: np.random.Generator) -> int:
        """Hide one more block of at most `left` new patches; return how many are new."""
        # With fewer left than a smallest block has, one that lies partly on others may still fit.
        low, high = sorted((self.smallest, float(left)))
        areas = random.uniform(low, high, TRIES)
        shapes = np.exp(random.uniform(math.log(NARROWEST), -math.log(NARROWEST), TRIES))
        heights = np.rint(np.sqrt(areas * shapes)).astype(int)
        widths = np.rint(np.sqrt(areas / shapes)).astype(int)
        tops, lefts = random.random(TRIES), random.random(TRIES)
        for height, width, down, across in zip(heights, widths, tops, lefts, strict=True):
            if not (0 < height < self.rows and 0 < width < self.columns):
                continue
            top = int(down * (self.rows - height + 1))
            start = int(across * (self.columns - width + 1))
            block = hidden[top : top + height, start : start + width]
            added = int(height * width - block.sum())
            if 0 < added <= left:
                block[:] = True
                return added
        return 0


class PatchTokenizer(nn.Module):
    """From an image to a code per patch without an encoder: k-means of the patches' own pixels.

    Args:
        config: Of the model, with `codes`.
        batches: Of images in [-1, 1], (batch, channels, height, width), whose patches are
            clustered.
        seed: Of k-means.
        iterations: Of k-means.
    """

    vectors: Tensor

    def __init__(
        self,
        config: ImageModelConfig,
        batches: Iterable[Tensor],
        seed: int,
        iterations: int = K_MEANS_ITERATIONS,
    ) -> None:
        super().__init__()
        assert config.codes is not None
        self.config = config
        self.patches = PixelTeacher(config)
        rows = torch.cat([self.directions(images).flatten(0, 1) for images in batches])
        vectors = k_means(rows, config.codes, iterations, seed)
        self.register_buffer("vectors", vectors)

    def directions(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, patches, width), of length 1."""
        return F.normalize(self.patches(images), dim=-1)

    def encode(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) in [-1, 1] to codes (batch, patches), int64."""
        with without_autocast(images):
            rows = self.directions(images.to(self.vectors.dtype))
            return nearest(rows.flatten(0, 1), self.vectors).view(rows.shape[:-1])


class CodeTargets(nn.Module):
    """A frozen tokenizer that reads what the model reads: pixels of the same view.

    Args:
        tokenizer: Encodes images in [-1, 1].
        normalisation: Of the model's images; it is undone.

    Attributes:
        codes: How many there are.
        patch_size: Of the tokenizer, and the model.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, tokenizer: ImageTokenizer | PatchTokenizer, normalisation: str) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.patch_size, self.codes = tokenizer.config.patch_size, tokenizer.config.codes or 0
        mean, std = (
            torch.tensor(values[: tokenizer.config.channels]).view(-1, 1, 1)
            for values in NORMALISATIONS[normalisation]
        )
        # Pixels from 0 to 1 are mean + std * x; the tokenizer reads twice that less 1.
        self.register_buffer("scale", 2 * std, persistent=False)
        self.register_buffer("shift", 2 * mean - 1, persistent=False)

    def view(self, images: Tensor) -> Tensor:
        """Return the model's images, (batch, channels, height, width), in [-1, 1]."""
        return images * self.scale + self.shift

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return the codes of the model's images, (batch, patches), int64."""
        return self.tokenizer.encode(self.view(images))

    def digest(self) -> str:
        """Return what names the tokenizer's weights."""
        return weights_digest(self.tokenizer)


def noise_tokenizer(config: ImageModelConfig, seed: int) -> PatchTokenizer:
    """Return a tokenizer of as many codes as a configuration has, of noise, for its size alone.

    Raises:
        ValueError: If the codes are not set.
    """
    if config.codes is None:
        raise ValueError("set model.codes: else only the image tokenizer knows how many there are")
    count = -(-config.codes // config.patches)
    size = (count, config.channels, config.image_size, config.image_size)
    noise = torch.rand(size, generator=torch.Generator().manual_seed(seed))
    return PatchTokenizer(config, [2 * noise - 1], seed, iterations=0)


def load_tokenizer(run: Path, model: ImageModelConfig) -> ImageTokenizer:
    """Open the tokenizer of a run, on the CPU.

    Raises:
        FileNotFoundError: If there is no run, or it has no weights.
        ValueError: If it is no tokenizer's, or its images or its grid are not the model's.
    """
    from magneto.runs import load_run

    task: Any = load_run(run, "auto", {"training.device": "cpu"}, VERB).model
    tokenizer: ImageTokenizer = task.tokenizer
    wrong = [
        f"--model.{name} {there}"
        for name in ("image_size", "patch_size", "channels")
        if (there := getattr(tokenizer.config, name)) != getattr(model, name)
    ]
    if wrong:
        raise ValueError(f"{run} is a tokenizer of other images: give {' '.join(wrong)}")
    return tokenizer
