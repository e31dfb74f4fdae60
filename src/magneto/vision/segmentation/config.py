"""The `model` and `data` sections of recipes of semantic segmentation. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from magneto.config import ConfigError
from magneto.nn.config import Grid, TransformerConfig
from magneto.vision.config import ImageDataConfig, PairedAugmentationConfig

# Of a mask's pixels that count for nothing (as in magneto.vision.paired_transforms).
IGNORED = 255


@dataclass(frozen=True, kw_only=True)
class SegmenterConfig(TransformerConfig):
    """A ViT with UperNet on four of its layers; the defaults are BEiT's recipe for ADE20k.

    Attributes:
        image_size: Height and width of training crops, and of the windows of sliding-window
            evaluation, in pixels; a multiple of `patch_size`.
        patch_size: Height and width of a patch.
        channels: Of the image.
        classes: Of a pixel.
        class_token: "learned" puts a learned vector before the patches.
        feature_layers: Four layers, counted from 0, whose features the heads read; the last is the
            top layer (3, 5, 7, 11 of 12; 7, 11, 15, 23 of 24).
        head_channels: Of UperNet (768 for base, 1024 for large).
        pool_scales: Rows and columns that pyramid pooling pools to.
        head_dropout: Of whole channels, before the classes.
        auxiliary_channels: Of the auxiliary FCN head.
        auxiliary_level: Which of the four maps it reads, counted from 0.
        auxiliary_weight: Of its loss.
        inference: How an image is segmented: "slide" puts windows of `image_size` over it, "whole"
            reads it at once, learned positions interpolated to its size.
        stride: Pixels between two windows.
        layer_decay: Each layer learns at the rate of the one above it times this; 1 for none.
        pretrained: Directory of a run whose patches, positions and encoder to begin with;
            "{placement}" in it stands for the placement's name. None begins from scratch.

    Raises:
        ConfigError: For values that fit together in no model.
    """

    image_size: int = 512
    patch_size: int = 16
    channels: int = 3
    classes: int = 150
    class_token: Literal["none", "learned"] = "none"
    feature_layers: tuple[int, int, int, int] = (3, 5, 7, 11)
    head_channels: int = 768
    pool_scales: tuple[int, ...] = (1, 2, 3, 6)
    head_dropout: float = 0.1
    auxiliary_channels: int = 256
    auxiliary_level: int = 2
    auxiliary_weight: float = 0.4
    inference: Literal["slide", "whole"] = "slide"
    stride: int = 341
    layer_decay: float = 1.0
    pretrained: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = [*self._wrong_image(), *self._wrong_head()]
        if not wrong and self.positions == "learned" and self.max_length < self.grid.length:
            wrong.append(f"max_length must be at least {self.grid.length}, the patches and the "
                         "class token if any")  # fmt: skip
        if wrong:
            raise ConfigError(wrong)

    def _wrong_image(self) -> list[str]:
        wrong, size = [], self.image_size
        if self.patch_size < 1 or size % self.patch_size or size < 2 * self.patch_size:
            wrong.append(f"image_size ({size}) must be two or more patches of patch_size "
                         f"({self.patch_size})")  # fmt: skip
        if not 1 <= self.stride <= size:
            wrong.append(f"stride must be from 1 to image_size ({size}), not {self.stride}")
        return wrong

    def _wrong_head(self) -> list[str]:
        wrong = []
        top, layers = self.layers - 1, list(self.feature_layers)
        if layers != sorted(layers) or layers[0] < 0 or layers[-1] != top:
            wrong.append(f"feature_layers must rise from 0 or more to the top layer, {top}, "
                         f"not {layers}")  # fmt: skip
        if not 2 <= self.classes <= IGNORED:
            wrong.append(f"classes must be 2 to {IGNORED}, not {self.classes}")
        if not 0 <= self.auxiliary_level < len(layers):
            wrong.append(f"auxiliary_level must be 0 to 3, not {self.auxiliary_level}")
        if not 0 <= self.head_dropout < 1:
            wrong.append(f"head_dropout must be at least 0 and below 1, not {self.head_dropout}")
        if self.auxiliary_weight < 0:
            wrong.append(f"auxiliary_weight must be 0 or more, not {self.auxiliary_weight}")
        if not 0 < self.layer_decay <= 1:
            wrong.append(f"layer_decay must be above 0 and at most 1, not {self.layer_decay}")
        if not self.pool_scales or min(self.pool_scales) < 1:
            wrong.append(f"pool_scales must be 1 or more each, not {list(self.pool_scales)}")
        return wrong

    @property
    def grid(self) -> Grid:
        """The patches row by row, after the class token if there is one."""
        side = self.image_size // self.patch_size
        return Grid(side, side, prefix=int(self.class_token == "learned"))


@dataclass(frozen=True, kw_only=True)
class SegmentationDataConfig:
    """Images with masks: the `data` section of a recipe. See docs/concepts/image_data.md.

    Attributes:
        source: builtin:scenes, handwritten digits on a canvas; a folder with images/ and
            annotations/ or with train/ and trainannot/; a table of paths; or hf:NAME[:CONFIG].
        validation_source: Validate on another source. None: on the source's validation split, or
            on what is held out of its training split.
        validation_fraction: Share of images held out where a source has no validation split.
        classes: Names of the classes in the order of their numbers, after `reduce_zero_label`;
            None for the source's, or else their numbers.
        image_column: Column of a table or data set that has the images; None finds it.
        mask_column: Column that has the masks; None finds it.
        normalisation: What the model reads: "half" is pixels from -1 to 1; "imagenet" has the mean
            and standard deviation of ImageNet's pixels taken out.
        reduce_zero_label: Whether 0 in a mask is no class, and 1 the first (ADE20k): 0 is ignored,
            all others are one less.
        ignored: Further numbers in masks, as they are stored, that are no class. 255 is none.
        fit: Longer and shorter side that a validation image is made to fit in, its ratio kept
            ((2048, 512) for ADE20k); None keeps its size. Of training images `augmentation` says
            the same.
        augmentation: Of training images, together with their masks.
    """

    source: str = "builtin:scenes"
    validation_source: str | None = None
    validation_fraction: float = 0.2
    classes: tuple[str, ...] | None = None
    image_column: str | None = None
    mask_column: str | None = None
    normalisation: Literal["half", "imagenet"] = "half"
    reduce_zero_label: bool = False
    ignored: tuple[int, ...] = ()
    fit: tuple[int, int] | None = None
    augmentation: PairedAugmentationConfig = field(default_factory=PairedAugmentationConfig)

    def __post_init__(self) -> None:
        self.images  # noqa: B018  its own checks
        wrong = [n for n in self.ignored if not 0 <= n <= IGNORED]
        if wrong:
            raise ValueError(f"ignored numbers are 0 to {IGNORED}, not {wrong[0]}")
        if self.fit is not None and min(self.fit) < 1:
            raise ValueError(f"fit must be two sides of 1 or more, not {list(self.fit)}")

    @property
    def images(self) -> ImageDataConfig:
        """What `magneto.vision.images.load_images` takes."""
        return ImageDataConfig(
            source=self.source,
            validation_source=self.validation_source,
            validation_fraction=self.validation_fraction,
            classes=self.classes,
            image_column=self.image_column,
            label_column="",
            mask_column=self.mask_column,
            normalisation=self.normalisation,
        )
