"""The encoder that every recipe of vision and language has, as a configuration. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magneto.config import ConfigError, problem_lines
from magneto.nn.config import Grid, MultiwayConfig

# Built-in sets: magneto.vision_language.scenes.
BUILTIN = "builtin:shapes"


@dataclass(frozen=True, kw_only=True)
class VisionLanguageConfig(MultiwayConfig):
    """A Multiway Transformer over the patches of images and the tokens of texts.

    Attributes:
        image_size: Height and width of an image, in pixels; a multiple of `patch_size`.
        patch_size: Height and width of a patch.
        channels: Of the images.
        vocab_size: Tokens of text; None for as many as the tokenizer has.
        max_length: Longest text in tokens, `<s>` and `</s>` included (64 in BEiT-3's fine-tuning).
        embedding_scale: "sqrt_width" multiplies the vectors of tokens, N(0, 1/width), to unit
            variance, which patches have; "none" as in the released BEiT-3.
        final_norm: The norm on top of the stack: the placement's, or "none", as in BEiT-3's
            fine-tuning on questions and on pairs of images, whose heads have norms of their own.
    """

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    vocab_size: int | None = None
    max_length: int = 64
    embedding_scale: Literal["none", "sqrt_width"] = "sqrt_width"
    final_norm: Literal["placement", "none"] = "placement"

    def __post_init__(self) -> None:
        wrong = []
        try:
            super().__post_init__()
        except ValueError as error:
            wrong += problem_lines(error)
        for name in ("image_size", "patch_size", "channels"):
            if getattr(self, name) < 1:
                wrong.append(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.patch_size > 0 and self.image_size % self.patch_size:
            wrong.append(f"patch_size ({self.patch_size}) must divide image_size "
                         f"({self.image_size})")  # fmt: skip
        if self.max_length < 3:
            wrong.append("max_length must be 3 or more: a text is <s>, a word or more, </s>; "
                         f"not {self.max_length}")  # fmt: skip
        if wrong:
            raise ConfigError(wrong)

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def image_tokens(self) -> int:
        """Vision tokens of one image: its class token, then its patches."""
        return 1 + self.patches

    @property
    def image_grid(self) -> Grid:
        """The patches row by row, after the class token."""
        side = self.image_size // self.patch_size
        return Grid(side, side, prefix=1)


@dataclass(frozen=True, kw_only=True)
class FineTunedConfig(VisionLanguageConfig):
    """What the models have in common that begin with a pre-trained encoder.

    Attributes:
        pretrained: Directory of a run of vision and language whose embeddings and layers to begin
            with, and whose tokenizer and normalisation of images are used; "{placement}" in it
            stands for the placement's name. None begins from scratch.
    """

    pretrained: str | None = None
