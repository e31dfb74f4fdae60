"""The `model` and `data` sections of recipes of visual reasoning. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magneto.config import ConfigError
from magneto.data.sources import check_builtin, parse_source
from magneto.data.tokenizer import SPECIAL
from magneto.vision.config import AugmentationConfig
from magneto.vision_language.config import VisionLanguageConfig

# Built-in sets: magneto.vision_language.scenes.
NAMES = ("shapes",)


@dataclass(frozen=True, kw_only=True)
class VisualReasonerConfig(VisionLanguageConfig):
    """A vision-language encoder with a head that says whether a statement is true.

    Attributes:
        images: That a statement is about: 2 in NLVR2, 1 in NLVR v1, whose picture has three boxes.
        layer_decay: Each layer learns at the rate of the one above it times this; 1 for none, the
            paper's choice (0.65 in the released BEiT-3).
        pretrained: Directory of a vision-language-modelling run whose encoder, tokenizer and
            normalisation to begin with; "{placement}" in it stands for the placement's name. None
            begins from scratch.
    """

    images: int = 2
    layer_decay: float = 1.0
    pretrained: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = []
        if self.images < 1:
            wrong.append(f"images must be 1 or more, not {self.images}")
        if not 0 < self.layer_decay <= 1:
            wrong.append(f"layer_decay must be above 0 and at most 1, not {self.layer_decay}")
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class StatementDataConfig:
    """Statements about images: the `data` section of a recipe.

    Attributes:
        source: The folder of NLVR2 or of NLVR v1 with its .json files and images, wherever in it
            they lie; one of the .json files; or builtin:shapes, pairs of rendered scenes.
        images: Folder of the images, where they lie elsewhere than the .json files.
        validation_split: "dev"; "test", NLVR2's test-P (test1.json); or "hidden", its test-U
            (test2.json).
        validation_source: Another folder or file to validate on.
        validation_fraction: Share of the statements that is held out where a source has no
            validation split: all those about one set of images go together, by the hash of its
            number.
        tokenizer: "auto" (that of `model.pretrained`, or else "bpe"), "bpe" (byte-level, trained on
            the training statements), "bytes", or the path of a tokenizer.
        bpe_size: Tokens of a "bpe" tokenizer.
        normalisation: What the model reads: "half" is pixels from -1 to 1; "imagenet" has the mean
            and standard deviation of ImageNet's pixels taken out. "auto" is that of
            `model.pretrained`, or else "half".
        augmentation: Of training images, each of a statement by itself. The whole image is resized
            to the model's square, also in validation: statements count what is at its edges.
    """

    source: str = "builtin:shapes"
    images: str | None = None
    validation_split: Literal["dev", "test", "hidden"] = "dev"
    validation_source: str | None = None
    validation_fraction: float = 0.2
    tokenizer: str = "auto"
    bpe_size: int = 2048
    normalisation: Literal["auto", "half", "imagenet"] = "auto"
    augmentation: AugmentationConfig = AugmentationConfig()

    def __post_init__(self) -> None:
        wrong = []
        for given in (self.source, self.validation_source):
            found = parse_source(given or "")
            if found.kind == "builtin":
                check_builtin(found, NAMES, "statements about images")
            if found.kind == "hf":
                wrong.append(f"{given}: statements are read from a folder, not from the hub")
        if not 0 < self.validation_fraction < 1:
            wrong.append(f"validation_fraction must be in (0, 1), not {self.validation_fraction}")
        if self.bpe_size < 256 + len(SPECIAL):
            wrong.append(f"bpe_size must be {256 + len(SPECIAL)} or more, not {self.bpe_size}")
        if wrong:
            raise ConfigError(wrong)
