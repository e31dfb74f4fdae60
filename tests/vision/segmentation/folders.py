"""Folders of images and masks, for tests."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def write_pairs(folder: Path, sizes: Sequence[tuple[int, int]], classes: int = 5) -> None:
    """Write images/N.png and annotations/N.png: stripes whose brightness tells their class."""
    from PIL import Image

    for name in ("images", "annotations"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number, (height, width) in enumerate(sizes):
        random = np.random.default_rng(number)
        stripes = np.arange(height)[:, None] * classes // height + np.zeros((1, width), int)
        mask = ((stripes + number) % classes).astype(np.uint8)
        shades = mask[..., None] * (255 // classes) + random.integers(0, 20, (height, width, 3))
        Image.fromarray(shades.astype(np.uint8)).save(folder / "images" / f"{number}.png")
        Image.fromarray(mask).save(folder / "annotations" / f"{number}.png")
