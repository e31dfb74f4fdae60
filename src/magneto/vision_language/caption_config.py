"""The `data` section of recipes over images with captions: retrieval, captioning. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from magneto.config import ConfigError, problem_lines
from magneto.vision.config import AugmentationConfig
from magneto.vision_language.config import BUILTIN, PairDataConfig


@dataclass(frozen=True, kw_only=True)
class CaptionDataConfig:
    """Images with one caption or several. See docs/concepts/image_text_retrieval.md.

    Attributes:
        source: builtin:shapes, drawn scenes; a folder with dataset_coco.json,
            dataset_flickr30k.json or another file in Karpathy's layout, or that file; or what
            pre-training reads: a .jsonl file, tar shards, hf:NAME.
        validation_split: "val" or "test"; "test" of a source in Karpathy's layout alone.
        validation_source: Validate on all images of another source. None validates on the source's
            own validation split, or on images held out of its training split.
        validation_fraction: Share of images that is held out where a source has no validation
            split, chosen by a hash of their names.
        image_folder: Folder of the images, where they lie elsewhere than the file that names them.
        image_column: Of a table or data set: column of the image; None finds it.
        text_column: Likewise, of the captions.
        tokenizer: "auto" is the pre-trained run's, or else one that is learnt ("bpe"); "bytes"; or
            a file or folder of one.
        vocab_size: Of one that is learnt from the training captions, at most.
        normalisation: What the model reads: "half" is pixels from -1 to 1, as in BEiT-3; "imagenet"
            has the mean and standard deviation of ImageNet's pixels taken out.
        augmentation: Of training images. In validation the whole image is made a square.
    """

    source: str = BUILTIN
    validation_split: Literal["val", "test"] = "val"
    validation_source: str | None = None
    validation_fraction: float = 0.1
    image_folder: str | None = None
    image_column: str | None = None
    text_column: str | None = None
    tokenizer: str = "auto"
    vocab_size: int = 512
    normalisation: Literal["half", "imagenet"] = "half"
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)

    def __post_init__(self) -> None:
        try:
            self.pairs()
        except ValueError as error:
            raise ConfigError(problem_lines(error)) from error

    def pairs(self) -> PairDataConfig:
        """Return what names the same images and texts to pre-training.

        Raises:
            ConfigError: With what is wrong.
        """
        return PairDataConfig(
            source=self.source,
            validation_source=self.validation_source,
            validation_fraction=self.validation_fraction,
            image_column=self.image_column,
            text_column=self.text_column,
            image_folder=self.image_folder,
            vocab_size=self.vocab_size,
        )
