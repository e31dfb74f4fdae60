"""From pictures to what our image classifiers read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers.image_processing_base import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

from magneto.hf.auto_map import WithoutCopies, auto_map, write_module
from magneto.vision.batches import Transform
from magneto.vision.decoding import PixelPicture, orientation, rgb, turned
from magneto.vision.geometry import from_image
from magneto.vision.transforms import CentreCrop, Reading

MODES = {1: "L", 3: "RGB"}
"""Pillow's name of what has so many channels."""


def pixels_of(picture: Any) -> np.ndarray:
    """Return a picture's pixels as `magneto.vision.decoding` reads a file's: RGB, upright.

    Args:
        picture: Of Pillow; or an array of bytes, (height, width) or (height, width, 3).

    Raises:
        TypeError: For an array of another type, or the name of a file.
    """
    from PIL import Image

    if isinstance(picture, str | os.PathLike):
        raise TypeError(f"pictures are Pillow's, or arrays of uint8: open {os.fspath(picture)} by "
                        "PIL.Image.open")  # fmt: skip
    if not isinstance(picture, Image.Image):
        array = np.asarray(picture)
        if array.dtype != np.uint8:
            raise TypeError(f"pictures are Pillow's, or arrays of uint8, not of {array.dtype}")
        picture = Image.fromarray(array)
    return turned(from_image(rgb(picture)), orientation(picture))


def is_sequence(value: Any) -> bool:
    """Return whether a value is a sequence of others, which the name of a file is not."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def pictures_of(images: Any) -> list[Any]:
    """Return the pictures of one, of a sequence, or of an array (batch, height, width, 3)."""
    several = is_sequence(images) or getattr(images, "ndim", 0) == 4
    return list(images) if several else [images]


class MagnetoImageProcessor(WithoutCopies, BaseImageProcessor):
    """Does to pictures what is done to a run's validation images: resize, cut out, normalise."""

    model_input_names = ["pixel_values"]  # noqa: RUF012

    def __init__(
        self,
        image_size: int = 224,
        channels: int = 3,
        normalisation: str = "half",
        resize: int | None = None,
        **others: Any,
    ) -> None:
        """Take the form in which a model reads images.

        Args:
            image_size: Height and width in pixels.
            channels: 1 for grey, 3 for colours.
            normalisation: One of `magneto.vision.transforms.NORMALISATIONS`.
            resize: Shorter side to which a picture is resized before its middle is cut out; None
                for `image_size`.
            **others: Of transformers' class.

        Raises:
            ValueError: For another number of channels.
        """
        if channels not in MODES:
            raise ValueError(f"pictures have 1 or 3 channels, not {channels}")
        others["auto_map"] = auto_map(AutoImageProcessor=type(self).__name__)
        super().__init__(**others)
        self.image_size, self.channels = image_size, channels
        self.normalisation, self.resize = normalisation, resize

    def preprocess(self, images: Any, return_tensors: str | None = None, **_: Any) -> BatchFeature:  # type: ignore[override]
        """Return `pixel_values`, (batch, channels, image_size, image_size).

        Args:
            images: A picture of Pillow or an array of bytes, (height, width) or (height, width,
                3); or a sequence of them, or an array (batch, height, width, 3).
            return_tensors: "pt" or "np".

        Raises:
            TypeError: For an array of another type.
        """
        rows = np.stack([self._values(picture) for picture in pictures_of(images)])
        return BatchFeature({"pixel_values": rows}, tensor_type=return_tensors)

    def _values(self, picture: Any) -> np.ndarray:
        pixels = pixels_of(picture)
        reading = Reading(self.image_size, self.channels, self.normalisation)
        return self.transform(reading)(PixelPicture(pixels), np.random.default_rng(0))

    def transform(self, reading: Reading) -> Transform:
        """Return what is done to a picture."""
        return CentreCrop(reading, self.resize or self.image_size)

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any
    ) -> list[str]:
        """Write preprocessor_config.json, and the module that its `auto_map` names."""
        write_module(save_directory)
        return super().save_pretrained(save_directory, push_to_hub, **kwargs)
