"""Image classifiers: patches in, an encoder, its features pooled, the classes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from magneto.nn.config import TransformerConfig
from magneto.nn.transformer import Encoder


@dataclass(frozen=True, kw_only=True)
class ImageClassifierConfig(TransformerConfig):
    """An encoder over patches.

    Attributes:
        image_size: Height and width of the image, in pixels; a multiple of `patch_size`.
        patch_size: Height and width of a patch.
        channels: Of the image.
        classes: Of the answer.
        class_token: "learned" puts a learned vector before the patches.
        pooling: What the head sees: the "mean" of the patches' features; the same mean of features
            that the stack's last norm has not seen, with that norm after it ("mean_then_norm", as
            BEiT-3 does); or the "first" feature, the class token's (as ViT does).
    """

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    classes: int = 1000
    class_token: Literal["none", "learned"] = "none"
    pooling: Literal["mean", "mean_then_norm", "first"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % self.patch_size:
            raise ValueError(
                f"patch_size ({self.patch_size}) must divide image_size ({self.image_size})"
            )
        if self.positions == "learned" and self.max_length < self.length:
            raise ValueError(
                f"max_length must be at least {self.length}, the patches and the class token if any"
            )
        if self.pooling == "first" and self.class_token == "none":
            raise ValueError("pooling 'first' needs class_token 'learned'")
        if self.pooling == "mean_then_norm" and self.row.final == "none":
            raise ValueError(f"pooling 'mean_then_norm' needs a placement with a last norm, "
                             f"which {self.row.name!r} has not")  # fmt: skip

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def length(self) -> int:
        """Vectors the encoder reads: patches, and the class token if there is one."""
        return self.patches + (self.class_token == "learned")


class PatchEmbedding(nn.Module):
    """A linear map of each patch; Xavier, never scaled by a placement's gain."""

    def __init__(self, channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch_size, stride=patch_size)
        nn.init.xavier_uniform_(self.proj.weight.view(width, -1))
        nn.init.zeros_(self.proj.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, patches, width), row by row."""
        return self.proj(images).flatten(2).transpose(1, 2)


class ClassToken(nn.Module):
    """A learned vector before the patches; zero at first, as in ViT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, patches, width) to (batch, 1 + patches, width)."""
        return torch.cat((self.vector.expand(len(x), 1, -1), x), dim=1)


class ImageClassifier(nn.Module):
    """Patches, encoder, pooling, a head drawn small: the first loss is ln classes."""

    def __init__(self, config: ImageClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = PatchEmbedding(config.channels, config.patch_size, config.width)
        learned = config.class_token == "learned"
        self.class_token = ClassToken(config.width) if learned else nn.Identity()
        self.encoder = Encoder(config)
        # The parameters are the same wherever the last norm stands.
        self.pooled_norm: nn.Module = nn.Identity()
        if config.pooling == "mean_then_norm":
            self.pooled_norm, self.encoder.final_norm = self.encoder.final_norm, nn.Identity()
        self.pooled = slice(0, 1) if config.pooling == "first" else slice(int(learned), None)
        self.head = nn.Linear(config.width, config.classes)
        nn.init.normal_(self.head.weight, std=0.001)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to logits (batch, classes)."""
        features = self.encoder(self.class_token(self.embedding(images)))
        return self.head(self.pooled_norm(features[:, self.pooled].mean(dim=1)))
