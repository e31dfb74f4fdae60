"""From pictures and texts to what our models of vision and language read, exactly as a run does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from transformers import ProcessorMixin
from transformers.image_processing_base import BatchFeature

from magneto.hf.auto_map import WithoutCopies, auto_map, write_module
from magneto.hf.image_processor import MagnetoImageProcessor, is_sequence
from magneto.vision.batches import Transform
from magneto.vision.transforms import Reading
from magneto.vision_language.whole_images import WholeImage


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


class MagnetoVisionLanguageProcessor(WithoutCopies, ProcessorMixin):
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
        self.auto_map = auto_map(AutoProcessor=type(self).__name__)

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
        write_module(save_directory)
        self.image_processor.save_pretrained(save_directory)
        return super().save_pretrained(save_directory, push_to_hub, **kwargs)
