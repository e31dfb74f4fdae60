"""What a head reads of images and texts: one vector of each, out of all their features.

Every module here takes the features of a batch, of both modalities, with its samples. Which are
used is said by a model's `pooling`; see `magneto.vision_language.config`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from magneto.vision_language.samples import Samples


class FirstOfImage(nn.Module):
    """The features of each image's class token."""

    def forward(self, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
        """(vision tokens, width) and (language tokens, width) to (images, width)."""
        return vision.index_select(0, samples.image_starts)


class MeanOfImage(nn.Module):
    """The mean of each image's patches, its class token left out.

    Args:
        image_tokens: Vision tokens of an image.
    """

    def __init__(self, image_tokens: int) -> None:
        super().__init__()
        self.image_tokens = image_tokens

    def forward(self, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
        """(vision tokens, width) and (language tokens, width) to (images, width)."""
        return vision.unflatten(0, (-1, self.image_tokens))[:, 1:].mean(dim=1)


class FirstOfText(nn.Module):
    """The features of each text's `<s>`."""

    def forward(self, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
        """(vision tokens, width) and (language tokens, width) to (texts, width)."""
        return language.index_select(0, samples.text_starts)


class MeanOfText(nn.Module):
    """The mean of each text's tokens, of `<s>` and `</s>` too."""

    def forward(self, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
        """(vision tokens, width) and (language tokens, width) to (texts, width)."""
        starts, ends = samples.text_starts[:, None], samples.text_ends[:, None]
        places = torch.arange(len(language), device=language.device)
        own = (places >= starts) & (places <= ends)
        # A product, since on a GPU sums by index are added in any order.
        return own.to(language.dtype) @ language / (ends - starts + 1).to(language.dtype)


class MaskOfText(nn.Module):
    """The features of the `<mask>` that stands before each text's `</s>`."""

    def forward(self, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
        """(vision tokens, width) and (language tokens, width) to (texts, width)."""
        return language.index_select(0, samples.text_ends - 1)


class PairPooling(nn.Module):
    """What is read of each pair of image and text: the vectors of some parts, in a row.

    Args:
        parts: At least one of the modules above.
    """

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
        """(vision tokens, width) and (language tokens, width) to (pairs, parts * width)."""
        read = torch.cat([part(vision, language, samples) for part in self.parts], dim=-1)
        # A modality may not be read. The empty sum gives what the top layer makes of it gradients
        # of zeros, not none, for which ranks would wait.
        return read + vision[:0].sum() + language[:0].sum()
