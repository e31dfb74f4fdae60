"""The `model` and `data` sections of recipes of vision and language. No torch here."""

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
from magneto.nn.config import Grid, MultiwayConfig
from magneto.vision.config import (
    BUILTIN_TOKENIZER,
    AugmentationConfig,
    Codes,
    ImageInputConfig,
)

# Built-in sets: magneto.vision_language.scenes.
NAMES = ("shapes",)
BUILTIN = "builtin:shapes"
# Of a byte-level tokenizer: every byte, </s>, <s>, <pad> and <mask>.
Vocabulary = Annotated[int, Interval(ge=260, lt=LARGEST)]
# `<s>`, a word or more, `</s>`.
TextLength = Annotated[int, Interval(ge=3, lt=LARGEST)]
IMAGES = 2
"""That a statement is about."""


@configuration
class VisionLanguageConfig(ImageInputConfig, MultiwayConfig):
    """A Multiway Transformer over the patches of images and the tokens of texts."""

    vocab_size: PositiveInt | None = None
    """Tokens of text; None for as many as the tokenizer has."""
    max_length: TextLength = 64
    """Longest text in tokens, `<s>` and `</s>` included (64 in BEiT-3's fine-tuning)."""
    embedding_scale: Literal["none", "sqrt_width"] = "none"
    """"none" leaves the vectors of tokens as they are drawn, N(0, 1/width), as in the released
    BEiT-3; "sqrt_width" multiplies them to unit variance. Positions, of tokens and of patches, are
    drawn from N(0, 1/width) too; torchscale draws them from N(0, 1)."""
    final_norm: Literal["placement", "none"] = "placement"
    """The norm on top of the stack: the placement's, or "none", as in BEiT-3's fine-tuning on
    questions, whose head has a norm of its own."""

    @property
    def ends_in_mask(self) -> bool:
        """Whether a `<mask>` stands behind each text's words, for the head to read."""
        return False

    @property
    def image_tokens(self) -> int:
        """Vision tokens of one image: its class token, then its patches."""
        return 1 + self.patches

    @property
    def image_grid(self) -> Grid:
        """The patches row by row, after the class token."""
        size, patch, _ = self.input_sizes
        return Grid(size // patch, size // patch, prefix=1)


@configuration
class FineTunedConfig(VisionLanguageConfig):
    """What the models have in common that begin with a pre-trained encoder."""

    pretrained: Free[str | None] = None
    """Directory of a run of vision and language whose embeddings and layers to begin with, and
    whose tokenizer and normalisation of images are used; "{placement}" in it stands for the
    placement's name. None begins from scratch."""


@configuration
class PairPoolingConfig(FineTunedConfig):
    """What the models have in common whose head reads a question or a statement with its image."""

    pooling: Literal["first", "mask_token"] = "first"
    """Which features the head reads. "first": of the image's class token, and of a statement's
    `<s>` too (BEiT-3); "mask_token": of a `<mask>` that is put behind the words, as hidden words
    are guessed in pre-training."""

    @rule
    def _a_text_has_a_word(self) -> Iterator[str]:
        if self.ends_in_mask and self.max_length < 4:
            yield (f"max_length must be 4 or more, not {self.max_length}: with pooling mask_token "
                   "a text is <s>, words, <mask>, </s>")  # fmt: skip

    @property
    def ends_in_mask(self) -> bool:
        """Whether a `<mask>` stands behind each text's words, for the head to read."""
        return self.pooling == "mask_token"


@configuration
class ImageTextDataConfig:
    """What the `data` sections have in common: images with words, of a row each."""

    source: str = BUILTIN
    """builtin:shapes, drawn scenes; a table (.jsonl, .json, .csv, .tsv, .parquet, or a folder with
    one for each split) of paths of images and what goes with them; tar shards;
    hf:NAME[:CONFIG[:SPLIT]]; or the files that the task's page names."""
    validation_source: str | None = None
    """Validate on another source. None validates on the source's own validation split, or on rows
    held out of its training split."""
    validation_fraction: Share = 0.1
    """Share of images, chosen by a hash of their names, that is held out with all that is said of
    them where a source has no validation split."""
    image_folder: str | None = None
    """Folder that paths of images are relative to; None is that of the table."""
    tokenizer: str = "auto"
    """"auto" (that of `model.pretrained`, or else "bpe"), "bpe" (byte-level, learnt from the
    training texts on first use), "bytes", or the path of a tokenizer.json or a SentencePiece
    .model."""
    vocab_size: Vocabulary = 512
    """Of a "bpe" tokenizer, at most."""
    normalisation: Literal["half", "imagenet"] = "half"
    """What the model reads: "half" is pixels from -1 to 1, as in BEiT-3 with texts; "imagenet" has
    the mean and standard deviation of ImageNet's pixels taken out."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Of training images. A mirror image changes what is left and right in a text. In validation
    the whole image is made a square."""

    @rule
    def _sources_are_there(self) -> Iterator[str]:
        for source in (self.source, self.validation_source):
            yield from builtin_mistakes(source, NAMES, "images with texts")


@configuration
class CaptionDataConfig(ImageTextDataConfig):
    """Images with one caption or several. See docs/fields/vision-language.md.

    A source may also be a folder with dataset_coco.json, dataset_flickr30k.json or another file in
    Karpathy's layout, or that file.
    """

    validation_split: Literal["val", "test"] = "val"
    """"val" or "test", where the source has both."""
    image_column: str | None = None
    """Column of the image, or of its path; None finds it."""
    text_column: str | None = None
    """Column of the caption, or of a list of captions; None finds it."""


@configuration
class MaskedDataModelConfig(VisionLanguageConfig):
    """The encoder, and a head for each modality that guesses what is hidden."""

    codes: Codes | None = None
    """Of the image tokenizer; None for as many as it has."""
    loss_chunk: Free[NonNegativeInt] = 1024
    """Rows of logits that exist at once in the loss; 0 for all."""

    @rule
    def _norm_is_on_top(self) -> Iterator[str]:
        if self.final_norm == "none":
            yield "final_norm must be placement: the heads have no norm of their own"


@configuration
class MaskedDataConfig(CaptionDataConfig):
    """Images, texts and pairs of both. See docs/fields/vision-language.md.

    `source` and what goes with it are of the pairs.
    """

    validation_fraction: Share = 0.02
    tokenizer: str = "bpe"
    resize: PositiveInt | None = None
    """Shorter side to which a validation image is resized before its middle is cut out; None
    resizes it to the model's image_size."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Of training images with a text. A mirror image changes what is left and right in a text."""
    batch_shares: tuple[PositiveInt, PositiveInt, PositiveInt] = (1, 1, 1)
    """Parts of a batch that are images, texts and pairs (thirds in the paper)."""
    image_source: str | None = BUILTIN
    """Images without a text: builtin:shapes, or what an image-modelling recipe takes. None takes
    those of the pairs."""
    image_validation_source: str | None = None
    """As `validation_source`."""
    image_augmentation: AugmentationConfig = AugmentationConfig()
    """Of these images in training."""
    text_source: str | None = BUILTIN
    """Texts without an image: builtin:shapes, or what a masked-lm recipe takes. None takes those of
    the pairs."""
    text_validation_source: str | None = None
    """As `validation_source`."""
    text_length: TextLength | None = None
    """Tokens of such a text, packed from documents; None for the model's max_length."""
    paired_text_length: TextLength | None = None
    """Longest text of a pair in tokens; what is longer is cut. None for the model's max_length."""
    image_tokenizer: str = BUILTIN_TOKENIZER
    """The directory of a run of an image-tokenizer recipe, whose codes are to be guessed; or
    builtin:patches, k-means of the images' own patches."""
    image_mask_ratio: Share = 0.4
    """Share of the patches that is hidden, of every image, in blocks."""
    text_mask_ratio: Share = 0.15
    """Share of the tokens that is hidden, of texts alone."""
    paired_text_mask_ratio: Share = 0.5
    """Likewise of texts with an image."""
    masking: Literal["token", "word", "span"] = "token"
    """Which tokens are hidden: single ones, whole words, or spans."""
    corruption: Literal["mask", "bert"] = "mask"
    """What stands in a hidden token's place: always the mask, or by BERT's rule 80 % mask, 10 %
    another token, 10 % itself. The paper does not say."""

    @rule
    def _tokenizers_are_named(self) -> Iterator[str]:
        if self.tokenizer == "auto":
            yield 'tokenizer "auto" is of what begins with another run: give bpe'
        if not self.image_tokenizer:
            yield f"image_tokenizer must be a run's directory or {BUILTIN_TOKENIZER}"

    @rule
    def _images_are_whole(self) -> Iterator[str]:
        for name in ("augmentation", "image_augmentation"):
            if getattr(self, name).erasing or getattr(self, name).repeats != 1:
                yield f"{name}: erasing must be 0 (what is erased has no code), repeats 1"


@configuration
class QuestionAnsweringConfig(PairPoolingConfig):
    """An encoder over an image and a question, and a head over the answers."""

    answers: Annotated[int, Interval(ge=2, lt=LARGEST)] | None = None
    """To choose from; None for as many as the data has (3129 of VQA v2)."""
    final_norm: Literal["placement", "none"] = "none"
    """"none", as in BEiT-3's fine-tuning: the pooler begins with a norm of its own."""
    head_rate: Free[PositiveFloat] = 1.0
    """Multiple of the learning rate of the head above the pooler (20 in BEiT-3's released
    fine-tuning; the paper names none)."""


@configuration
class QuestionAnsweringDataConfig(ImageTextDataConfig):
    """Questions about images. See docs/fields/visual-questions.md.

    A source may also be a folder of VQA v2's own files.
    """

    vocab_size: Vocabulary = 1000
    image_folder: str | None = None
    """Folder that paths of images are relative to; of VQA v2 that of train2014, val2014 and
    test2015, where they lie elsewhere than the source."""
    image_column: str | None = None
    """Column of the image, or of its path; None finds it."""
    question_column: str | None = None
    """Column of the question; None finds it."""
    answer_column: str | None = None
    """Column of the answer, or of a list of the annotators' answers; None finds it."""
    validation_split: Literal["held_out", "val2014", "test-dev2015", "test2015"] = "held_out"
    """Of VQA v2. "held_out" trains on train2014 and val2014 but for `validation_images` images, and
    validates on these; "val2014" trains on train2014 and validates on all of val2014;
    "test-dev2015" and "test2015" have no public answers: a run's answers to them are written for
    the leaderboard."""
    validation_images: PositiveInt = 1000
    """Images of val2014 that are held out, with all of their questions (1000 in BEiT-3's released
    fine-tuning)."""
    validation_seed: int = 0
    """Of which; see `questions.held_out_images`."""
    answers: str | None = None
    """Path of the answers to choose from: a JSON list, lines of text, or BEiT-3's answer2label.txt.
    None: those that the annotations give."""
    least_answer_count: PositiveInt | None = None
    """Times that a majority answer occurs in the annotations to be one of these. None: 9 of VQA v2,
    which gives its 3129; 1 of other sources."""
    answer_lookup: Literal["raw", "normalised"] = "raw"
    """How an annotator's answer is looked up among them, for what is taught: "raw", as it is
    written, as in BEiT-3's released code; or "normalised", as they themselves are."""
    normalise_answers: Literal["where_annotators_disagree", "always"] = "where_annotators_disagree"
    """When the metric normalises answers: "where_annotators_disagree" is the official rule,
    "always" is what many take it for."""
    input: Literal["both", "question", "image"] = "both"
    """What the model reads: "both", or the "question" or the "image" alone, with nothing in place
    of the other, to see what it adds."""
    held_out: str | None = None
    """File of the images that a run validates on, in its assets; set when it is opened."""


@configuration
class VisualReasonerConfig(PairPoolingConfig):
    """A vision-language encoder with a head that says whether a statement is true."""

    head_scale: Free[PositiveFloat] = 1.0
    """Of the first values of the head's matrices. BEiT-3's released fine-tuning has 0.001; small
    models from scratch stay at chance with it."""


@configuration
class StatementDataConfig(ImageTextDataConfig):
    """Statements about two images. See docs/fields/visual-questions.md.

    A source may also be the folder of NLVR2, with its .json files and its images, wherever in it
    they lie; or one of these files.
    """

    validation_fraction: Share = 0.2
    """Share of the statements that is held out where a source has no validation split: all those
    that share an image, or one of NLVR2's sets of images, go together."""
    vocab_size: Vocabulary = 1000
    augmentation: AugmentationConfig = AugmentationConfig()
    """Of training images, each of a statement by itself. In validation the whole image is made a
    square."""
    left_column: str | None = None
    """Column of the left image, or of its path; None finds it."""
    right_column: str | None = None
    """Likewise of the right one."""
    statement_column: str | None = None
    """Column of the statement; None finds it."""
    truth_column: str | None = None
    """Column that says whether it is true; None finds it."""
    validation_split: Literal["dev", "test", "hidden"] = "dev"
    """"dev"; "test", NLVR2's test-P (test1.json); or "hidden", its test-U (test2.json)."""
    input: Literal["both", "statement", "images"] = "both"
    """What the model reads: "both", or the "statement" or the "images" alone, with nothing in place
    of the other, to see what it adds."""


@configuration
class ImageTextRetrieverConfig(FineTunedConfig):
    """An encoder that reads images and texts apart, and a head for each of both."""

    pooling: Literal["first", "mean"] = "first"
    """What is embedded of an image and of a text. "first": the features of the class token, and of
    `<s>` (BEiT-3); "mean": the mean of the patches', and of the text's tokens'."""
    temperature: Free[Annotated[float, Interval(ge=0.01, le=1)]] = 0.07
    """That similarities are divided by at first; it is learnt (0.07 in CLIP and BEiT-3), and stays
    0.01 or more, as in CLIP."""


@configuration
class ImageCaptionerConfig(FineTunedConfig):
    """An encoder that reads a text from left to right beside an image, and a head over words."""

    label_smoothing: Free[Dropout] = 0.1
    """Share of a target that is spread over all tokens in training (0.1 in BEiT-3's released
    fine-tuning)."""
    loss_chunk: Free[PositiveInt] = 1024
    """Guessed words whose logits exist at once."""


@configuration
class CaptioningDataConfig(CaptionDataConfig):
    """Images with captions, and how captions are hidden. See docs/fields/vision-language.md."""

    mask_ratio: Part = 0.7
    """Share of a caption's tokens to guess, its end included (0.7 in BEiT-3's released
    fine-tuning); one at least."""
