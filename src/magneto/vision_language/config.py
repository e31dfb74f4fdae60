"""Configurations of vision-language tasks: the `model` and `data` sections. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Interval

from magneto.config import LARGEST
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
"""Number of images of a statement."""


@configuration
class VisionLanguageConfig(ImageInputConfig, MultiwayConfig):
    """Multiway Transformer over the patches of images and the tokens of texts."""

    vocab_size: PositiveInt | None = None
    """Size of the vocabulary (null: that of the tokenizer)."""
    max_length: TextLength = 64
    """Longest text in tokens, including `<s>` and `</s>` (64 in BEiT-3's fine-tuning)."""
    embedding_scale: Literal["none", "sqrt_width"] = "none"
    """Scale of token embeddings, which are initialised from N(0, 1/width). "none" leaves them
    unscaled, as in the released BEiT-3. "sqrt_width" scales them to unit variance. Position
    embeddings of tokens and patches are initialised from N(0, 1/width), in torchscale from
    N(0, 1)."""
    final_norm: Literal["placement", "none"] = "placement"
    """Final norm of the stack: "placement" (as the placement defines it) or "none". BEiT-3 has none
    for question answering, because the pooler begins with a norm."""

    @property
    def ends_in_mask(self) -> bool:
        """Whether a `<mask>` follows the words of each text. The head reads its feature."""
        return False

    @property
    def image_tokens(self) -> int:
        """Number of vision tokens of one image: the class token and the patches."""
        return self.grid.length


@configuration
class FineTunedConfig(VisionLanguageConfig):
    """Fields of models that can be initialised from a pre-trained encoder."""

    max_length: TextLength | None = 64  # pyright: ignore[reportIncompatibleVariableOverride]
    """Longest text in tokens, including `<s>` and `</s>` (64 in BEiT-3's fine-tuning). null: a
    length that 99 % of the training texts do not exceed. It is at most 128, or with `pretrained`
    at most the max_length of that run."""
    pretrained: Free[str | None] = None
    """Directory of a vision-language run from which embeddings and layers are initialised. Its
    tokenizer and its normalisation of images are used, too. In the path, "{placement}" stands for
    the placement's name (null: training from scratch)."""

    @property
    def longest_text(self) -> int:
        return self.max_length or LONGEST_TEXT


@configuration
class PairPoolingConfig(FineTunedConfig):
    """Fields of models whose head reads a question or a statement with its image."""

    pooling: Literal["first", "mask_token"] = "first"
    """Features that the head reads. "first": the feature of the image's class token, and for
    statements also that of the text's `<s>`, as in BEiT-3. "mask_token": the feature of a `<mask>`
    after the words, as for masked words in pre-training."""

    @rule
    def _a_text_has_a_word(self) -> Iterator[str]:
        if self.ends_in_mask and self.max_length == 3:
            yield ("max_length must be at least 4, not 3: with pooling mask_token a text is <s>, "
                   "words, <mask>, </s>")  # fmt: skip

    @property
    def ends_in_mask(self) -> bool:
        return self.pooling == "mask_token"


@configuration
class ImageTextDataConfig:
    """Fields that the `data` sections of all tasks over images with texts share."""

    source: str = BUILTIN
    """builtin:shapes (rendered scenes); a table with paths of images (.jsonl, .json, .csv, .tsv,
    .parquet, or a folder with one for each split); tar shards; hf:NAME[:CONFIG[:SPLIT]]; or the
    files that the task's page names."""
    validation_source: str | None = None
    """Separate source of validation data. null: the validation split of `source`, or rows held out
    of its training split."""
    validation_fraction: Share = 0.1
    """Share of images that is held out with all rows of these images, if a source has no validation
    split. A hash of the image names selects the images."""
    image_folder: str | None = None
    """Folder to which paths of images are relative (null: the table's folder)."""
    tokenizer: str = "auto"
    """"auto" (the tokenizer of `model.pretrained`, or "bpe" without it), "bpe" (byte-level, trained
    on the training texts on first use), "bytes", or the path of a tokenizer.json or a SentencePiece
    .model."""
    vocab_size: Vocabulary = 512
    """Largest size of a "bpe" tokenizer's vocabulary."""
    normalisation: Literal["half", "imagenet"] = "half"
    """Normalisation of pixels: "half" maps them to the range -1 to 1, as in BEiT-3; "imagenet"
    subtracts ImageNet's mean and divides by its standard deviation."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Augmentation of training images. A flip swaps left and right, which texts may mention.
    Validation images are resized to a square without cropping."""

    @rule
    def _sources_are_there(self) -> Iterator[str]:
        for source in (self.source, self.validation_source):
            yield from builtin_mistakes(source, NAMES, "images with texts")


@configuration
class CaptionDataConfig(ImageTextDataConfig):
    """Images with one caption or more.

    A source may also be a file in Karpathy's layout, such as dataset_coco.json or
    dataset_flickr30k.json, or its folder.
    """

    validation_split: Literal["val", "test"] = "val"
    """Validation split, "val" or "test"."""
    image_column: str | None = None
    """Column of the image or of its path (null: found by its name)."""
    text_column: str | None = None
    """Column of the caption or of a list of captions (null: found by its name)."""


@configuration
class MaskedDataModelConfig(VisionLanguageConfig):
    """Encoder with one head for masked patches and one for masked words."""

    codes: Codes | None = None
    """Number of codes (null: as many as the image tokenizer has)."""
    loss_chunk: Free[NonNegativeInt] = 1024
    """Number of masked patches or words whose logits are computed at once in the loss (0: all)."""

    @rule
    def _norm_is_on_top(self) -> Iterator[str]:
        if self.final_norm == "none":
            yield "final_norm must be placement: the heads have no norm"


@configuration
class MaskedDataConfig(CaptionDataConfig):
    """Images without a text, texts without an image, and pairs of image and text.

    `source`, `image_column` and `text_column` are those of the pairs.
    """

    validation_fraction: Share = 0.02
    tokenizer: str = "bpe"
    resize: PositiveInt | None = None
    """Shorter side in pixels to which a validation image is resized before the centre crop. null:
    the model's image_size."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Augmentation of training images with a text. A flip swaps left and right."""
    batch_shares: tuple[PositiveInt, PositiveInt, PositiveInt] = (1, 1, 1)
    """Ratio of images, texts and pairs in a batch (thirds in the paper)."""
    image_source: str | None = BUILTIN
    """Source of images without a text: builtin:shapes, or a source of an image-modelling recipe.
    null: the images of the pairs."""
    image_validation_source: str | None = None
    """Separate source of validation images without a text; see `validation_source`."""
    image_augmentation: AugmentationConfig = AugmentationConfig()
    """Augmentation of training images without a text."""
    text_source: str | None = BUILTIN
    """Source of texts without an image: builtin:shapes, or a source of a masked-lm recipe. null:
    the texts of the pairs."""
    text_validation_source: str | None = None
    """Separate source of validation texts without an image; see `validation_source`."""
    text_length: TextLength | None = None
    """Length in tokens of the sequences into which texts without an image are packed. null: the
    model's max_length."""
    paired_text_length: TextLength | None = None
    """Length in tokens to which the text of a pair is truncated (null: the model's max_length)."""
    image_tokenizer: str = BUILTIN_TOKENIZER
    """Image tokenizer whose codes are predicted: the directory of an image-tokenizer run, or
    builtin:patches (k-means over patches of the training images)."""
    image_mask_ratio: Share = 0.4
    """Share of each image's patches that is masked, in blocks."""
    text_mask_ratio: Share = 0.15
    """Share of the tokens that is masked in texts without an image."""
    paired_text_mask_ratio: Share = 0.5
    """Share of the tokens that is masked in texts with an image."""
    masking: Literal["token", "word", "span"] = "token"
    """Unit of masking: single tokens, whole words, or spans."""
    corruption: Literal["mask", "bert"] = "mask"
    """Replacement of masked tokens: "mask" (always the mask token) or "bert" (80 % mask token, 10 %
    another token, 10 % unchanged). The paper does not specify it."""

    @rule
    def _tokenizer_is_named(self) -> Iterator[str]:
        if self.tokenizer == "auto":
            yield 'tokenizer must not be "auto", which is for fine-tuning: use "bpe"'

    @rule
    def _images_are_whole(self) -> Iterator[str]:
        for name in ("augmentation", "image_augmentation"):
            if getattr(self, name).erasing or getattr(self, name).repeats != 1:
                yield f"{name}: erasing must be 0 (erased patches have no code), and repeats 1"


@configuration
class QuestionAnsweringConfig(PairPoolingConfig):
    """Encoder of an image and a question, with a head over the answers."""

    answers: Annotated[int, Interval(ge=2, lt=LARGEST)] | None = None
    """Number of answers. null: the number of answers of the data (3129 for VQA v2)."""
    final_norm: Literal["placement", "none"] = "none"
    """Final norm of the stack: "placement" (as the placement defines it) or "none". BEiT-3 has none
    here, because the pooler begins with a norm."""
    head_rate: Free[PositiveFloat] = 1.0
    """Learning rate of the head above the pooler, as a multiple of the rate of the other parameters
    (20 in BEiT-3's released fine-tuning; the paper gives none)."""


@configuration
class QuestionAnsweringDataConfig(ImageTextDataConfig):
    """Questions about images.

    A source may also be a folder with VQA v2's own files.
    """

    vocab_size: Vocabulary = 1000
    image_folder: str | None = None
    """Folder to which paths of images are relative; for VQA v2 the folder with train2014, val2014
    and test2015 (null: the source's folder)."""
    image_column: str | None = None
    """Column of the image or of its path (null: found by its name)."""
    question_column: str | None = None
    """Column of the question (null: found by its name)."""
    answer_column: str | None = None
    """Column of the answer or of a list of annotators' answers (null: found by its name)."""
    validation_split: Literal["held_out", "val2014", "test-dev2015", "test2015"] = "held_out"
    """Validation split of VQA v2. "held_out": `validation_images` images of val2014; training uses
    train2014 and the rest of val2014. "val2014": all of val2014; training uses train2014.
    "test-dev2015" and "test2015" have no public answers, so `magneto evaluate` writes a run's
    answers for the leaderboard."""
    validation_images: PositiveInt = 1000
    """Number of images of val2014 that are held out with all of their questions (1000 in BEiT-3's
    released fine-tuning)."""
    validation_seed: int = 0
    """Seed that selects the held-out images of VQA v2."""
    answers: str | None = None
    """Path of the answer list: a JSON list, a text file with an answer in each line, or BEiT-3's
    answer2label.txt (null: the frequent answers of the annotations)."""
    least_answer_count: PositiveInt | None = None
    """The answer list contains the answers that are the majority answer to at least this many
    questions (null: 9 for VQA v2, which gives 3129 answers, and 1 for other sources)."""
    answer_lookup: Literal["raw", "normalised"] = "raw"
    """How annotators' answers are looked up in the answer list for training targets: "raw" (as
    written, as in BEiT-3's released code) or "normalised" (like the answers of the list)."""
    normalise_answers: Literal["where_annotators_disagree", "always"] = "where_annotators_disagree"
    """Normalisation of answers in the metric: "where_annotators_disagree" is the official rule;
    "always" is the rule that many papers describe."""
    input: Literal["both", "question", "image"] = "both"
    """Input of the model: "both", or the "question" or the "image" alone, as an ablation."""
    held_out: str | None = None
    """File of the validation images in a run's assets. Opening a run sets it."""


@configuration
class VisualReasonerConfig(PairPoolingConfig):
    """Encoder with a head that classifies a statement about two images as true or false."""

    head_scale: Free[PositiveFloat] = 1.0
    """Scale of the head's initial weights. It is 0.001 in BEiT-3's released fine-tuning. With
    0.001, small models that are trained from scratch stay at the accuracy of chance."""


@configuration
class StatementDataConfig(ImageTextDataConfig):
    """Statements about two images.

    A source may also be a folder with NLVR2's .json files and images, at any depth, or one of the
    .json files.
    """

    validation_fraction: Share = 0.2
    """Share of statements that is held out if a source has no validation split. Statements with a
    common image, or with a common set of images in NLVR2, stay in the same split."""
    vocab_size: Vocabulary = 1000
    augmentation: AugmentationConfig = AugmentationConfig()
    """Augmentation of training images, drawn independently for each image. Validation images are
    resized to a square without cropping."""
    left_column: str | None = None
    """Column of the left image or of its path (null: found by its name)."""
    right_column: str | None = None
    """Column of the right image or of its path (null: found by its name)."""
    statement_column: str | None = None
    """Column of the statement (null: found by its name)."""
    truth_column: str | None = None
    """Column of the label that says whether the statement is true (null: found by its name)."""
    validation_split: Literal["dev", "test", "hidden"] = "dev"
    """Validation split: "dev", "test" (NLVR2's test-P, test1.json) or "hidden" (NLVR2's test-U,
    test2.json)."""
    input: Literal["both", "statement", "images"] = "both"
    """Input of the model: "both", or the "statement" or the "images" alone, as an ablation."""


@configuration
class ImageTextRetrieverConfig(FineTunedConfig):
    """Encoder of images and of texts, each with a linear head."""

    pooling: Literal["first", "mean"] = "first"
    """Features that the heads read. "first", as in BEiT-3: the class token of an image, and `<s>`
    of a text. "mean": the mean of an image's patches, and of a text's tokens."""
    temperature: Free[Annotated[float, Interval(ge=0.01, le=1)]] = 0.07
    """Initial temperature of similarities (0.07 in CLIP and BEiT-3). The temperature is learned and
    never below 0.01, as in CLIP."""


@configuration
class ImageCaptionerConfig(FineTunedConfig):
    """Encoder of an image and a text with a left-to-right mask, with a head over the vocabulary."""

    label_smoothing: Free[Dropout] = 0.1
    """Label smoothing in training (0.1 in BEiT-3's released fine-tuning)."""
    loss_chunk: Free[PositiveInt] = 1024
    """Number of masked words whose logits are computed at once in the loss."""


@configuration
class RetrievalDataConfig(CaptionDataConfig):
    """Images with captions. The negatives of a pair are the other pairs of the batch."""

    @rule
    def _pairs_are_unlike(self) -> Iterator[str]:
        if self.augmentation.repeats != 1:
            yield "augmentation: repeats must be 1 (a copy of a pair would be its negative)"


@configuration
class CaptioningDataConfig(CaptionDataConfig):
    """Images with captions, and the masking of the captions."""

    mask_ratio: Part = 0.7
    """Share of the tokens of a caption, including `</s>`, that is masked (0.7 in BEiT-3's released
    fine-tuning). At least one token is masked."""
