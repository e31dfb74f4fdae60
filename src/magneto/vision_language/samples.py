"""What a loader makes of texts and images: tokens, packed, and squares that lose nothing.

A text may speak of what is at an edge of its image. So the whole image is made a square and nothing
is cut off, as BEiT-3's fine-tuning reads validation images, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from magneto.data.stream import to_device
from magneto.data.tokenizer import Tokenizer
from magneto.nn.multiway import Packing, pack
from magneto.vision.augmentation import Augmentation
from magneto.vision.config import AugmentationConfig
from magneto.vision.decoding import Picture, PixelPicture
from magneto.vision.transforms import Box, Reading, cut


@dataclass(frozen=True)
class Samples:
    """The texts of a batch, and how they stand beside its images.

    Attributes:
        token_ids: (language tokens,), texts of pairs, then texts alone.
        token_positions: (language tokens,), 0 for each text's first token.
        packing: Of images alone, pairs and texts alone.
        image_starts: (images,) number of each image's class token among the vision tokens.
        text_starts: (texts,) number of each text's first token, `<s>`, among the language tokens.
    """

    token_ids: Tensor
    token_positions: Tensor
    packing: Packing
    image_starts: Tensor
    text_starts: Tensor

    @property
    def text_ends(self) -> Tensor:
        """(texts,) number of each text's last token, `</s>`, among the language tokens."""
        starts = self.text_starts
        after = torch.cat((starts[1:], starts.new_full((1,), len(self.token_ids))))
        return after[: len(starts)] - 1

    def to(self, device: torch.device) -> Samples:
        """Return them on a device."""
        return to_device(self, device)


@dataclass(frozen=True)
class MaskedSamples:
    """What is hidden in a batch.

    Attributes:
        samples: Images alone, pairs and texts alone; hidden words are masked in it.
        hidden: Boolean, (images, patches): True where a patch is hidden.
        patches: (hidden patches,) image * patches of an image + patch; of images alone come first.
        words: (hidden words,) number of each among the language tokens; of pairs come first.
        alone_patches: How many of the hidden patches are of images alone.
        paired_words: How many of the hidden words are of pairs.
    """

    samples: Samples
    hidden: Tensor
    patches: Tensor
    words: Tensor
    alone_patches: int
    paired_words: int


def join_samples(
    image_tokens: int,
    images: int = 0,
    paired: Sequence[np.ndarray] = (),
    alone: Sequence[np.ndarray] = (),
    length: int | None = None,
) -> Samples:
    """Pack the samples of a batch, on the CPU.

    Args:
        image_tokens: Vision tokens of an image.
        images: How many images there are without a text.
        paired: Tokens of each text that has an image, int64; see `frame_text`.
        alone: Of each text without one.
        length: Of a row; by default that of the longest sample.

    Raises:
        ValueError: If a text has no tokens.
    """
    texts = [*paired, *alone]
    lengths = [len(text) for text in texts]
    if not all(lengths):
        raise ValueError("a text has no tokens, not even <s> and </s>")
    vision = [image_tokens] * (images + len(paired)) + [0] * len(alone)
    positions = [np.arange(count) for count in lengths]
    return Samples(
        token_ids=torch.from_numpy(concatenated(texts)),
        token_positions=torch.from_numpy(concatenated(positions)),
        packing=pack(vision, [0] * images + lengths, length),
        image_starts=first_tokens(vision[: images + len(paired)]),
        text_starts=first_tokens(lengths),
    )


def concatenated(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return arrays of numbers one after another, int64; none give an empty one."""
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64, copy=False)


def first_tokens(lengths: Sequence[int]) -> Tensor:
    """Return the number of each sample's first token in a packed tensor, (samples,), int64."""
    counts = torch.tensor(lengths, dtype=torch.long)
    return counts.cumsum(0) - counts


def frame_text(
    tokens: Sequence[int], tokenizer: Tokenizer, max_length: int, closing: Sequence[int] = ()
) -> np.ndarray:
    """Return `<s>`, a text's tokens and `</s>`, int64; of what is too long the end is cut.

    Tokens that are closing stand between the text and `</s>`, and are not cut.
    """
    kept = tokens[: max_length - 2 - len(closing)]
    return np.array([tokenizer.begin, *kept, *closing, tokenizer.end], np.int64)


def squared(picture: Picture, size: int) -> np.ndarray:
    """Return all of a picture, resized, as uint8 (size, size, channels)."""
    return cut(picture, Box(0, 0, picture.height, picture.width), size)


@dataclass(frozen=True)
class WholeImage:
    """What images go through.

    Attributes:
        reading: The form in which the model reads them.
        augmentation: Of training images: "centre" is all of the image here, "random_resized" cuts
            out a part. None draws nothing.
    """

    reading: Reading
    augmentation: AugmentationConfig | None = None

    def __call__(self, picture: Picture, random: np.random.Generator) -> np.ndarray:
        """Transform a picture."""
        if self.augmentation is None:
            return self.reading.normalise(squared(picture, self.reading.size))
        if self.augmentation.crop == "centre":
            picture = PixelPicture(squared(picture, self.reading.size))
        return Augmentation(self.reading, self.augmentation)(picture, random)
