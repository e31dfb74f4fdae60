"""Image classifiers: patches in, an encoder, the mean of its features to the classes."""

from __future__ import annotations

from dataclasses import dataclass

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
    """

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    classes: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % self.patch_size:
            raise ValueError(
                f"patch_size ({self.patch_size}) must divide image_size ({self.image_size})"
            )
        if self.positions == "learned" and self.max_length < self.patches:
            raise ValueError(f"max_length must be at least {self.patches}, the number of patches")

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return (self.image_size // self.patch_size) ** 2


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


class ImageClassifier(nn.Module):
    """Patches, encoder, mean over patches, a head drawn small: the first loss is ln classes."""

    def __init__(self, config: ImageClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = PatchEmbedding(config.channels, config.patch_size, config.width)
        self.encoder = Encoder(config)
        self.head = nn.Linear(config.width, config.classes)
        nn.init.normal_(self.head.weight, std=0.001)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to logits (batch, classes)."""
        return self.head(self.encoder(self.embedding(images)).mean(dim=1))
