"""The `model` and `data` sections of recipes of masked data modelling. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from magneto.config import ConfigError, problem_lines
from magneto.vision.config import BUILTIN_TOKENIZER, AugmentationConfig
from magneto.vision_language.config import BUILTIN, PairDataConfig, VisionLanguageConfig


@dataclass(frozen=True, kw_only=True)
class MaskedDataModelConfig(VisionLanguageConfig):
    """The encoder, and a head for each modality that guesses what is hidden.

    Attributes:
        codes: Of the image tokenizer; None for as many as it has.
        loss_chunk: Rows of logits that exist at once in the loss; 0 for all.
    """

    codes: int | None = None
    loss_chunk: int = 1024

    def __post_init__(self) -> None:
        wrong = []
        try:
            super().__post_init__()
        except ValueError as error:
            wrong += problem_lines(error)
        if self.codes is not None and self.codes < 2:
            wrong.append(f"codes must be 2 or more, not {self.codes}")
        if self.final_norm == "none":
            wrong.append("final_norm must be placement: the heads have no norm of their own")
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class MaskedDataConfig(PairDataConfig):
    """Images, texts and pairs of both: the `data` section of a recipe.

    `source` and what goes with it are of the pairs.

    Attributes:
        batch_shares: Parts of a batch that are images, texts and pairs (thirds in the paper).
        image_source: Images without a text: builtin:shapes, or what an image-modelling recipe
            takes. None takes those of the pairs.
        image_validation_source: As `validation_source`.
        image_augmentation: Of these images in training.
        text_source: Texts without an image: builtin:shapes, or what a masked-lm recipe takes. None
            takes those of the pairs.
        text_validation_source: As `validation_source`.
        text_length: Tokens of such a text, packed from documents; None for the model's max_length.
        paired_text_length: Longest text of a pair in tokens; what is longer is cut. None for the
            model's max_length.
        image_tokenizer: The directory of a run of an image-tokenizer recipe, whose codes are to be
            guessed; or builtin:patches, k-means of the images' own patches.
        image_mask_ratio: Share of the patches that is hidden, of every image, in blocks.
        text_mask_ratio: Share of the tokens that is hidden, of texts alone.
        paired_text_mask_ratio: Likewise of texts with an image.
        masking: Which tokens are hidden: single ones, whole words, or spans.
        corruption: What stands in a hidden token's place: always the mask, or by BERT's rule 80 %
            mask, 10 % another token, 10 % itself. The paper does not say.
    """

    batch_shares: tuple[int, int, int] = (1, 1, 1)
    image_source: str | None = BUILTIN
    image_validation_source: str | None = None
    image_augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    text_source: str | None = BUILTIN
    text_validation_source: str | None = None
    text_length: int | None = None
    paired_text_length: int | None = None
    image_tokenizer: str = BUILTIN_TOKENIZER
    image_mask_ratio: float = 0.4
    text_mask_ratio: float = 0.15
    paired_text_mask_ratio: float = 0.5
    masking: Literal["token", "word", "span"] = "token"
    corruption: Literal["mask", "bert"] = "mask"

    def __post_init__(self) -> None:
        wrong = []
        try:
            super().__post_init__()
        except ValueError as error:
            wrong += problem_lines(error)
        if min(self.batch_shares) < 1:
            wrong.append(f"batch_shares must be 1 or more each, not {self.batch_shares}")
        for name in ("image_mask_ratio", "text_mask_ratio", "paired_text_mask_ratio"):
            if not 0 < getattr(self, name) < 1:
                wrong.append(f"{name} must be in (0, 1), not {getattr(self, name)}")
        for name in ("text_length", "paired_text_length"):
            length = getattr(self, name)
            if length is not None and length < 3:
                wrong.append(f"{name} must be 3 or more, `<s>` and `</s>` included, not {length}")
        if not self.image_tokenizer:
            wrong.append(f"image_tokenizer must be a run's directory or {BUILTIN_TOKENIZER}")
        for name in ("augmentation", "image_augmentation"):
            if getattr(self, name).erasing or getattr(self, name).repeats != 1:
                wrong.append(f"{name}: erasing must be 0 (what is erased has no code), repeats 1")
        if wrong:
            raise ConfigError(wrong)
