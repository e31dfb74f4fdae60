"""What is done to training images: RandAugment as timm does it, bit by bit."""

import numpy as np
import pytest

from magneto.vision.augmentation import FILL, LARGEST, OPERATIONS, rand_augmented
from magneto.vision.config import AugmentationConfig
from tests.unit.nn.grids import timm_module
from tests.unit.vision.image_files import Image, photo

TIMM = {
    "autocontrast": "AutoContrast", "equalise": "Equalize", "invert": "Invert",
    "rotate": "Rotate", "posterise": "PosterizeIncreasing", "solarise": "SolarizeIncreasing",
    "solarise_add": "SolarizeAdd", "colour": "ColorIncreasing", "contrast": "ContrastIncreasing",
    "brightness": "BrightnessIncreasing", "sharpness": "SharpnessIncreasing", "shear_x": "ShearX",
    "shear_y": "ShearY", "translate_x": "TranslateXRel", "translate_y": "TranslateYRel",
}  # fmt: skip


class Signs:
    """A generator whose sign is known."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


@pytest.mark.parametrize("name", TIMM)
def test_operations_are_timms(name: str, monkeypatch) -> None:
    theirs = timm_module("timm.data.auto_augment")
    assert OPERATIONS.keys() == TIMM.keys()
    image = Image.fromarray(photo(5, 96, 120))
    for magnitude in (1.0, 5.0, 9.0):
        for sign, number in ((-1, 0.1), (1, 0.9)):
            monkeypatch.setattr(theirs, "_randomly_negate", lambda value, sign=sign: sign * value)
            levels = theirs.LEVEL_TO_ARG[TIMM[name]]
            levels = levels(magnitude, {"translate_pct": 0.45}) if levels else ()
            options = {"fillcolor": FILL, "resample": Image.Resampling.BICUBIC}
            wanted = theirs.NAME_TO_OP[TIMM[name]](image, *levels, **options)
            found = OPERATIONS[name](image, magnitude / LARGEST, Signs(number))  # type: ignore[arg-type]
            assert np.array_equal(np.asarray(found), np.asarray(wanted))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_operations_keep_size_and_mode_at_any_strength(name: str, mode: str) -> None:
    image = Image.fromarray(photo()).convert(mode)
    for strength in (0.0, 0.5, 1.0):
        found = OPERATIONS[name](image, strength, np.random.default_rng(1))
        assert (found.size, found.mode) == (image.size, image.mode)


def test_known_pixels() -> None:
    image, random = Image.fromarray(np.array([[10, 127, 128, 255]], np.uint8)), Signs(0.9)

    def done(name: str, strength: float) -> list[int]:
        return np.asarray(OPERATIONS[name](image, strength, random))[0].tolist()  # type: ignore[arg-type]

    assert done("invert", 0.5) == [245, 128, 127, 0]
    assert done("solarise", 0.5) == [10, 127, 127, 0]
    assert done("solarise_add", 0.5) == [65, 182, 128, 255]
    assert done("posterise", 0.0) == [0, 112, 128, 240]
    assert done("posterise", 1.0) == [0, 0, 0, 0]
    assert done("translate_x", 1 / 1.8) == [127, 128, 255, round(sum(FILL) / 3)]


def test_about_half_of_two_operations_are_applied() -> None:
    image = Image.fromarray(photo())
    config = AugmentationConfig(rand_augment=9)
    same = sum(
        np.array_equal(np.asarray(rand_augmented(image, config, np.random.default_rng(n))), photo())
        for n in range(200)
    )
    assert 30 < same < 90  # a quarter, and where an operation finds nothing to change
