"""The `model` and `data` sections of recipes of vision and language. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from magneto.config import ConfigError, problem_lines
from magneto.data.sources import check_builtin, parse_source
from magneto.nn.config import Grid, MultiwayConfig
from magneto.vision.config import BUILTIN_TOKENIZER, AugmentationConfig

# Built-in sets: magneto.vision_language.scenes.
NAMES = ("shapes",)
BUILTIN = "builtin:shapes"
# Of a byte-level tokenizer: every byte, </s>, <s>, <pad> and <mask>.
LEAST_VOCABULARY = 260
IMAGES = 2
"""That a statement is about."""


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
class ImageTextDataConfig:
    """What the `data` sections have in common: images with words, of a row each.

    Attributes:
        source: builtin:shapes, drawn scenes; a table (.jsonl, .json, .csv, .tsv, .parquet, or a
            folder with one for each split) of paths of images and what goes with them; tar shards;
            hf:NAME[:CONFIG[:SPLIT]]; or the files that the task's page names.
        validation_source: Validate on another source. None validates on the source's own
            validation split, or on rows held out of its training split.
        validation_fraction: Share of images, chosen by a hash of their names, that is held out with
            all that is said of them where a source has no validation split.
        image_folder: Folder that paths of images are relative to; None is that of the table.
        tokenizer: "auto" (that of `model.pretrained`, or else "bpe"), "bpe" (byte-level, learnt
            from the training texts on first use), "bytes", or the path of a tokenizer.json or a
            SentencePiece .model.
        vocab_size: Of a "bpe" tokenizer, at most.
        normalisation: What the model reads: "half" is pixels from -1 to 1, as in BEiT-3 with texts;
            "imagenet" has the mean and standard deviation of ImageNet's pixels taken out.
        augmentation: Of training images. A mirror image changes what is left and right in a text.
            In validation the whole image is made a square.
    """

    source: str = BUILTIN
    validation_source: str | None = None
    validation_fraction: float = 0.1
    image_folder: str | None = None
    tokenizer: str = "auto"
    vocab_size: int = 512
    normalisation: Literal["half", "imagenet"] = "half"
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)

    def __post_init__(self) -> None:
        if wrong := self.mistakes():
            raise ConfigError(wrong)

    def mistakes(self) -> list[str]:
        """Return what is wrong with the values, a line each."""
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
        return wrong


@dataclass(frozen=True, kw_only=True)
class CaptionDataConfig(ImageTextDataConfig):
    """Images with one caption or several. See docs/concepts/image_text_retrieval.md.

    A source may also be a folder with dataset_coco.json, dataset_flickr30k.json or another file in
    Karpathy's layout, or that file.

    Attributes:
        validation_split: "val" or "test", where the source has both.
        image_column: Column of the image, or of its path; None finds it.
        text_column: Column of the caption, or of a list of captions; None finds it.
    """

    validation_split: Literal["val", "test"] = "val"
    image_column: str | None = None
    text_column: str | None = None


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
class MaskedDataConfig(CaptionDataConfig):
    """Images, texts and pairs of both. See docs/concepts/vision_language.md.

    `source` and what goes with it are of the pairs.

    Attributes:
        resize: Shorter side to which a validation image is resized before its middle is cut out;
            None resizes it to the model's image_size.
        augmentation: Of training images with a text. A mirror image changes what is left and right
            in a text.
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

    validation_fraction: float = 0.02
    tokenizer: str = "bpe"
    resize: int | None = None
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

    def mistakes(self) -> list[str]:
        """Return what is wrong with the values, a line each."""
        wrong = super().mistakes()
        if self.tokenizer == "auto":
            wrong.append('tokenizer "auto" is of what begins with another run: give bpe')
        if self.resize is not None and self.resize < 1:
            wrong.append(f"resize must be 1 or more, not {self.resize}")
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
        return wrong


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringConfig(PairPoolingConfig):
    """An encoder over an image and a question, and a head over the answers.

    Attributes:
        answers: To choose from; None for as many as the data has (3129 of VQA v2).
        final_norm: "none", as in BEiT-3's fine-tuning: the pooler begins with a norm of its own.
        head_rate: Multiple of the learning rate of the head above the pooler (20 in BEiT-3's
            released fine-tuning; the paper names none).
    """

    answers: int | None = None
    final_norm: Literal["placement", "none"] = "none"
    head_rate: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = []
        if self.answers is not None and self.answers < 2:
            wrong.append(f"answers must be 2 or more, not {self.answers}")
        if self.head_rate <= 0:
            wrong.append(f"head_rate must be above 0, not {self.head_rate}")
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringDataConfig(ImageTextDataConfig):
    """Questions about images. See docs/concepts/visual_question_answering.md.

    A source may also be a folder of VQA v2's own files.

    Attributes:
        image_folder: Folder that paths of images are relative to; of VQA v2 that of train2014,
            val2014 and test2015, where they lie elsewhere than the source.
        image_column: Column of the image, or of its path; None finds it.
        question_column: Column of the question; None finds it.
        answer_column: Column of the answer, or of a list of the annotators' answers; None finds it.
        validation_split: Of VQA v2. "held_out" trains on train2014 and val2014 but for
            `validation_images` images, and validates on these; "val2014" trains on train2014 and
            validates on all of val2014; "test-dev2015" and "test2015" have no public answers: a
            run's answers to them are written for the leaderboard.
        validation_images: Images of val2014 that are held out, with all of their questions (1000
            in BEiT-3's released fine-tuning).
        validation_seed: Of which; see `questions.held_out_images`.
        answers: Path of the answers to choose from: a JSON list, lines of text, or BEiT-3's
            answer2label.txt. None: those that the annotations give.
        least_answer_count: Times that a majority answer occurs in the annotations to be one of
            these. None: 9 of VQA v2, which gives its 3129; 1 of other sources.
        answer_lookup: How an annotator's answer is looked up among them, for what is taught: "raw",
            as it is written, as in BEiT-3's released code; or "normalised", as they themselves are.
        normalise_answers: When the metric normalises answers: "where_annotators_disagree" is the
            official rule, "always" is what many take it for.
        input: What the model reads: "both", or the "question" or the "image" alone, with nothing in
            place of the other, to see what it adds.
        held_out: File of the images that a run validates on, in its assets; set when it is opened.
    """

    vocab_size: int = 1000
    image_column: str | None = None
    question_column: str | None = None
    answer_column: str | None = None
    validation_split: Literal["held_out", "val2014", "test-dev2015", "test2015"] = "held_out"
    validation_images: int = 1000
    validation_seed: int = 0
    answers: str | None = None
    least_answer_count: int | None = None
    answer_lookup: Literal["raw", "normalised"] = "raw"
    normalise_answers: Literal["where_annotators_disagree", "always"] = "where_annotators_disagree"
    input: Literal["both", "question", "image"] = "both"
    held_out: str | None = None

    def mistakes(self) -> list[str]:
        """Return what is wrong with the values, a line each."""
        wrong = super().mistakes()
        for name in ("validation_images", "least_answer_count"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                wrong.append(f"{name} must be 1 or more, not {getattr(self, name)}")
        return wrong


@dataclass(frozen=True, kw_only=True)
class VisualReasonerConfig(PairPoolingConfig):
    """A vision-language encoder with a head that says whether a statement is true.

    Attributes:
        head_scale: Of the first values of the head's matrices. BEiT-3's released fine-tuning has
            0.001; small models from scratch stay at chance with it.
    """

    head_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.head_scale < math.inf:
            raise ConfigError([f"head_scale must be above 0, not {self.head_scale}"])


@dataclass(frozen=True, kw_only=True)
class StatementDataConfig(ImageTextDataConfig):
    """Statements about two images. See docs/concepts/visual_reasoning.md.

    A source may also be the folder of NLVR2, with its .json files and its images, wherever in it
    they lie; or one of these files.

    Attributes:
        left_column: Column of the left image, or of its path; None finds it.
        right_column: Likewise of the right one.
        statement_column: Column of the statement; None finds it.
        truth_column: Column that says whether it is true; None finds it.
        validation_split: "dev"; "test", NLVR2's test-P (test1.json); or "hidden", its test-U
            (test2.json).
        validation_fraction: Share of the statements that is held out where a source has no
            validation split: all those that share an image, or one of NLVR2's sets of images, go
            together.
        input: What the model reads: "both", or the "statement" or the "images" alone, with nothing
            in place of the other, to see what it adds.
        augmentation: Of training images, each of a statement by itself. In validation the whole
            image is made a square.
    """

    validation_fraction: float = 0.2
    vocab_size: int = 1000
    left_column: str | None = None
    right_column: str | None = None
    statement_column: str | None = None
    truth_column: str | None = None
    validation_split: Literal["dev", "test", "hidden"] = "dev"
    input: Literal["both", "statement", "images"] = "both"


@dataclass(frozen=True, kw_only=True)
class ImageTextRetrieverConfig(FineTunedConfig):
    """An encoder that reads images and texts apart, and a head for each of both.

    Attributes:
        pooling: What is embedded of an image and of a text. "first": the features of the class
            token, and of `<s>` (BEiT-3); "mean": the mean of the patches', and of the text's
            tokens'.
        embedding_width: Of the vectors that are compared; None for the encoder's width (BEiT-3).
        temperature: That similarities are divided by at first; it is learnt (0.07 in CLIP and
            BEiT-3), and stays 0.01 or more, as in CLIP.
    """

    pooling: Literal["first", "mean"] = "first"
    embedding_width: int | None = None
    temperature: float = 0.07

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = []
        if self.embedding_width is not None and self.embedding_width < 1:
            wrong.append(f"embedding_width must be 1 or more, not {self.embedding_width}")
        if not 0.01 <= self.temperature <= 1:
            wrong.append(f"temperature must be in [0.01, 1], not {self.temperature}")
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class ImageCaptionerConfig(FineTunedConfig):
    """An encoder that reads a text from left to right beside an image, and a head over words.

    Attributes:
        label_smoothing: Share of a target that is spread over all tokens in training (0.1 in
            BEiT-3's released fine-tuning).
        loss_chunk: Guessed words whose logits exist at once.
    """

    label_smoothing: float = 0.1
    loss_chunk: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = []
        if not 0 <= self.label_smoothing < 1:
            wrong.append(f"label_smoothing must be in [0, 1), not {self.label_smoothing}")
        if self.loss_chunk < 1:
            wrong.append(f"loss_chunk must be 1 or more, not {self.loss_chunk}")
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class CaptioningDataConfig(CaptionDataConfig):
    """Images with captions, and how captions are hidden. See docs/concepts/image_captioning.md.

    Attributes:
        mask_ratio: Share of a caption's tokens to guess, its end included (0.7 in BEiT-3's released
            fine-tuning); one at least.
    """

    mask_ratio: float = 0.7

    def mistakes(self) -> list[str]:
        """Return what is wrong with the values, a line each."""
        wrong = super().mistakes()
        if not 0 < self.mask_ratio <= 1:
            wrong.append(f"mask_ratio must be above 0 and at most 1, not {self.mask_ratio}")
        return wrong
