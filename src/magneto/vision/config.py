"""The `model` and `data` sections of recipes of images. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from magneto.data.sources import check_builtin, parse_source
from magneto.nn.config import Grid, TransformerConfig

# Largest values of an augmentation's settings; the smallest are 0.
LARGEST = {
    "flip": 1, "erasing": 1, "hue": 0.5, "rand_augment": 10, "brightness": math.inf,
    "contrast": math.inf, "saturation": math.inf, "rand_augment_std": math.inf,
}  # fmt: skip
# Built-in sets.
NAMES = ("digits", "scenes")


@dataclass(frozen=True, kw_only=True)
class ImageEncoderConfig(TransformerConfig):
    """An encoder over the patches of an image.

    Attributes:
        image_size: Height and width of the image, in pixels; a multiple of `patch_size`.
        patch_size: Height and width of a patch.
        channels: Of the image.
        class_token: "learned" puts a learned vector before the patches.
    """

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    class_token: Literal["none", "learned"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("image_size", "patch_size", "channels"):
            if not 1 <= getattr(self, name) <= 1 << 16:
                raise ValueError(f"{name} must be 1 to 65,536, not {getattr(self, name)}")
        if self.image_size % self.patch_size:
            raise ValueError(
                f"patch_size ({self.patch_size}) must divide image_size ({self.image_size})"
            )
        if self.positions == "learned" and self.max_length < self.length:
            raise ValueError(
                f"max_length must be at least {self.length}, the patches and the class token if any"
            )

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def grid(self) -> Grid:
        """The patches row by row, after the class token if there is one."""
        side = self.image_size // self.patch_size
        return Grid(side, side, self.prefix)

    @property
    def prefix(self) -> int:
        """Vectors before the patches: the class token if there is one."""
        return int(self.class_token == "learned")

    @property
    def length(self) -> int:
        """Vectors the encoder reads: patches, and those before them."""
        return self.prefix + self.patches


@dataclass(frozen=True, kw_only=True)
class AugmentationConfig:
    """How a training image is changed at random; nothing is, by default.

    Attributes:
        crop: "centre" takes the largest square in the middle, as in validation; "random_resized" a
            rectangle drawn at random, made a square (arXiv 1409.4842, section 6).
        crop_scale: Range of that rectangle's share of the image (0.2 to 1 in BEiT's pre-training).
        crop_ratio: Range of its width by its height.
        flip: Probability of a mirror image.
        brightness: Colour jitter, as in torchvision: brightness is multiplied by 1 - it to 1 + it.
        contrast: Likewise.
        saturation: Likewise.
        hue: Turned by up to this part of the circle of colours, either way: 0 to 0.5.
        rand_augment: Magnitude of RandAugment, 0 to 10 (arXiv 1909.13719); 0 is off. As timm's
            "rand-mM-mstdS-inc1": where an operation has a strength, it grows with the magnitude.
        rand_augment_std: Standard deviation of an operation's magnitude.
        rand_augment_operations: Operations drawn for an image; each is applied with probability
            0.5.
        erasing: Probability that a rectangle becomes noise (arXiv 1708.04896).
        repeats: Times that an image comes in a batch, each time changed otherwise; 1 is once.
    """

    crop: Literal["centre", "random_resized"] = "centre"
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    rand_augment: float = 0.0
    rand_augment_std: float = 0.5
    rand_augment_operations: int = 2
    erasing: float = 0.0
    repeats: int = 1

    def __post_init__(self) -> None:
        for name, most in (("crop_scale", 1), ("crop_ratio", math.inf)):
            low, high = getattr(self, name)
            if not 0 < low <= high <= most:
                raise ValueError(f"{name} must be a range above 0, not {low}, {high}")
        for name, most in LARGEST.items():
            value = getattr(self, name)
            if not 0 <= value <= most:
                allowed = "0 or more" if most == math.inf else f"in [0, {most}]"
                raise ValueError(f"{name} must be {allowed}, not {value}")
        for name in ("rand_augment_operations", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class PairedAugmentationConfig:
    """How a training image and its mask are changed together, as mmsegmentation does for ADE20k.

    Attributes:
        fit: Longer and shorter side that an image is made to fit in, its ratio kept, before
            `resize` ((2048, 512) for ADE20k); None keeps its size.
        resize: Range of the factor by which it is then resized.
        largest_share: Largest share of a crop that one class may have (`cat_max_ratio`); after ten
            tries the last crop is taken.
        flip: Probability of a mirror image.
        photometric: Probability of each change of brightness, contrast, saturation and hue.
    """

    fit: tuple[int, int] | None = None
    resize: tuple[float, float] = (0.5, 2.0)
    largest_share: float = 0.75
    flip: float = 0.5
    photometric: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.resize[0] <= self.resize[1]:
            raise ValueError(f"resize must be a range above 0, not {self.resize}")
        if self.fit is not None and min(self.fit) < 1:
            raise ValueError(f"fit must be two sizes of 1 or more, not {self.fit}")
        for name in ("largest_share", "flip", "photometric"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], not {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class ImageDataConfig:
    """Images: the `data` section of a recipe. See docs/concepts/image_data.md.

    Attributes:
        source: builtin:digits, 1797 handwritten digits of 8 x 8 pixels (UCI, by scikit-learn);
            builtin:scenes, such digits on a canvas with masks; the path of a folder of images, of
            tar shards, or of a table of paths (.jsonl, .json, .csv, .tsv, .parquet); or
            hf:NAME[:CONFIG[:SPLIT]].
        validation_source: Validate on another source: all images of its validation split, else of
            its test split, else of the whole. None validates on the source's own validation split,
            or on images held out of its training split.
        validation_fraction: Share of images held out where a source has no validation split: drawn
            by the recipe's seed from a built-in set, by a hash of their names from others.
        classes: Names of the classes in the order of their numbers. None: those of the training
            images.
        image_column: Column of a table or data set that has the images; None finds it.
        label_column: Column that has the labels; None finds it, "" reads none.
        mask_column: Column that has the masks; None finds it.
        normalisation: What the model reads: "half" is pixels from -1 to 1; "imagenet" has the mean
            and standard deviation of ImageNet's pixels taken out.
        resize: Shorter side to which a validation image is resized before its middle is cut out
            (256 for 224 on ImageNet); None resizes it to the model's image_size.
        augmentation: Of training images.
    """

    source: str = "builtin:digits"
    validation_source: str | None = None
    validation_fraction: float = 0.2
    classes: tuple[str, ...] | None = None
    image_column: str | None = None
    label_column: str | None = None
    mask_column: str | None = None
    normalisation: Literal["half", "imagenet"] = "half"
    resize: int | None = None
    augmentation: AugmentationConfig = AugmentationConfig()

    def __post_init__(self) -> None:
        for given in (self.source, self.validation_source):
            found = parse_source(given or "")
            if found.kind == "builtin":
                check_builtin(found, NAMES, "images")
        if not 0 < self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction must be in (0, 1), not {self.validation_fraction}"
            )
        if self.resize is not None and self.resize < 1:
            raise ValueError(f"resize must be 1 or more, not {self.resize}")
