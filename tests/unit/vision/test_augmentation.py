"""What RandAugment does to an image; an image and its mask go the same way."""

import itertools

import numpy as np
import pytest

from magneto.vision.augmentation import (
    FILL,
    OPERATIONS,
    PairedAugmentation,
    distorted,
    rand_augmented,
)
from magneto.vision.config import IGNORED, AugmentationConfig, PairedAugmentationConfig
from magneto.vision.decoding import BrokenImage, PixelPicture
from magneto.vision.transforms import Reading
from tests.unit.vision.image_files import Image, photo


class Signs:
    """A generator whose sign is known."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


def test_operations_keep_size_and_mode_at_any_strength() -> None:
    colours = Image.fromarray(photo())
    for image in (colours, colours.convert("L")):
        for (name, change), strength in itertools.product(OPERATIONS.items(), (0.0, 0.5, 1.0)):
            found = change(image, strength, np.random.default_rng(1))
            assert (found.size, found.mode) == (image.size, image.mode), name


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


READING = Reading(32)


def pair(height: int = 60, width: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """A mask of blocks of 20 pixels, and an image that shows its numbers as brightness."""
    mask = (np.arange(height)[:, None] // 20 * 4 + np.arange(width) // 20).astype(np.uint8)
    return np.repeat((mask * 20)[..., None], 3, 2), mask


def rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)


def test_geometry_is_the_same() -> None:
    pixels, mask = pair()
    change = PairedAugmentation(READING, PairedAugmentationConfig(photometric=0))
    for number in range(20):
        image, part = change(PixelPicture(pixels), mask, rng(number))
        assert image.shape == (3, 32, 32) and part.shape == (32, 32) and part.dtype == np.uint8
        seen = part != IGNORED
        shown = (image[0] + 1) * 127.5 / 20
        assert np.median(np.abs(shown[seen] - part[seen])) < 0.01
        assert not image[:, ~seen].any()


def test_small_images_are_filled_up_with_what_is_ignored() -> None:
    pixels, mask = pair(20, 20)
    config = PairedAugmentationConfig(resize=(1.0, 1.0))
    _, part = PairedAugmentation(READING, config)(PixelPicture(pixels), mask, rng(1))
    assert (part != IGNORED).sum() == 400 and (part[20:] == IGNORED).all()


def test_no_class_has_nearly_all_of_a_crop() -> None:
    mask = np.zeros((200, 200), np.uint8)
    mask[:, 150:] = 1
    pixels = np.zeros((200, 200, 3), np.uint8)
    shares = {}
    for largest in (0.75, 1.0):
        config = PairedAugmentationConfig(resize=(1.0, 1.0), largest_share=largest)
        change = PairedAugmentation(READING, config)
        parts = [change(PixelPicture(pixels), mask, rng(number))[1] for number in range(40)]
        shares[largest] = np.mean([max((p == 0).mean(), (p == 1).mean()) > 0.75 for p in parts])
    assert shares[0.75] < 0.5 < shares[1.0] + 0.3


def test_distortion_changes_colours_alone() -> None:
    pixels = photo()
    assert np.array_equal(distorted(pixels, 0.0, rng(1)), pixels)
    found = [distorted(pixels, 1.0, rng(number)) for number in range(5)]
    assert len({image.tobytes() for image in found}) == 5
    assert all(image.shape == pixels.shape and image.dtype == np.uint8 for image in found)
    assert np.array_equal(distorted(pixels, 0.5, rng(3)), distorted(pixels, 0.5, rng(3)))


def test_a_mask_of_another_size_is_a_broken_example() -> None:
    change = PairedAugmentation(READING, PairedAugmentationConfig())
    with pytest.raises(BrokenImage, match="another size"):
        change(PixelPicture(photo()), np.zeros((4, 4), np.uint8), rng(1))
