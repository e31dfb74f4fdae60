"""The encoder that every recipe of vision and language has, as a configuration. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from magneto.config import ConfigError, problem_lines
from magneto.data.sources import check_builtin, parse_source
from magneto.nn.config import Grid, MultiwayConfig
from magneto.vision.config import AugmentationConfig

# Built-in sets: magneto.vision_language.scenes.
NAMES = ("shapes",)
BUILTIN = "builtin:shapes"
# Of a byte-level tokenizer: every byte, </s>, <s>, <pad> and <mask>.
LEAST_VOCABULARY = 260


@dataclass(frozen=True, kw_only=True)
class VisionLanguageConfig(MultiwayConfig):
    """A Multiway Transformer over the patches of images and the tokens of texts.

    Attributes:
        image_size: Height and width of an image, in pixels; a multiple of `patch_size`.
        patch_size: Height and width of a patch.
        channels: Of the images.
        vocab_size: Tokens of text; None for as many as the tokenizer has.
        max_length: Longest text in tokens, `<s>` and `</s>` included (64 in BEiT-3's fine-tuning).
        embedding_scale: "none" leaves the vectors of tokens as they are drawn, N(0, 1/width), as in
            the released BEiT-3; "sqrt_width" multiplies them to unit variance. Positions, of tokens
            and of patches, are drawn from N(0, 1/width) too; torchscale draws them from N(0, 1).
        final_norm: The norm on top of the stack: the placement's, or "none", as in BEiT-3's
            fine-tuning on questions, whose head has a norm of its own.
    """

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    vocab_size: int | None = None
    max_length: int = 64
    embedding_scale: Literal["none", "sqrt_width"] = "none"
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
    def ends_in_mask(self) -> bool:
        """Whether a `<mask>` stands behind each text's words, for the head to read."""
        return False

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


@dataclass(frozen=True, kw_only=True)
class PairPoolingConfig(FineTunedConfig):
    """What the models have in common whose head reads a question or a statement with its image.

    Attributes:
        pooling: Which features the head reads. "first": of the image's class token, and of a
            statement's `<s>` too (BEiT-3); "mask_token": of a `<mask>` that is put behind the
            words, as hidden words are guessed in pre-training.
    """

    pooling: Literal["first", "mask_token"] = "first"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ends_in_mask and self.max_length < 4:
            raise ConfigError([f"max_length must be 4 or more, not {self.max_length}: with pooling "
                               "mask_token a text is <s>, words, <mask>, </s>"])  # fmt: skip

    @property
    def ends_in_mask(self) -> bool:
        """Whether a `<mask>` stands behind each text's words, for the head to read."""
        return self.pooling == "mask_token"


@dataclass(frozen=True, kw_only=True)
class PairDataConfig:
    """Images with texts: the `data` section of a recipe. See docs/concepts/vision_language.md.

    Attributes:
        source: builtin:shapes, drawn scenes; a table (.jsonl, .json, .csv, .tsv, .parquet, or a
            folder of train.jsonl and validation.jsonl) of paths of images and their texts; tar
            shards of images and texts; or hf:NAME[:CONFIG[:SPLIT]].
        validation_source: Validate on all pairs of another source. None validates on the source's
            own validation split, or on pairs held out of its training split.
        validation_fraction: Share of images, chosen by a hash of their names, that is held out with
            all their texts where a source has no validation split.
        image_column: Column that has the image, or its path; None finds it.
        text_column: Column that has the text, or a list of texts; None finds it.
        id_column: Column that tells pairs apart; None tells them by image and text.
        image_folder: Folder that paths of images are relative to; None is that of the table.
        tokenizer: "bpe" (byte-level, learnt from the source's texts on first use), "bytes", or the
            path of a tokenizer.json or a SentencePiece .model.
        vocab_size: Of a "bpe" tokenizer, at most.
        normalisation: What the model reads: "half" is pixels from -1 to 1, as in BEiT-3 with texts;
            "imagenet" has the mean and standard deviation of ImageNet's pixels taken out.
        resize: Shorter side to which a validation image is resized before its middle is cut out;
            None resizes it to the model's image_size.
        augmentation: Of training images with a text. A mirror image changes what is left and right
            in a text.
    """

    source: str = BUILTIN
    validation_source: str | None = None
    validation_fraction: float = 0.02
    image_column: str | None = None
    text_column: str | None = None
    id_column: str | None = None
    image_folder: str | None = None
    tokenizer: str = "bpe"
    vocab_size: int = 512
    normalisation: Literal["half", "imagenet"] = "half"
    resize: int | None = None
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)

    def __post_init__(self) -> None:
        wrong = []
        for given in (self.source, self.validation_source):
            found = parse_source(given or "")
            try:
                if found.kind == "builtin":
                    check_builtin(found, NAMES, "images with texts")
            except ValueError as error:
                wrong += problem_lines(error)
        if not 0 < self.validation_fraction < 1:
            wrong.append(f"validation_fraction must be in (0, 1), not {self.validation_fraction}")
        if self.vocab_size < LEAST_VOCABULARY:
            wrong.append(f"vocab_size must be {LEAST_VOCABULARY} or more (256 bytes and 4 special "
                         f"tokens), not {self.vocab_size}")  # fmt: skip
        if self.resize is not None and self.resize < 1:
            wrong.append(f"resize must be 1 or more, not {self.resize}")
        if wrong:
            raise ConfigError(wrong)
