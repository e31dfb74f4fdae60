"""Changes of colour at random, on images of Pillow's: colour jitter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from magneto.vision.decoding import pillow


@dataclass(frozen=True)
class ColourJitter:
    """Brightness, contrast, saturation and hue, each by a factor of its own, in random order.

    As torchvision's ColorJitter. A strength of 0 leaves that one out.

    Attributes:
        brightness: Multiplied by 1 - it to 1 + it, and 0 at least.
        contrast: Likewise.
        saturation: Likewise.
        hue: Turned by up to this part of the circle, either way.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __call__(self, image: Any, random: np.random.Generator) -> Any:
        """Change an image."""
        changes: list[Callable[[Any, np.random.Generator], Any]] = [
            lambda image, random, name=name, strength=strength: enhanced(
                image, name, random.uniform(max(0.0, 1 - strength), 1 + strength)
            )
            for name, strength in (("Brightness", self.brightness), ("Contrast", self.contrast),
                                   ("Color", self.saturation))
            if strength
        ]  # fmt: skip
        if self.hue:
            changes.append(
                lambda image, random: turned_hue(image, random.uniform(-1, 1) * self.hue)
            )
        for which in random.permutation(len(changes)):
            image = changes[which](image, random)
        return image


def enhanced(image: Any, what: str, factor: float) -> Any:
    """Return an image with one thing multiplied by a factor: 1 changes nothing.

    Args:
        image: RGB or grey.
        what: "Brightness", "Contrast", "Color" or "Sharpness": a class of Pillow's ImageEnhance.
        factor: By which.
    """
    return getattr(pillow("ImageEnhance"), what)(image).enhance(factor)


def turned_hue(image: Any, part: float) -> Any:
    """Return an image whose hue is turned by a part of the circle; a grey one has none."""
    if image.mode == "L" or part == 0:
        return image
    hue, saturation, value = image.convert("HSV").split()
    hue = hue.point([(level + round(part * 255)) % 256 for level in range(256)])
    return pillow().merge("HSV", (hue, saturation, value)).convert("RGB")
