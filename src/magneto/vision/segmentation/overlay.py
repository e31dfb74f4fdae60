"""Images with classes laid over them in colours, beside a legend, as PNG."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from magneto.vision.decoding import pillow
from magneto.vision.geometry import with_channels
from magneto.vision.segmentation.config import IGNORED

# Share of the class's colour in a pixel.
COVER = 0.55
# Turn of the circle of colours from one class to the next: the golden section, so that no two of
# few classes are alike.
TURN = 0.6180339887498949
# Pixels: least width of a panel, letters, a legend's row, space around.
LEAST, LETTERS, ROW, MARGIN = 360, 15, 22, 10


def class_colours(count: int) -> np.ndarray:
    """Return a colour per class, uint8 (count, 3); the first ones do not depend on the count."""
    levels = ((0.85, 0.95), (0.55, 1.0), (0.9, 0.65))
    rows = [colorsys.hsv_to_rgb(i * TURN % 1, *levels[i % 3]) for i in range(count)]
    return (np.array(rows) * 255).round().astype(np.uint8)


def overlay(pixels: np.ndarray, classes: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Lay classes over an image.

    Args:
        pixels: uint8 (height, width, channels).
        classes: uint8 (height, width); where it is `IGNORED`, the image is seen as it is.
        colours: Of `class_colours`.

    Returns:
        uint8 (height, width, 3).
    """
    base = with_channels(pixels, 3).astype(np.float32)
    known = classes != IGNORED
    painted = colours[np.where(known, classes, 0)]
    mixed = base + COVER * (painted - base)
    return np.where(known[..., None], mixed, base).round().astype(np.uint8)


def overlay_png(image: np.ndarray, classes: np.ndarray, names: Sequence[str]) -> bytes:
    """Return an image with its classes laid over it and a legend of those that are there.

    Args:
        image: uint8 (height, width, channels).
        classes: uint8 (height, width).
        names: Of all classes.

    Returns:
        A PNG file's bytes.
    """
    colours = class_colours(len(names))
    return panels_png([overlay(image, classes, colours)], [""], [classes], names)


def panels_png(
    panels: Sequence[np.ndarray],
    titles: Sequence[str],
    shown: Sequence[np.ndarray],
    names: Sequence[str],
) -> bytes:
    """Return panels side by side, then a legend of the classes in them, the largest first.

    Args:
        panels: uint8 (height, width, 3), all of one size; small ones are enlarged.
        titles: Of the panels; "" for none.
        shown: Classes that the legend names, uint8 (height, width) each.
        names: Of all classes.
    """
    drawing, fonts = pillow("ImageDraw"), pillow("ImageFont")
    font = fonts.load_default(LETTERS)
    height, width = panels[0].shape[:2]
    factor = max(1, -(-LEAST // width))
    wide, high = width * factor, height * factor
    every = np.concatenate([classes.ravel() for classes in shown])
    counts = np.bincount(every, minlength=256)[: len(names)]
    order = [number for number in np.argsort(-counts, kind="stable") if counts[number]]
    words = [f"{names[n]}  {100 * counts[n] / max(counts.sum(), 1):.3g} %" for n in order]
    legend = int(max((font.getlength(word) for word in words), default=0)) + 2 * MARGIN + ROW
    top = ROW + MARGIN if any(titles) else MARGIN
    size = (
        len(panels) * (wide + MARGIN) + MARGIN + legend,
        max(top + high, top + ROW * len(words)) + MARGIN,
    )
    canvas = pillow().new("RGB", size, "white")
    draw = drawing.Draw(canvas)
    left = MARGIN
    for panel, title in zip(panels, titles, strict=True):
        draw.text((left, MARGIN // 2), title, fill="black", font=font)
        large = pillow().fromarray(panel).resize((wide, high), pillow().Resampling.NEAREST)
        canvas.paste(large, (left, top))
        left += wide + MARGIN
    _legend(draw, (left, top), class_colours(len(names))[order], words, font)
    file = io.BytesIO()
    canvas.save(file, "PNG")
    return file.getvalue()


def _legend(
    draw: Any, corner: tuple[int, int], colours: np.ndarray, words: Sequence[str], font: Any
) -> None:
    """Draw a row of a colour and its name per class."""
    left, top = corner
    for row, (colour, word) in enumerate(zip(colours.tolist(), words, strict=True)):
        y = top + row * ROW
        draw.rectangle((left, y + 3, left + 14, y + 17), fill=tuple(colour), outline="black")
        draw.text((left + ROW, y), word, fill="black", font=font)
