"""Histograms of gradients, against a loop over pixels and against scikit-image."""

import math

import numpy as np
import pytest
import torch

from magneto.vision.teachers import gradient_histograms


def by_hand(image: np.ndarray, cell: int) -> np.ndarray:
    """(channels, height, width) to (9, height / cell, width / cell), pixel by pixel."""
    channels, height, width = image.shape
    found = np.zeros((9, height // cell, width // cell))
    for y in range(height):
        for x in range(width):
            best, angle = -1.0, 0.0
            for c in range(channels):
                down = image[c, y + 1, x] - image[c, y - 1, x] if 0 < y < height - 1 else 0.0
                across = image[c, y, x + 1] - image[c, y, x - 1] if 0 < x < width - 1 else 0.0
                if math.hypot(down, across) > best:
                    best = math.hypot(down, across)
                    angle = math.degrees(math.atan2(down, across)) % 180
            found[min(int(angle // 20), 8), y // cell, x // cell] += best / cell**2
    return found


@pytest.mark.parametrize(("channels", "cell"), [(1, 2), (3, 4), (3, 8)])
def test_against_a_loop_over_pixels(channels: int, cell: int) -> None:
    images = np.random.default_rng(0).random((2, channels, 16, 16))
    found = gradient_histograms(torch.from_numpy(images), cell).numpy()
    assert np.allclose(found, np.stack([by_hand(image, cell) for image in images]), atol=1e-12)


def test_an_edge_has_one_direction() -> None:
    image = torch.zeros(1, 1, 8, 8)
    image[..., 4:] = 1.0
    found = gradient_histograms(image, 8)[0, :, 0, 0]
    # Two columns of eight have a gradient of 1, across: direction 0.
    assert found.tolist() == [0.25] + [0.0] * 8
    turned = gradient_histograms(image.mT.contiguous(), 8)[0, :, 0, 0]
    assert turned.tolist() == [0.0] * 4 + [0.25] + [0.0] * 4


@pytest.mark.parametrize("channels", [1, 3])
def test_against_scikit_image(channels: int) -> None:
    feature = pytest.importorskip("skimage.feature")
    images = np.random.default_rng(0).random((2, channels, 32, 32))
    ours = gradient_histograms(torch.from_numpy(images), 8).numpy()
    for image, found in zip(images, ours, strict=True):
        theirs = feature.hog(
            image.transpose(1, 2, 0), orientations=9, pixels_per_cell=(8, 8),
            cells_per_block=(1, 1), block_norm="L2", feature_vector=False, channel_axis=-1,
        )[:, :, 0, 0]  # fmt: skip
        length = np.sqrt((found**2).sum(0) + 1e-10)
        assert np.allclose((found / length).transpose(1, 2, 0), theirs, atol=1e-10)
