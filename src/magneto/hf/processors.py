"""From pictures, and from pictures and texts, to what our models read: exactly as a run reads them.

A segmentation model's logits become classes here, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import ProcessorMixin
from transformers.image_processing_base import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

from magneto.hf.auto_map import SavedWithModule, auto_map
from magneto.vision.batches import Transform
from magneto.vision.decoding import PixelPicture, orientation, rgb, turned
from magneto.vision.segmenter import classes_of
from magneto.vision.transforms import CentreCrop, Reading, fitted, from_image
from magneto.vision_language.samples import WholeImage

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


class PictureProcessor(SavedWithModule, BaseImageProcessor):
    """Makes an array of each picture, and one of them all."""

    model_input_names = ["pixel_values"]  # noqa: RUF012

    def __init__(self, channels: int = 3, normalisation: str = "half", **others: Any) -> None:
        """Take the form in which a model reads images.

        Args:
            channels: 1 for grey, 3 for colours.
            normalisation: One of `magneto.vision.transforms.NORMALISATIONS`.
            **others: Of transformers' class.

        Raises:
            ValueError: For another number of channels.
        """
        if channels not in MODES:
            raise ValueError(f"pictures have 1 or 3 channels, not {channels}")
        others["auto_map"] = auto_map({"AutoImageProcessor": type(self).__name__})
        super().__init__(**others)
        self.channels, self.normalisation = channels, normalisation

    def preprocess(self, images: Any, return_tensors: str | None = None, **_: Any) -> BatchFeature:  # type: ignore[override]
        """Return `pixel_values`, (batch, channels, height, width).

        Args:
            images: A picture of Pillow or an array of bytes, (height, width) or (height, width,
                3); or a sequence of them, or an array (batch, height, width, 3).
            return_tensors: "pt" or "np".

        Raises:
            TypeError: For an array of another type.
            ValueError: For pictures that have several sizes when they are read.
        """
        found = [self.values(pixels_of(picture)) for picture in pictures_of(images)]
        if len({values.shape for values in found}) > 1:
            raise ValueError("pictures of several sizes: give one at a time")
        return BatchFeature({"pixel_values": np.stack(found)}, tensor_type=return_tensors)

    def values(self, pixels: np.ndarray) -> np.ndarray:
        """Return what the model reads of a picture's pixels (height, width, 3)."""
        raise NotImplementedError


class MagnetoImageProcessor(PictureProcessor):
    """Does to pictures what is done to a run's validation images: resize, cut out, normalise."""

    def __init__(
        self,
        image_size: int = 224,
        channels: int = 3,
        normalisation: str = "half",
        resize: int | None = None,
        **others: Any,
    ) -> None:
        """Take the form in which a model reads images; see `PictureProcessor`.

        Args:
            image_size: Height and width in pixels.
            channels: Of the images.
            normalisation: Of their pixels.
            resize: Shorter side to which a picture is resized before its middle is cut out; None
                for `image_size`.
            **others: Of transformers' class.
        """
        super().__init__(channels, normalisation, **others)
        self.image_size, self.resize = image_size, resize

    def values(self, pixels: np.ndarray) -> np.ndarray:
        """Return what the model reads of a picture's pixels (height, width, 3)."""
        reading = Reading(self.image_size, self.channels, self.normalisation)
        return self.transform(reading)(PixelPicture(pixels), np.random.default_rng(0))

    def transform(self, reading: Reading) -> Transform:
        """Return what is done to a picture."""
        return CentreCrop(reading, self.resize or self.image_size)


class MagnetoWholeImageProcessor(MagnetoImageProcessor):
    """Makes all of a picture a square, as fine-tuned models read it: nothing is cut off."""

    def __init__(
        self,
        image_size: int = 224,
        channels: int = 3,
        normalisation: str = "half",
        **others: Any,
    ) -> None:
        """Take the form in which a model reads images; see `MagnetoImageProcessor`."""
        others.pop("resize", None)
        super().__init__(image_size, channels, normalisation, **others)

    def transform(self, reading: Reading) -> Transform:
        """Return what is done to a picture."""
        return WholeImage(reading)


class MagnetoSegmentationProcessor(PictureProcessor):
    """Resizes pictures as validation images are, keeping their ratio, and normalises them."""

    def __init__(
        self,
        channels: int = 3,
        normalisation: str = "half",
        fit: Sequence[int] | None = None,
        **others: Any,
    ) -> None:
        """Take the form in which a model reads images; see `PictureProcessor`.

        Args:
            channels: Of the images.
            normalisation: Of their pixels.
            fit: Longer and shorter side that a picture is made to fit in; None keeps its size.
            **others: Of transformers' class.
        """
        super().__init__(channels, normalisation, **others)
        self.fit = None if fit is None else tuple(fit)

    def values(self, pixels: np.ndarray) -> np.ndarray:
        """Return what the model reads of a picture's pixels (height, width, 3)."""
        fit = None if self.fit is None else (self.fit[0], self.fit[1])
        return Reading(0, self.channels, self.normalisation).normalise(fitted(pixels, fit))

    def post_process_semantic_segmentation(
        self, outputs: Any, target_sizes: Sequence[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """Return the class of each pixel of each picture, int64 (height, width).

        Args:
            outputs: The model's.
            target_sizes: Height and width of each picture; None for those of the logits. Logits are
                resized to it before the classes are chosen.
        """
        sizes = target_sizes or [outputs.logits.shape[2:]] * len(outputs.logits)
        return [
            classes_of(logits, torch.Size(int(side) for side in size))
            for logits, size in zip(outputs.logits, sizes, strict=True)
        ]


class MagnetoVisionLanguageProcessor(SavedWithModule, ProcessorMixin):
    """An image processor and a tokenizer.

    Texts are put together as in training, `<s> words </s>`, padded to the longest and cut to the
    length that the model reads.
    """

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, **others: Any) -> None:
        """Take both.

        Args:
            image_processor: A `MagnetoImageProcessor`.
            tokenizer: Of transformers.
            **others: Of transformers' class.
        """
        super().__init__(image_processor, tokenizer, **others)
        self.auto_map = auto_map({"AutoProcessor": type(self).__name__})

    def __call__(  # type: ignore[override]
        self,
        images: Any = None,
        text: str | Sequence[str] | None = None,
        return_tensors: str | None = "pt",
        **_: Any,
    ) -> BatchFeature:
        """Return `pixel_values`, `input_ids` and `attention_mask`, of what is given.

        Args:
            images: A picture, a list or an array of them, or a list of lists: the pictures of each
                statement.
            text: A text, or a list of them.
            return_tensors: "pt" or "np".
        """
        made: dict[str, Any] = {}
        if images is not None:
            groups = images if isinstance(images, Sequence) and is_sequence(images[0]) else []
            pictures = [one for group in groups for one in group] if groups else images
            pixels = self.image_processor(pictures, return_tensors=return_tensors)["pixel_values"]
            if groups:
                pixels = pixels.reshape(len(groups), -1, *pixels.shape[1:])
            made["pixel_values"] = pixels
        if text is not None:
            texts = [text] if isinstance(text, str) else list(text)
            found = self.tokenizer(
                texts, padding=True, truncation=True, return_tensors=return_tensors
            )
            made |= {name: found[name] for name in ("input_ids", "attention_mask")}
        return BatchFeature(made)

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any
    ) -> list[str]:
        """Write processor_config.json, preprocessor_config.json and the tokenizer's files."""
        self.image_processor.save_pretrained(save_directory)
        return super().save_pretrained(save_directory, push_to_hub, **kwargs)
