"""The `model` and `data` sections of recipes of images. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magneto.nn.config import Grid, TransformerConfig

NAMES = ("digits",)


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
    def grid(self) -> Grid:
        """The patches row by row, after the class token if there is one."""
        side = self.image_size // self.patch_size
        return Grid(side, side, prefix=int(self.class_token == "learned"))

    @property
    def length(self) -> int:
        """Vectors the encoder reads: patches, and the class token if there is one."""
        return self.patches + (self.class_token == "learned")


@dataclass(frozen=True, kw_only=True)
class ImageDataConfig:
    """Labelled images: the `data` section of a recipe.

    Attributes:
        source: builtin:digits, 1797 handwritten digits of 8 x 8 pixels (UCI, by scikit-learn).
        validation_fraction: Share of images held out, drawn by the recipe's seed.
    """

    source: str = "builtin:digits"
    validation_fraction: float = 0.2

    def __post_init__(self) -> None:
        if self.source.removeprefix("builtin:") not in NAMES:
            raise ValueError(f"no image source {self.source!r}: there is builtin:digits")
        if not 0 < self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction must be in (0, 1), not {self.validation_fraction}"
            )
