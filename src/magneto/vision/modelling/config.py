"""The `model` and `data` sections of recipes of masked image modelling. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magneto.config import ConfigError, problem_lines
from magneto.vision.config import ImageDataConfig, ImageEncoderConfig

BUILTIN_TOKENIZER = "builtin:patches"


@dataclass(frozen=True, kw_only=True)
class ImageModelConfig(ImageEncoderConfig):
    """An encoder over patches, some of them hidden, that guesses the codes of the hidden ones.

    Attributes:
        codes: Of the tokenizer; None for as many as it has.
        class_token: "learned" by default, as in BEiT.
        aggregation_layer: Layers after which patches go to a second, small stack, which sees the
            class token of the last layer beside them and guesses the same codes, so that the class
            token has to sum up the image (patch aggregation, arXiv 2208.06366, section 3.2: 9 of 12
            layers, 21 of 24). None for no second guess.
        aggregation_depth: Layers of that stack.
        loss_chunk: Rows of logits that exist at once in the loss; 0 for all.
    """

    codes: int | None = None
    class_token: Literal["none", "learned"] = "learned"
    aggregation_layer: int | None = None
    aggregation_depth: int = 2
    loss_chunk: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = []
        if self.codes is not None and self.codes < 2:
            wrong.append(f"codes must be 2 or more, not {self.codes}")
        if self.aggregation_layer is not None:
            if not 1 <= self.aggregation_layer < self.layers:
                wrong.append(f"aggregation_layer must be 1 or more and below layers "
                             f"({self.layers}), not {self.aggregation_layer}")  # fmt: skip
            if self.class_token == "none":
                wrong.append("aggregation_layer needs class_token 'learned'")
        if self.aggregation_depth < 1:
            wrong.append(f"aggregation_depth must be 1 or more, not {self.aggregation_depth}")
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class ImageModellingDataConfig(ImageDataConfig):
    """Images, and what makes codes of them: the `data` section of a recipe.

    Attributes:
        image_tokenizer: The directory of a run of an image-tokenizer recipe, whose codes are to be
            guessed; or builtin:patches, k-means of the images' own patches.
        mask_ratio: Share of the patches that is hidden (BEiT v2 hides 75 of 196).
    """

    image_tokenizer: str = BUILTIN_TOKENIZER
    mask_ratio: float = 75 / 196

    def __post_init__(self) -> None:
        wrong = []
        try:
            super().__post_init__()
        except ValueError as error:
            wrong += problem_lines(error)
        if not 0 < self.mask_ratio < 1:
            wrong.append(f"mask_ratio must be in (0, 1), not {self.mask_ratio}")
        if not self.image_tokenizer:
            wrong.append(f"image_tokenizer must be a run's directory or {BUILTIN_TOKENIZER}")
        if wrong:
            raise ConfigError(wrong)
