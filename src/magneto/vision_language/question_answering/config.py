"""The `model` and `data` sections of recipes of visual question answering. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from magneto.config import ConfigError
from magneto.data.sources import check_builtin, parse_source
from magneto.vision.config import AugmentationConfig
from magneto.vision_language.config import BUILTIN, LEAST_VOCABULARY, PairPoolingConfig


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
class QuestionAnsweringDataConfig:
    """Questions about images: the `data` section. See docs/concepts/visual_question_answering.md.

    Attributes:
        source: builtin:shapes, rendered scenes with questions; or the path of a folder of VQA
            v2.
        image_folder: Folder of VQA v2's train2014, val2014 and test2015, where they lie elsewhere.
        validation_split: Of VQA v2. "held_out" trains on train2014 and val2014 but for
            `validation_images` images, and validates on these; "val2014" trains on train2014 and
            validates on all of val2014; "test-dev2015" and "test2015" have no public answers: a
            run's answers to them are written for the leaderboard.
        validation_images: Images of val2014 that are held out, with all of their questions (1000
            in BEiT-3's released fine-tuning).
        validation_seed: Of which; see `vqa_files.held_out_images`.
        answers: Path of the answers to choose from: a JSON list, lines of text, or BEiT-3's
            answer2label.txt. None: those that the annotations give.
        least_answer_count: Times that a majority answer occurs in the annotations to be one of
            these (9, which gives VQA v2's 3129).
        answer_lookup: How an annotator's answer is looked up among them, for what is taught: "raw",
            as it is written, as in BEiT-3's released code; or "normalised", as they themselves are.
        normalise_answers: When the metric normalises answers: "where_annotators_disagree" is the
            official rule, "always" is what many take it for.
        input: What the model reads: "both", or the "question" or the "image" alone, with nothing in
            place of the other, to see what it adds.
        tokenizer: "auto" (that of `model.pretrained`, or else "bpe"), "bpe" (byte-level, learnt
            from the training questions), "bytes", or the path of a tokenizer.
        vocab_size: Tokens of a "bpe" tokenizer, at most.
        normalisation: What the model reads: "half" is pixels from -1 to 1, as in BEiT-3; "imagenet"
            has the mean and standard deviation of ImageNet's pixels taken out.
        augmentation: Of training images. In validation the whole image is made a square.
        held_out: File of the images that a run validates on, in its assets; set when it is opened.
    """

    source: str = BUILTIN
    image_folder: str | None = None
    validation_split: Literal["held_out", "val2014", "test-dev2015", "test2015"] = "held_out"
    validation_images: int = 1000
    validation_seed: int = 0
    answers: str | None = None
    least_answer_count: int = 9
    answer_lookup: Literal["raw", "normalised"] = "raw"
    normalise_answers: Literal["where_annotators_disagree", "always"] = "where_annotators_disagree"
    input: Literal["both", "question", "image"] = "both"
    tokenizer: str = "auto"
    vocab_size: int = 1000
    normalisation: Literal["half", "imagenet"] = "half"
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    held_out: str | None = None

    def __post_init__(self) -> None:
        found, wrong = parse_source(self.source), []
        if found.kind == "builtin":
            check_builtin(found, [BUILTIN.removeprefix("builtin:")], "questions")
        if found.kind == "hf":
            wrong.append(f"source {self.source!r}: give the folder of VQA v2's own files")
        for name in ("validation_images", "least_answer_count"):
            if getattr(self, name) < 1:
                wrong.append(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.vocab_size < LEAST_VOCABULARY:
            wrong.append(f"vocab_size must be {LEAST_VOCABULARY} or more, not {self.vocab_size}")
        if wrong:
            raise ConfigError(wrong)
