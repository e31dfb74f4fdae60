"""Overlays: colours of classes, what is ignored, the legend."""

import io

import numpy as np
import pytest

from magneto.vision.segmentation.overlay import (
    COVER,
    MARGIN,
    class_colours,
    overlay,
    overlay_png,
)

NAMES = ["sky", "road", "tree"]


def test_colours_do_not_depend_on_the_number_of_classes() -> None:
    assert np.array_equal(class_colours(3), class_colours(150)[:3])
    assert len(np.unique(class_colours(150), axis=0)) == 150
    few = class_colours(12).astype(int)
    apart = np.abs(few[:, None] - few[None]).sum(-1) + 999 * np.eye(12, dtype=int)
    assert apart.min() > 50


def test_ignored_pixels_are_seen_as_they_are() -> None:
    pixels = np.full((2, 3, 3), 100, np.uint8)
    classes = np.array([[0, 1, 255], [2, 2, 255]], np.uint8)
    found = overlay(pixels, classes, class_colours(3))
    assert (found[:, 2] == 100).all()
    expected = 100 + COVER * (class_colours(3)[1].astype(float) - 100)
    assert np.abs(found[0, 1] - expected).max() <= 0.5
    grey = overlay(pixels[..., :1], classes, class_colours(3))
    assert np.array_equal(grey, found)


def test_a_png_has_the_image_and_a_legend_of_what_is_there() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    classes = np.zeros((120, 160), np.uint8)
    classes[60:] = 2
    content = overlay_png(pixels, classes, NAMES)
    drawn = np.asarray(image.open(io.BytesIO(content)).convert("RGB"))
    corner = drawn[MARGIN : MARGIN + 360 : 3, MARGIN : MARGIN + 480 : 3]
    assert np.array_equal(corner, overlay(pixels, classes, class_colours(3)))
    legend = drawn[:, MARGIN + 480 :].reshape(-1, 3)
    swatches = [(legend == colour).all(1).sum() > 50 for colour in class_colours(3)]
    assert swatches == [True, False, True]
    assert overlay_png(pixels, classes, NAMES) == content
