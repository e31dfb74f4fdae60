"""From pictures to what our segmentation models read, and from their logits to classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.image_processing_base import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

from magneto.hf.auto_map import WithoutCopies, auto_map, write_module
from magneto.hf.image_processor import MODES, pictures_of, pixels_of
from magneto.vision.segmentation.data import fitted
from magneto.vision.segmentation.inference import classes_of
from magneto.vision.transforms import Reading


class MagnetoSegmentationProcessor(WithoutCopies, BaseImageProcessor):
    """Resizes pictures as validation images are, keeping their ratio, and normalises them."""

    model_input_names = ["pixel_values"]  # noqa: RUF012

    def __init__(
        self,
        channels: int = 3,
        normalisation: str = "half",
        fit: Sequence[int] | None = None,
        **others: Any,
    ) -> None:
        """Take the form in which a model reads images.

        Args:
            channels: 1 for grey, 3 for colours.
            normalisation: One of `magneto.vision.transforms.NORMALISATIONS`.
            fit: Longer and shorter side that a picture is made to fit in; None keeps its size.
            **others: Of transformers' class.

        Raises:
            ValueError: For another number of channels.
        """
        if channels not in MODES:
            raise ValueError(f"pictures have 1 or 3 channels, not {channels}")
        others["auto_map"] = auto_map(AutoImageProcessor="MagnetoSegmentationProcessor")
        super().__init__(**others)
        self.channels, self.normalisation = channels, normalisation
        self.fit = None if fit is None else tuple(fit)

    def preprocess(self, images: Any, return_tensors: str | None = None, **_: Any) -> BatchFeature:  # type: ignore[override]
        """Return `pixel_values`, (batch, channels, height, width).

        Args:
            images: A picture of Pillow or an array of bytes, (height, width) or (height, width,
                3); or a sequence of them, of one size; or an array (batch, height, width, 3).
            return_tensors: "pt" or "np".

        Raises:
            TypeError: For an array of another type.
            ValueError: For pictures of several sizes.
        """
        found = [self._values(picture) for picture in pictures_of(images)]
        if len({values.shape for values in found}) > 1:
            raise ValueError("pictures of several sizes: give one at a time")
        return BatchFeature({"pixel_values": np.stack(found)}, tensor_type=return_tensors)

    def _values(self, picture: Any) -> np.ndarray:
        pixels = pixels_of(picture)
        fit = None if self.fit is None else (self.fit[0], self.fit[1])
        reading = Reading(0, self.channels, self.normalisation)
        return reading.normalise(fitted(pixels, fit))

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

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any
    ) -> list[str]:
        """Write preprocessor_config.json, and the module that its `auto_map` names."""
        write_module(save_directory)
        return super().save_pretrained(save_directory, push_to_hub, **kwargs)
