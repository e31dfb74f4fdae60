"""RandAugment (arXiv 1909.13719), with the operations and strengths of timm's increasing set.

timm calls it "rand-m9-mstd0.5-inc1": for each of two operations, drawn with replacement and applied
with probability 0.5, a magnitude is drawn around 9 and cut to 0 to 10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from magneto.vision.colour import enhanced
from magneto.vision.decoding import pillow

LARGEST = 10.0
PROBABILITY = 0.5
# Of what comes from outside of the image: ImageNet's mean colour.
FILL = (124, 116, 104)

Operation = Callable[[Any, float, np.random.Generator], Any]
"""From an image, a strength from 0 to 1 and a generator, for the sign, to an image."""


@dataclass(frozen=True)
class RandAugment:
    """Draws operations and applies them.

    Attributes:
        magnitude: Mean of the magnitudes, 0 to 10.
        std: Their standard deviation.
        operations: How many are drawn.
    """

    magnitude: float = 9.0
    std: float = 0.5
    operations: int = 2

    def __call__(self, image: Any, random: np.random.Generator) -> Any:
        """Change an image, RGB or grey."""
        for which in random.integers(len(OPERATIONS), size=self.operations):
            if random.random() >= PROBABILITY:
                continue
            magnitude = np.clip(random.normal(self.magnitude, self.std), 0, LARGEST)
            image = list(OPERATIONS.values())[which](image, magnitude / LARGEST, random)
        return image


def _signed(value: float, random: np.random.Generator) -> float:
    return -value if random.random() < 0.5 else value


def _factor(what: str) -> Operation:
    def change(image: Any, strength: float, random: np.random.Generator) -> Any:
        return enhanced(image, what, max(0.1, 1 + _signed(0.9 * strength, random)))

    return change


def _affine(image: Any, matrix: tuple[float, ...]) -> Any:
    """Move pixels: the one at (x, y) comes from (a x + b y + c, d x + e y + f)."""
    library = pillow()
    fill = FILL if image.mode == "RGB" else round(sum(FILL) / 3)
    how = library.Resampling.BICUBIC
    return image.transform(image.size, library.Transform.AFFINE, matrix, how, fillcolor=fill)


def _shear_x(image: Any, strength: float, random: np.random.Generator) -> Any:
    return _affine(image, (1, _signed(0.3 * strength, random), 0, 0, 1, 0))


def _shear_y(image: Any, strength: float, random: np.random.Generator) -> Any:
    return _affine(image, (1, 0, 0, _signed(0.3 * strength, random), 1, 0))


def _translate_x(image: Any, strength: float, random: np.random.Generator) -> Any:
    return _affine(image, (1, 0, _signed(0.45 * strength, random) * image.width, 0, 1, 0))


def _translate_y(image: Any, strength: float, random: np.random.Generator) -> Any:
    return _affine(image, (1, 0, 0, 0, 1, _signed(0.45 * strength, random) * image.height))


def _rotate(image: Any, strength: float, random: np.random.Generator) -> Any:
    fill = FILL if image.mode == "RGB" else round(sum(FILL) / 3)
    how = pillow().Resampling.BICUBIC
    return image.rotate(_signed(30 * strength, random), how, fillcolor=fill)


def _posterise(image: Any, strength: float, random: np.random.Generator) -> Any:
    """Keep 4 bits of a colour at strength 0, none at 1."""
    kept = 0xFF & ~(0xFF >> (4 - int(4 * strength)))
    return image.point([level & kept for level in range(256)] * len(image.getbands()))


def _solarise(image: Any, strength: float, random: np.random.Generator) -> Any:
    return pillow("ImageOps").solarize(image, 256 - int(256 * strength))


def _solarise_add(image: Any, strength: float, random: np.random.Generator) -> Any:
    """Add to the pixels of the darker half."""
    added = min(128, int(110 * strength))
    table = [min(255, level + added) if level < 128 else level for level in range(256)]
    return image.point(table * len(image.getbands()))


OPERATIONS: dict[str, Operation] = {
    "autocontrast": lambda image, strength, random: pillow("ImageOps").autocontrast(image),
    "equalise": lambda image, strength, random: pillow("ImageOps").equalize(image),
    "invert": lambda image, strength, random: pillow("ImageOps").invert(image),
    "rotate": _rotate,
    "posterise": _posterise,
    "solarise": _solarise,
    "solarise_add": _solarise_add,
    "colour": _factor("Color"),
    "contrast": _factor("Contrast"),
    "brightness": _factor("Brightness"),
    "sharpness": _factor("Sharpness"),
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
}
