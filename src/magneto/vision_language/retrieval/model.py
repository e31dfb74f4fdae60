"""Images and texts as vectors of one space, in which what belongs together is near."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.init import NORMAL_STD, NormalLinear
from magneto.vision_language.config import ImageTextRetrieverConfig
from magneto.vision_language.model import (
    FirstOfImage,
    FirstOfText,
    MeanOfImage,
    MeanOfText,
    VisionLanguageEncoder,
)
from magneto.vision_language.samples import Samples

# Similarities are multiplied by no more (CLIP, arXiv 2103.00020).
MOST_SCALE = 100.0


class SimilarityScale(nn.Module):
    """What similarities are multiplied by: the exponential of a learnt number.

    Args:
        temperature: One divided by what it is at first.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.logarithm = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the first value."""
        nn.init.constant_(self.logarithm, -math.log(self.temperature))

    def forward(self) -> Tensor:
        """Return the scale, a scalar."""
        return self.logarithm.float().clamp(max=math.log(MOST_SCALE)).exp()


def embedded_parts(config: ImageTextRetrieverConfig) -> tuple[nn.Module, nn.Module]:
    """Return what reads the features of an image, and of a text."""
    parts = {
        "first": (FirstOfImage(), FirstOfText()),
        "mean": (MeanOfImage(config.image_tokens), MeanOfText()),
    }
    return parts[config.pooling]


class ImageTextRetriever(nn.Module):
    """An encoder over images alone and texts alone, and a linear head for each (BEiT-3).

    An image is the feature of its class token, a text that of its `<s>`; or means, see
    `ImageTextRetrieverConfig.pooling`.
    """

    def __init__(self, config: ImageTextRetrieverConfig) -> None:
        super().__init__()
        self.config = config
        width, outputs = config.width, config.embedding_width or config.width
        self.encoder = VisionLanguageEncoder(config)
        self.image_pooling, self.text_pooling = embedded_parts(config)
        self.vision_head = NormalLinear(width, outputs, bias=False, std=NORMAL_STD)
        self.language_head = NormalLinear(width, outputs, bias=False, std=NORMAL_STD)
        self.scale = SimilarityScale(config.temperature)

    def forward(self, images: Tensor, samples: Samples) -> tuple[Tensor, Tensor, Tensor]:
        """Embed images and texts; their numbers may differ.

        Args:
            images: (images, channels, height, width).
            samples: As many images alone, then texts alone.

        Returns:
            Vectors of length 1 of the images, (images, embedding_width), and of the texts, (texts,
            embedding_width), in float32; and what similarities are multiplied by, a scalar.
        """
        vision, language = self.encoder(
            images, samples.token_ids, samples.token_positions, samples.packing
        )
        first = self.vision_head(self.image_pooling(vision, language, samples))
        second = self.language_head(self.text_pooling(vision, language, samples))
        return F.normalize(first.float(), dim=-1), F.normalize(second.float(), dim=-1), self.scale()
