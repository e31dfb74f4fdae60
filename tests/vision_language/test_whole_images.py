"""The whole image is read, whatever its shape; only a crop that is asked for cuts anything off."""

import numpy as np

from magneto.vision.config import AugmentationConfig
from magneto.vision.decoding import PixelPicture
from magneto.vision.transforms import Reading
from magneto.vision_language.samples import WholeImage, WholeImageAugmentation

READING = Reading(8)


def wide_picture() -> PixelPicture:
    """Black, but for white columns at both ends: a crop of the middle would lose them."""
    pixels = np.zeros((10, 40, 3), np.uint8)
    pixels[:, :10] = pixels[:, 30:] = 255
    return PixelPicture(pixels)


def test_the_ends_are_seen() -> None:
    random = np.random.default_rng(0)
    seen = WholeImage(READING)(wide_picture(), random)
    assert seen.shape == (3, 8, 8)
    assert (seen[:, :, [0, -1]] > 0.9).all() and (seen[:, :, 3:5] < -0.9).all()
    plain = WholeImageAugmentation(READING, AugmentationConfig())
    np.testing.assert_array_equal(plain(wide_picture(), random), seen)


def test_augmentation_is_applied() -> None:
    config = AugmentationConfig(crop="random_resized", crop_scale=(0.2, 0.3))
    seen = WholeImageAugmentation(READING, config)(wide_picture(), np.random.default_rng(0))
    assert not np.array_equal(seen, WholeImage(READING)(wide_picture(), np.random.default_rng(0)))
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:, :2] = 255
    mirrored = WholeImageAugmentation(READING, AugmentationConfig(flip=1.0))
    seen = mirrored(PixelPicture(pixels), np.random.default_rng(0))
    assert (seen[:, :, -2:] == 1).all() and (seen[:, :, :6] == -1).all()
