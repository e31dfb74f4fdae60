"""Packing of texts and images into batches, and resizing of images.

Images are resized to a square without cropping, because a text may describe the image's edge.
BEiT-3's fine-tuning also resizes validation images without cropping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from magneto.data.stream import to_device
from magneto.data.tokenizer import Tokenizer
from magneto.nn.multiway import Packing, pack
from magneto.vision.augmentation import Augmentation
from magneto.vision.config import AugmentationConfig
from magneto.vision.decoding import Picture, PixelPicture
from magneto.vision.transforms import Box, InputFormat, crop_and_resize


@dataclass(frozen=True)
class Samples:
    """Texts of a batch, and the packing of texts and images.

    A sample is an image, an image-text pair, or a text.
    """

    token_ids: Tensor
    """Tokens of all texts (language tokens,). Texts with an image come before texts without an
    image."""
    token_positions: Tensor
    """Position of each token in its text (language tokens,). The first token has position 0."""
    packing: Packing
    """Packing of the samples. The order is: images without a text, image-text pairs, texts without
    an image."""
    image_starts: Tensor
    """Index of each image's class token among the vision tokens (images,)."""
    text_starts: Tensor
    """Index of each text's `<s>` among the language tokens (texts,)."""

    @property
    def text_ends(self) -> Tensor:
        """Index of each text's `</s>` among the language tokens (texts,)."""
        starts = self.text_starts
        after = torch.cat((starts[1:], starts.new_full((1,), len(self.token_ids))))
        return after[: len(starts)] - 1

    def to(self, device: torch.device) -> Samples:
        return to_device(self, device)


@dataclass(frozen=True)
class MaskedSamples:
    """Samples of a batch with masked patches and words."""

    samples: Samples
    """Samples in which masked words are already replaced."""
    hidden: Tensor
    """True for masked patches, boolean (images, patches)."""
    patches: Tensor
    """Indices (image * patches per image + patch) of masked patches. Images without a text come
    first."""
    words: Tensor
    """Indices of masked words among the language tokens. Words of image-text pairs come first."""
    alone_patches: int
    """Number of masked patches in images without a text."""
    paired_words: int
    """Number of masked words in image-text pairs."""


def join_samples(
    image_tokens: int,
    images: int = 0,
    paired: Sequence[np.ndarray] = (),
    alone: Sequence[np.ndarray] = (),
) -> Samples:
    """Pack the samples of a batch on the CPU.

    The order is: images without a text, image-text pairs, texts without an image. `images` is
    the number of images without a text. `paired` contains the tokens of texts with an image.
    `alone` contains the tokens of texts without an image. The tokens come from `frame_text`.
    """
    texts = [*paired, *alone]
    lengths = [len(text) for text in texts]
    if not all(lengths):
        raise ValueError("a text has no tokens: each text needs <s> and </s>")
    vision = [image_tokens] * (images + len(paired)) + [0] * len(alone)
    positions = [np.arange(count) for count in lengths]
    return Samples(
        token_ids=torch.from_numpy(concatenated(texts)),
        token_positions=torch.from_numpy(concatenated(positions)),
        packing=pack(vision, [0] * images + lengths),
        image_starts=first_tokens(vision[: images + len(paired)]),
        text_starts=first_tokens(lengths),
    )


def concatenated(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64, copy=False)


def first_tokens(lengths: Sequence[int]) -> Tensor:
    counts = torch.tensor(lengths, dtype=torch.long)
    return counts.cumsum(0) - counts


def frame_text(
    tokens: Sequence[int], tokenizer: Tokenizer, max_length: int, suffix: Sequence[int] = ()
) -> np.ndarray:
    """Return `<s>`, the tokens, `suffix` and `</s>`, int64.

    The tokens are truncated so that the result has at most `max_length` entries.
    """
    kept = tokens[: max_length - 2 - len(suffix)]
    return np.array([tokenizer.begin, *kept, *suffix, tokenizer.end], np.int64)


@dataclass(frozen=True)
class WholeImage:
    """Transform for images that have texts. It never takes a centre crop.

    If `augmentation.crop` is "centre", the whole image is resized to a square, and then augmented.
    If `augmentation.crop` is "random_resized", a random rectangle is resized to a square, and then
    augmented.
    """

    input_format: InputFormat
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)

    def __call__(self, picture: Picture, random: np.random.Generator) -> np.ndarray:
        if self.augmentation.crop == "centre":
            whole = Box(0, 0, picture.height, picture.width)
            picture = PixelPicture(crop_and_resize(picture, whole, self.input_format.size))
        return Augmentation(self.input_format, self.augmentation)(picture, random)
