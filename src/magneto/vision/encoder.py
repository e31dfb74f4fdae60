"""The encoder over patches that all models of images are built on, and a classifier."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from magneto.nn.embedding import ClassToken, ConvolutionalStem, PatchEmbedding
from magneto.nn.init import NormalLinear
from magneto.nn.transformer import Encoder
from magneto.vision.config import ImageClassifierConfig, ImageEncoderConfig

STEMS = {"linear": PatchEmbedding, "convolutions": ConvolutionalStem}


class ImageEncoder(nn.Module):
    """Patches, a class token before them if there is one, and the stack."""

    config: Any  # that of the model which is built on it

    def __init__(self, config: ImageEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = STEMS[config.stem](config.channels, config.patch_size, config.width)
        self.class_token = ClassToken(config.width) if config.prefix else nn.Identity()
        self.encoder = Encoder(config)

    def embed(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to what the stack reads, (batch, length, width)."""
        return self.class_token(self.embedding(images))


def new_head(config: ImageClassifierConfig) -> nn.Module:
    """Draw a head small: the first loss is ln classes.

    Raises:
        ValueError: If the configuration leaves the classes open.
    """
    if config.classes is None:
        raise ValueError("classes is not set")
    return NormalLinear(config.width, config.classes, bias=True, std=0.001)


class ImageClassifier(ImageEncoder):
    """An encoder, its features pooled, a head drawn small: the first loss is ln classes."""

    def __init__(self, config: ImageClassifierConfig) -> None:
        super().__init__(config)
        # The parameters are the same wherever the last norm stands.
        self.pooled_norm: nn.Module = nn.Identity()
        if config.pooling == "mean_then_norm":
            self.pooled_norm, self.encoder.final_norm = self.encoder.final_norm, nn.Identity()
        self.pooled = slice(0, 1) if config.pooling == "first" else slice(config.prefix, None)
        self.head = new_head(config)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to logits (batch, classes)."""
        features = self.encoder(self.embed(images))
        return self.head(self.pooled_norm(features[:, self.pooled].mean(dim=1)))
