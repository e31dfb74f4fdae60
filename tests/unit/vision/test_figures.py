"""Figures show what they say."""

import io
import re

import numpy as np
import pytest
import torch

from magneto.figures import MOST_CLASSES
from magneto.vision.figures import (
    OPACITY,
    class_colours,
    codes_figure,
    confusion_figure,
    mistakes_figure,
    overlay,
    reconstruction_figure,
)
from magneto.vision.transforms import InputFormat

Image = pytest.importorskip("PIL.Image")


def test_patches_are_grouped_by_their_codes() -> None:
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(9, 1, 8, 8, generator=draw) * 2 - 1
    codes = torch.randint(6, (9, 16), generator=draw)
    times = sorted((int(n) for n in codes.flatten().bincount() if n), reverse=True)
    caption = codes_figure(images, codes, 7, 2).caption
    assert f"in the order of the rows: {', '.join(map(str, times))}." in caption
    assert f"{len(times)} of 7 codes occur" in caption
    # Where patches that are alike have a code of their own, its mean is the patch.
    twice, own = images.repeat(2, 1, 1, 1), torch.arange(9 * 16).view(9, 16).repeat(2, 1)
    assert "leave 0 % of the variance" in reconstruction_figure(twice, own, 144, 2).caption
    opposite = torch.tensor([2.0, -2] * 4).view(8, 1, 1, 1).expand(8, 1, 8, 8)
    one = torch.zeros(8, 16, dtype=torch.long)
    assert " 100 % of the variance" in reconstruction_figure(opposite, one, 7, 2).caption


def test_confusion_has_short_names_and_the_commonest_classes() -> None:
    matrix = np.array([[75, 25, 0], [0, 10, 0], [0, 0, 0]])
    names = ["sky, blue", "a bird of a very long name", "tree"]
    figure = confusion_figure(matrix, names, "pixels")
    words = re.findall(r">([^<>]+)</text>", str(figure.image))
    assert {"75", "25", "100", "sky", "a bird of a very lo…"} <= {*words}
    assert "85 of 110 validation pixels" in figure.caption
    many = confusion_figure(np.diag(np.arange(1, 151)), [f"class{n}" for n in range(150)], "images")
    assert f"{150 - MOST_CLASSES} rarer classes are left out" in many.caption


def test_a_mistake_is_shown_as_it_looks() -> None:
    """Restored, not stretched to its own darkest and brightest pixel."""
    dark = torch.full((5, 1, 4, 4), -0.8)
    figure = mistakes_figure(dark, ["is a"] * 5, InputFormat(4, 1))
    assert "The 5 most confident" in figure.caption
    assert isinstance(figure.image, bytes)
    pixels = np.asarray(Image.open(io.BytesIO(figure.image)).convert("RGB"))
    assert (abs(pixels.astype(int) - 26) <= 2).all(-1).mean() > 0.4


def test_colours_of_classes_differ_and_ignored_pixels_have_none() -> None:
    assert np.array_equal(class_colours(3), class_colours(150)[:3])
    assert len(np.unique(class_colours(150), axis=0)) == 150
    pixels = np.full((2, 3, 3), 100, np.uint8)
    classes = np.array([[0, 1, 255], [2, 2, 255]], np.uint8)
    found = overlay(pixels, classes, class_colours(3))
    assert (found[:, 2] == 100).all()
    expected = 100 + OPACITY * (class_colours(3)[1].astype(float) - 100)
    assert np.abs(found[0, 1] - expected).max() <= 0.5
    assert np.array_equal(overlay(pixels[..., :1], classes, class_colours(3)), found)
