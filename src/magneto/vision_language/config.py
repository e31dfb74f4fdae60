"""The `model` and `data` sections of vision-language recipes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Interval

from magneto.config import LARGEST, ConfigError
from magneto.data.sources import builtin_mistakes
from magneto.fields import (
    Dropout,
    Free,
    NonNegativeInt,
    Part,
    PositiveFloat,
    PositiveInt,
    Share,
    configuration,
    rule,
)
from magneto.nn.config import MultiwayConfig
from magneto.vision.config import BUILTIN_TOKENIZER, AugmentationConfig, Codes, ImageInputConfig

# Built-in sets: magneto.vision_language.scenes.
NAMES = ("shapes",)
BUILTIN = "builtin:shapes"
# Of a byte-level tokenizer: every byte, </s>, <s>, <pad> and <mask>.
Vocabulary = Annotated[int, Interval(ge=260, lt=LARGEST)]
# `<s>`, a word or more, `</s>`.
TextLength = Annotated[int, Interval(ge=3, lt=LARGEST)]
# Largest length in tokens that is derived from texts.
LONGEST_TEXT = 128
IMAGES = 2
"""Number of images that a statement is about."""
Lookup = Literal["raw", "normalised"]
When = Literal["where_annotators_disagree", "always"]


@configuration
class VisionLanguageConfig(ImageInputConfig, MultiwayConfig):
    """Multiway Transformer over the patches of images and the tokens of texts."""

    vocab_size: PositiveInt | None = None
    """Size of the vocabulary (null: the size of the tokenizer's vocabulary)."""
    max_length: TextLength = 64
    """Maximum number of tokens of a text, including `<s>` and `</s>`. BEiT-3's fine-tuning uses
    64."""
    embedding_scale: Literal["none", "sqrt_width"] = "none"
    """Scale of token embeddings, which are initialised from N(0, 1/width). With "none", as in the
    released BEiT-3, token embeddings stay unscaled. With "sqrt_width", token embeddings are
    multiplied by sqrt(width), and get unit variance. Position embeddings are also initialised from
    N(0, 1/width). Torchscale initialises position embeddings from N(0, 1)."""
    final_norm: Literal["placement", "none"] = "placement"
    """Final norm of the stack. "placement" adds a final norm if the norm placement has one, as
    Pre-LN does. "none" adds no final norm. BEiT-3 has no final norm for question answering, because
    the pooler begins with a norm."""

    @property
    def ends_in_mask(self) -> bool:
        """Whether the words of each text are followed by a `<mask>`, which the head reads."""
        return False

    @property
    def image_tokens(self) -> int:
        """Number of vision tokens of one image: the class token and the patches."""
        return self.grid.length


@configuration
class FineTunedConfig(VisionLanguageConfig):
    """Fields of models that can be initialised from a pre-trained encoder."""

    max_length: TextLength | None = 64  # pyright: ignore[reportIncompatibleVariableOverride]
    """Maximum number of tokens of a text, including `<s>` and `</s>`. BEiT-3's fine-tuning uses 64.
    null: the 99th percentile of the lengths of the training texts, but at most 128. With
    `pretrained`, the limit is the max_length of the pre-trained run, not 128."""
    pretrained: Free[str | None] = None
    """Directory of a vision-language run. The run's embeddings and layers initialise the model.
    With `data.tokenizer` "auto", the tokenizer of the run is used. `data.normalisation` must be the
    normalisation of the run. Magneto replaces "{placement}" in the path by the name of the norm
    placement. null: training from scratch."""

    @property
    def longest_text(self) -> int:
        return self.max_length or LONGEST_TEXT


@configuration
class PairPoolingConfig(FineTunedConfig):
    """Fields of models that answer a question or judge a statement about images."""

    pooling: Literal["first", "mask_token"] = "first"
    """Features that the head reads. With "first", as in BEiT-3, the head reads the feature of the
    image's class token. In visual reasoning, the head also reads the feature of `<s>`. With
    "mask_token", the head reads the feature of a `<mask>` at the end of the text. In
    pre-training, the feature of each `<mask>` predicts the original token."""

    @rule
    def _a_text_has_a_word(self) -> Iterator[str]:
        if self.ends_in_mask and self.max_length == 3:
            yield ("max_length must be at least 4, not 3: with pooling 'mask_token', a text "
                   "has <s>, a word, <mask> and </s>")  # fmt: skip

    @property
    def ends_in_mask(self) -> bool:
        return self.pooling == "mask_token"


@configuration
class ImageTextDataConfig:
    """Fields of the `data` section that all tasks over images with texts share."""

    source: str = BUILTIN
    """Source of the data: PATH, hf:NAME[:CONFIG[:SPLIT]] or builtin:shapes (rendered scenes). A
    path is a table with paths of images, a folder with one table for each split, or tar shards.
    Tables are .jsonl, .json, .csv, .tsv or .parquet files. The page of each task names more kinds
    of files."""
    validation_source: str | None = None
    """Separate source of validation data. null: the validation split of `source`. If `source` has
    no validation split, a share of the training data is used for validation."""
    validation_fraction: Share = 0.1
    """Share of images that are used for validation if a source has no validation split. A hash of
    the image names selects the images. All table rows of a selected image are validation data."""
    image_folder: str | None = None
    """Folder to which paths of images are relative (null: the table's folder)."""
    tokenizer: str = "auto"
    """Tokenizer: "auto", "bpe", "bytes", or the path of a tokenizer.json or a SentencePiece .model.
    With "auto", the tokenizer comes from the run `model.pretrained`. If `model.pretrained` is null,
    "auto" means "bpe". A "bpe" tokenizer is byte-level, and is trained on the training texts on
    first use. A "bytes" tokenizer has one token for each byte."""
    vocab_size: Vocabulary = 512
    """Maximum size of the vocabulary of a "bpe" tokenizer."""
    normalisation: Literal["half", "imagenet"] = "half"
    """Normalisation of pixels. With "half", as in BEiT-3, pixels are in the range -1 to 1. With
    "imagenet", the mean and the standard deviation are those of ImageNet."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Augmentation of training images. Do not flip images whose texts mention left or right.
    Validation images are resized to a square without cropping."""

    @rule
    def _sources_are_there(self) -> Iterator[str]:
        for source in (self.source, self.validation_source):
            yield from builtin_mistakes(source, NAMES, "images with texts")


@configuration
class CaptionDataConfig(ImageTextDataConfig):
    """Images with one or more captions.

    A source may also be a file in Karpathy's layout, such as dataset_coco.json, or the folder of
    such a file.
    """

    validation_split: Literal["val", "test"] = "val"
    """Validation split: "val" or "test"."""
    image_column: str | None = None
    """Column of the image or of the image's path (null: a column with a usual name)."""
    text_column: str | None = None
    """Column of the caption or of a list of captions (null: a column with a usual name)."""


@configuration
class MaskedDataModelConfig(VisionLanguageConfig):
    """Encoder with one head for masked patches and one head for masked words."""

    codes: Codes | None = None
    """Number of codes (null: the number of codes of the image tokenizer)."""
    loss_chunk: Free[NonNegativeInt] = 1024
    """Number of masked patches or tokens whose logits are computed at once in the loss (0: all)."""

    @rule
    def _norm_is_on_top(self) -> Iterator[str]:
        if self.final_norm == "none":
            yield "final_norm must be 'placement', because the output heads have no norm"


@configuration
class MaskedDataConfig(CaptionDataConfig):
    """Images without a text, texts without an image, and pairs of image and text.

    The fields `source`, `image_column` and `text_column` describe the pairs.
    """

    validation_fraction: Share = 0.02
    tokenizer: str = "bpe"
    resize: PositiveInt | None = None
    """The shorter side of validation images is resized to this number of pixels before the centre
    crop. null: the model's image_size."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Augmentation of training images that have a text. Do not flip images whose texts mention left
    or right."""
    batch_shares: tuple[PositiveInt, PositiveInt, PositiveInt] = (1, 1, 1)
    """Ratio of images, texts and pairs in a batch. In BEiT-3's paper, one third of a batch is
    images, one third texts, and one third pairs."""
    image_source: str | None = BUILTIN
    """Source of images without a text: builtin:shapes, or a source that image-modelling accepts.
    null: the images of the pairs."""
    image_validation_source: str | None = None
    """Separate source of validation images without a text. null: the validation split of
    `image_source`, or a share of the training images."""
    image_augmentation: AugmentationConfig = AugmentationConfig()
    """Augmentation of training images that have no text."""
    text_source: str | None = BUILTIN
    """Source of texts without an image: builtin:shapes, or a source that masked-lm accepts. null:
    the texts of the pairs."""
    text_validation_source: str | None = None
    """Separate source of validation texts without an image. null: the validation split of
    `text_source`, or a share of the training texts."""
    text_length: TextLength | None = None
    """Texts without an image are packed into sequences of this number of tokens. null: the model's
    max_length."""
    paired_text_length: TextLength | None = None
    """Maximum number of tokens of the text of a pair (null: the model's max_length). Longer texts
    are truncated."""
    image_tokenizer: str = BUILTIN_TOKENIZER
    """Image tokenizer that gives the target codes: the directory of an image-tokenizer run, or
    builtin:patches (k-means on patches of the training images)."""
    image_mask_ratio: Share = 0.4
    """Share of the patches of an image that are masked. Patches are masked in blocks."""
    text_mask_ratio: Share = 0.15
    """Share of masked tokens in a text without an image."""
    paired_text_mask_ratio: Share = 0.5
    """Share of masked tokens in a text with an image."""
    masking: Literal["token", "word", "span"] = "token"
    """Unit of masking: single tokens, whole words, or spans."""
    corruption: Literal["mask", "bert"] = "mask"
    """Replacement of masked tokens. With "mask", the mask token replaces every masked token. With
    "bert", the replacement is the mask token (80 %), a random token (10 %), or the original token
    (10 %). BEiT-3's paper does not specify how masked tokens are replaced."""

    @rule
    def _tokenizer_is_named(self) -> Iterator[str]:
        if self.tokenizer == "auto":
            yield 'tokenizer must not be "auto" in pre-training: use "bpe"'

    @rule
    def _images_are_whole(self) -> Iterator[str]:
        for name in ("augmentation", "image_augmentation"):
            if getattr(self, name).erasing or getattr(self, name).repeats != 1:
                yield f"{name}: in pre-training, erasing must be 0 and repeats must be 1"

    def stream_sizes(self, batch_size: int) -> list[int]:
        """Return the numbers of images, texts and pairs in a batch."""
        whole = sum(self.batch_shares)
        if batch_size % whole:
            nearest = max(whole, round(batch_size / whole) * whole)
            raise ConfigError([f"training.batch_size ({batch_size}) must be a multiple of {whole} "
                               f"(the sum of data.batch_shares), such as {nearest}"])  # fmt: skip
        return [batch_size // whole * share for share in self.batch_shares]


@configuration
class QuestionAnsweringConfig(PairPoolingConfig):
    """Encoder of an image and a question, with a head that scores answers."""

    answers: Annotated[int, Interval(ge=2, lt=LARGEST)] | None = None
    """Number of answers. null: the length of the answer list, which is 3129 for VQA v2."""
    final_norm: Literal["placement", "none"] = "none"
    """Final norm of the stack. "placement" adds a final norm if the norm placement has one, as
    Pre-LN does. "none", as in BEiT-3, adds no final norm, because the pooler begins with a norm."""
    head_rate: Free[PositiveFloat] = 1.0
    """Ratio of the head's learning rate to the learning rate of all other parameters. The pooler is
    not part of the head. BEiT-3's released fine-tuning uses 20. BEiT-3's paper states no value for
    `head_rate`."""


@configuration
class QuestionAnsweringDataConfig(ImageTextDataConfig):
    """Questions about images.

    A source may also be a folder with the files of VQA v2.
    """

    vocab_size: Vocabulary = 1000
    image_folder: str | None = None
    """Folder to which paths of images are relative (null: the source's folder). The image folder of
    VQA v2 contains the folders train2014, val2014 and test2015."""
    image_column: str | None = None
    """Column of the image or of the image's path (null: a column with a usual name)."""
    question_column: str | None = None
    """Column of the question (null: a column with a usual name)."""
    answer_column: str | None = None
    """Column of the answer, or of a list of annotators' answers (null: a column with a usual
    name)."""
    validation_split: Literal["held_out", "val2014", "test-dev2015", "test2015"] = "held_out"
    """Validation split of VQA v2. With "held_out", some images of val2014 are used for validation
    (see `validation_images`), and the model trains on train2014 and all other images of val2014.
    With "val2014", all of val2014 is used for validation, and the model trains on train2014. The
    splits "test-dev2015" and "test2015" have no public answers. For these splits,
    `magneto evaluate --answers FILE` writes the model's answers in the leaderboard's format."""
    validation_images: PositiveInt = 1000
    """Number of images of val2014 that `validation_split` "held_out" uses for validation. All
    questions about a validation image are used. BEiT-3's released fine-tuning uses 1000."""
    validation_seed: int = 0
    """Seed that selects the images of val2014 that "held_out" uses for validation."""
    answers: str | None = None
    """Path of the answer list: a JSON list, a text file with one answer per line, or BEiT-3's
    answer2label.txt. null: the frequent answers of the annotations."""
    least_answer_count: PositiveInt | None = None
    """Each answer in the answer list is the majority answer to at least this number of questions.
    null: 9 for VQA v2, and 1 for other sources. With null, VQA v2's answer list has 3129
    answers."""
    answer_lookup: Lookup = "raw"
    """How an annotator's answer is looked up in the answer list, to make targets. With "raw", as in
    BEiT-3's released code, an answer is looked up as written. With "normalised", an answer is
    normalised before the look-up. VQA v2's list contains normalised answers."""
    normalise_answers: When = "where_annotators_disagree"
    """Normalisation of answers in the metric. The official rule is "where_annotators_disagree".
    Many papers use "always" instead of the official rule."""
    input: Literal["both", "question", "image"] = "both"
    """Input of the model: "both", or for ablations only the "question" or only the "image"."""
    held_out: str | None = None
    """File in a run's assets with the names of the validation images. Recipes leave this field
    null, and Magneto sets the field when a trained run is opened."""


@configuration
class VisualReasonerConfig(PairPoolingConfig):
    """Encoder with a head that classifies a statement about two images as true or false."""

    head_scale: Free[PositiveFloat] = 1.0
    """Scale of the head's initial weights. BEiT-3's released fine-tuning uses 0.001. A small model
    without pre-training stays at chance accuracy with 0.001."""


@configuration
class StatementDataConfig(ImageTextDataConfig):
    """Statements about two images.

    A source may also be a .json file of NLVR2, or a folder with NLVR2's .json files and images. The
    files may be in subfolders of the folder.
    """

    validation_fraction: Share = 0.2
    """Share of statements that are used for validation if a source has no validation split.
    Statements with a common image are in the same split. NLVR2's images are grouped into sets. All
    statements about the images of one set are in the same split."""
    vocab_size: Vocabulary = 1000
    augmentation: AugmentationConfig = AugmentationConfig()
    """Augmentation of training images. The two images of a statement are augmented independently.
    Validation images are resized to a square without cropping."""
    left_column: str | None = None
    """Column of the left image or of the image's path (null: a column with a usual name)."""
    right_column: str | None = None
    """Column of the right image or of the image's path (null: a column with a usual name)."""
    statement_column: str | None = None
    """Column of the statement (null: a column with a usual name)."""
    truth_column: str | None = None
    """Name of the column with the label. Labels are true or false. Null: a column with a usual
    name."""
    validation_split: Literal["dev", "test", "hidden"] = "dev"
    """Validation split: "dev", "test" or "hidden". In NLVR2, "test" is test-P (test1.json) and
    "hidden" is test-U (test2.json)."""
    input: Literal["both", "statement", "images"] = "both"
    """Input of the model: "both", or for ablations only the "statement" or only the "images"."""


@configuration
class ImageTextRetrieverConfig(FineTunedConfig):
    """Encoder of images and texts, with one head for images and one head for texts."""

    pooling: Literal["first", "mean"] = "first"
    """Input of the heads. With "first", as in BEiT-3, the heads read an image's class token and a
    text's `<s>`. With "mean", the heads read the mean over an image's patches and the mean over a
    text's tokens."""
    temperature: Free[Annotated[float, Interval(ge=0.01, le=1)]] = 0.07
    """Initial temperature of similarities. CLIP and BEiT-3 use 0.07. The temperature is learned. As
    in CLIP, the temperature never falls below 0.01."""


@configuration
class ImageCaptionerConfig(FineTunedConfig):
    """Encoder of an image and a caption, with a head that predicts words from left to right."""

    label_smoothing: Free[Dropout] = 0.1
    """Label smoothing in training. BEiT-3's released fine-tuning uses 0.1."""
    loss_chunk: Free[PositiveInt] = 1024
    """Number of masked tokens whose logits are computed at once in the loss."""


@configuration
class RetrievalDataConfig(CaptionDataConfig):
    """Images with captions. The negatives of a pair are the other pairs of the batch."""

    @rule
    def _pairs_are_unlike(self) -> Iterator[str]:
        if self.augmentation.repeats != 1:
            yield ("augmentation: repeats must be 1, because the loss would treat copies of a pair "
                   "as negatives")  # fmt: skip


@configuration
class CaptioningDataConfig(CaptionDataConfig):
    """Images with captions, and the masking of the captions."""

    mask_ratio: Part = 0.7
    """Share of the tokens of a caption, including `</s>`, that are masked. At least one token is
    masked. BEiT-3's released fine-tuning uses 0.7."""
