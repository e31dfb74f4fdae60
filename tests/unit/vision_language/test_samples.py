"""What a loader makes of texts and images: tokens, where each sample begins, whole squares."""

import numpy as np
import torch

from magneto.vision.config import AugmentationConfig
from magneto.vision.decoding import PixelPicture
from magneto.vision.transforms import InputFormat
from magneto.vision_language.samples import (
    WholeImage,
    join_samples,
)


def test_texts_one_after_another() -> None:
    samples = join_samples(5, 2, [np.array([1, 7, 2]), np.array([1, 2])], [np.array([1, 8, 9, 2])])
    assert samples.token_ids.tolist() == [1, 7, 2, 1, 2, 1, 8, 9, 2]
    assert samples.token_positions.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert samples.image_starts.tolist() == [0, 5, 10, 15]
    assert samples.text_starts.tolist() == [0, 3, 5]
    packing = samples.packing
    assert (packing.rows, packing.length, packing.vision_alone) == (5, 8, 10)
    assert packing.language_paired == 5
    assert samples.token_ids.dtype == torch.int64


FORMAT = InputFormat(8)


def wide_picture() -> PixelPicture:
    """Black, but for white columns at both ends: a crop of the middle would lose them."""
    pixels = np.zeros((10, 40, 3), np.uint8)
    pixels[:, :10] = pixels[:, 30:] = 255
    return PixelPicture(pixels)


def test_the_ends_are_seen() -> None:
    random = np.random.default_rng(0)
    seen = WholeImage(FORMAT)(wide_picture(), random)
    assert seen.shape == (3, 8, 8)
    assert (seen[:, :, [0, -1]] > 0.9).all() and (seen[:, :, 3:5] < -0.9).all()
    plain = WholeImage(FORMAT, AugmentationConfig())
    np.testing.assert_array_equal(plain(wide_picture(), random), seen)


def test_augmentation_is_applied() -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:, :2] = 255
    mirrored = WholeImage(FORMAT, AugmentationConfig(flip=1.0))
    seen = mirrored(PixelPicture(pixels), np.random.default_rng(0))
    assert (seen[:, :, -2:] == 1).all() and (seen[:, :, :6] == -1).all()
