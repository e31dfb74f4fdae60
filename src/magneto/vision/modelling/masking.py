"""Which patches are hidden: blocks of an exact count (BEiT, arXiv 2106.08254, section 2.3)."""

from __future__ import annotations

import math

import numpy as np

# Share of the grid that a block has at least: 16 of BEiT's 196 patches.
SMALLEST = 16 / 196
# A block's height by its width lies between this and its inverse, drawn on a log scale.
NARROWEST = 0.3
# Draws for one block, before the rest is filled up with single patches.
TRIES = 10


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
