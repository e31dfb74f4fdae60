"""The `model` and `data` sections of recipes of visual reasoning. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from magneto.config import ConfigError
from magneto.data.sources import check_builtin, parse_source
from magneto.vision.config import AugmentationConfig
from magneto.vision_language.config import BUILTIN, LEAST_VOCABULARY, PairPoolingConfig

IMAGES = 2
"""That a statement is about."""


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
class StatementDataConfig:
    """Statements about images: the `data` section. See docs/concepts/visual_reasoning.md.

    Attributes:
        source: builtin:shapes, pairs of rendered scenes; the folder of NLVR2 with its .json files
            and images, wherever in it they lie; or one of the .json files.
        image_folder: Folder of the images, where they lie elsewhere than the .json files.
        validation_split: "dev"; "test", NLVR2's test-P (test1.json); or "hidden", its test-U
            (test2.json).
        validation_source: Another folder or file to validate on.
        validation_fraction: Share of the statements that is held out where a source has no
            validation split: all those about one set of images go together, by the hash of its
            number.
        input: What the model reads: "both", or the "statement" or the "images" alone, with nothing
            in place of the other, to see what it adds.
        tokenizer: "auto" is the pre-trained run's, or else one that is learnt ("bpe"); "bytes"; or
            a file or folder of one.
        vocab_size: Of one that is learnt from the training statements, at most.
        normalisation: What the model reads: "half" is pixels from -1 to 1, as in BEiT-3; "imagenet"
            has the mean and standard deviation of ImageNet's pixels taken out.
        augmentation: Of training images, each of a statement by itself. In validation the whole
            image is made a square.
    """

    source: str = BUILTIN
    image_folder: str | None = None
    validation_split: Literal["dev", "test", "hidden"] = "dev"
    validation_source: str | None = None
    validation_fraction: float = 0.2
    input: Literal["both", "statement", "images"] = "both"
    tokenizer: str = "auto"
    vocab_size: int = 1000
    normalisation: Literal["half", "imagenet"] = "half"
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)

    def __post_init__(self) -> None:
        wrong = []
        for given in (self.source, self.validation_source):
            found = parse_source(given or "")
            if found.kind == "builtin":
                check_builtin(found, [BUILTIN.removeprefix("builtin:")], "statements")
            if found.kind == "hf":
                wrong.append(f"source {given!r}: give the folder of NLVR2's own files")
        if not 0 < self.validation_fraction < 1:
            wrong.append(f"validation_fraction must be in (0, 1), not {self.validation_fraction}")
        if self.vocab_size < LEAST_VOCABULARY:
            wrong.append(f"vocab_size must be {LEAST_VOCABULARY} or more, not {self.vocab_size}")
        if wrong:
            raise ConfigError(wrong)
