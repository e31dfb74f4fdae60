"""A head over a vision-language encoder that judges a statement about images."""

from __future__ import annotations

from torch import Tensor, nn

from magneto.nn.init import NORMAL_STD, NormalLinear
from magneto.vision_language.config import IMAGES, VisualReasonerConfig
from magneto.vision_language.model import (
    FirstOfImage,
    FirstOfText,
    MaskOfText,
    PairPooling,
    VisionLanguageEncoder,
)
from magneto.vision_language.samples import Samples

# Names of the two answers, in the order of their numbers.
ANSWERS = ("False", "True")


def statement_pooling(config: VisualReasonerConfig) -> PairPooling:
    """Return what reads the features of a statement and one image, (pairs, parts * width)."""
    parts = {
        "first": [FirstOfImage(), FirstOfText()],
        "mask_token": [MaskOfText()],
    }
    return PairPooling(parts[config.pooling])


class VisualReasoner(nn.Module):
    """The statement is read with each image by itself; the head reads all of them (BEiT-3).

    Of each pass it has the features of the image's class token and of the text's `<s>`, or others:
    see `VisualReasonerConfig.pooling`. Then 4 x width, a norm, 2 x width, a norm, GELU,
    two logits.
    """

    def __init__(self, config: VisualReasonerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = VisionLanguageEncoder(config)
        self.pooling = statement_pooling(config)
        std, inner = NORMAL_STD * config.head_scale, 2 * config.width
        inputs = len(self.pooling.parts) * config.width * IMAGES
        self.head = nn.Sequential(
            nn.LayerNorm(inputs, eps=config.norm_eps),
            NormalLinear(inputs, inner, bias=True, std=std),
            nn.LayerNorm(inner, eps=config.norm_eps),
            nn.GELU(),
            NormalLinear(inner, len(ANSWERS), bias=True, std=std),
        )

    def forward(self, images: Tensor, samples: Samples) -> Tensor:
        """Judge statements.

        Args:
            images: (statements * images, channels, height, width), those of a statement one after
                the other.
            samples: As many pairs: each image with its statement.

        Returns:
            Logits (statements, 2) of false and true.
        """
        vision, language = self.encoder(
            images, samples.token_ids, samples.token_positions, samples.packing
        )
        read = self.pooling(vision, language, samples)
        return self.head(read.unflatten(0, (-1, IMAGES)).flatten(1))
