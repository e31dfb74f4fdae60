"""Configurations of image tasks: their `model` and `data` sections (no torch import)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar

from annotated_types import Interval

from magneto.config import LARGEST
from magneto.data.files import existing_path, read_lines
from magneto.data.problems import StrictCounts
from magneto.data.sources import builtin_mistakes
from magneto.fields import (
    Dropout,
    Free,
    NonNegativeFloat,
    NonNegativeInt,
    Part,
    PositiveFloat,
    PositiveInt,
    Probability,
    Share,
    configuration,
    rule,
)
from magneto.nn.config import Grid, Layers, TransformerConfig, Width

# Built-in sets.
NAMES = ("digits", "scenes")
# Name of the image tokenizer that needs no run: k-means of patches.
BUILTIN_TOKENIZER = "builtin:patches"
TEACHERS = ("hog", "pixels", "clip:PATH", "dino:PATH")
# Class of the mask's pixels that losses and scores leave out.
IGNORED = 255
# Names of folders of images and of masks, and suffixes that turn the name of a split's
# folder of images into that of its masks (train/ and trainannot/ in SegNet's copy of CamVid).
IMAGE_FOLDERS = ("images", "image", "imgs", "img", "img_dir", "jpegimages", "leftimg8bit")
MASK_FOLDERS = ("segmentationclass", "annotations", "masks", "annotation", "mask", "labels",
                "ann_dir", "gtfine")  # fmt: skip
MASK_SUFFIXES = ("annot", "_annot", "_labels", "_masks", "_mask")
Side = Annotated[int, Interval(ge=1, le=65536)]
Codes = Annotated[int, Interval(ge=2, lt=LARGEST)]
Kind = TypeVar("Kind")
FourLayers = tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt, NonNegativeInt]


def require(value: Kind | None, field: str) -> Kind:
    """Return the value of a field; raise ValueError if it is None."""
    if value is None:
        raise ValueError(f"model.{field} is null: set it, or call the task's `prepare` to derive "
                         "it from the data")  # fmt: skip
    return value


# A model for small computers has at most this image size, and this number of patches a side.
LARGEST_SIDE, PATCHES = 64, 8
# Patches of 1 x 1 pixel cost four times as much as patches of 2 x 2, and tell no more.
LEAST_PATCH = 2


def derive_sizes(side: int, image_size: int | None, patch_size: int | None) -> tuple[int, int]:
    """Return image size and patch size for images whose shorter side is `side` pixels.

    An `image_size` or `patch_size` that is not None is returned unchanged. A derived image size is
    the multiple of the patch size that is nearest to min(`side`, `LARGEST_SIDE`). A derived patch
    size gives at most `PATCHES` patches per side.
    """
    size = image_size or min(side, LARGEST_SIDE)
    patch = patch_size or max(-(-size // PATCHES), min(LEAST_PATCH, size))
    if image_size is None:
        return max(patch * round(size / patch), patch), patch
    if patch_size is None:
        patch = next(part for part in range(patch, size + 1) if size % part == 0)
    return size, patch


@configuration
class ImageInputConfig:
    """Sizes of a model's images and of their patches."""

    image_size: Side | None = 224
    """Height and width of the image in pixels, a multiple of `patch_size`. Null takes the size from
    the pre-trained run or image tokenizer. Without a run or tokenizer, the size is the median of
    the images' shorter sides, at most 64, rounded to a multiple of the patch size."""
    patch_size: Side | None = 16
    """Height and width of a patch in pixels. Null takes the size from the pre-trained run or image
    tokenizer. Without a run or tokenizer, null means the smallest patch size of 2 or more
    pixels with at most 8 patches per side."""
    channels: Literal[1, 3] | None = 3
    """Number of channels of the image. Null takes the number from the pre-trained run or image
    tokenizer. Without a run or tokenizer, Magneto looks at up to 200 images: null means 1 if all of
    them are grey, and 3 otherwise."""

    @rule
    def _patches_fill_the_image(self) -> Iterator[str]:
        size, patch = self.image_size, self.patch_size
        if size is not None and patch is not None and size % patch:
            yield f"patch_size ({patch}) must divide image_size ({size})"

    @property
    def input_sizes(self) -> tuple[int, int, int]:
        """`image_size`, `patch_size` and `channels`.

        Raises:
            ValueError: If one of them is None. The task's `prepare` derives missing sizes.
        """
        return (require(self.image_size, "image_size"), require(self.patch_size, "patch_size"),
                require(self.channels, "channels"))  # fmt: skip

    def derived_sizes(self, side: int = LARGEST_SIDE) -> tuple[int, int]:
        return derive_sizes(side, self.image_size, self.patch_size)

    @property
    def patches(self) -> int:
        """Number of patches of one image."""
        return self.grid.rows * self.grid.columns

    @property
    def prefix(self) -> int:
        """Number of vectors before the patches: 1 with a class token, else 0."""
        return 1

    @property
    def grid(self) -> Grid:
        """Rows and columns of patches. The class token, if there is one, comes before the grid."""
        size, patch, _ = self.input_sizes
        return Grid(size // patch, size // patch, self.prefix)


@configuration
class ImageEncoderConfig(ImageInputConfig, TransformerConfig):
    """Encoder over the patches of an image.

    If `image_size`, `patch_size` or `channels` is None, the task derives the missing sizes and
    `max_length`.
    """

    stem: Literal["linear", "convolutions"] = "linear"
    """Embedding of patches: a "linear" map, or strided "convolutions" (arXiv 2106.14881).
    Convolutions learn more from few images, but also see pixels outside of the patch."""
    class_token: Literal["none", "learned"] = "none"
    """"learned" puts a learned class token before the patches."""

    @rule
    def _positions_reach_all_patches(self) -> Iterator[str]:
        if self.positions != "learned" or None in (self.image_size, self.patch_size, self.channels):
            return
        if self.max_length < self.grid.length:
            yield (f"max_length must be at least {self.grid.length}, the number of patches and "
                   "class tokens")  # fmt: skip

    @property
    def prefix(self) -> int:
        return int(self.class_token == "learned")


@configuration
class AugmentationConfig:
    """Random changes of a training image (default: none)."""

    crop: Literal["centre", "random_resized"] = "centre"
    """"centre" crops the largest square in the middle. In retrieval, captioning, visual question
    answering and visual reasoning, "centre" resizes the whole image to a square without cropping.
    "random_resized" resizes a random rectangle to a square (arXiv 1409.4842, section 6)."""
    crop_scale: tuple[Part, Part] = (0.08, 1.0)
    """Range of the random rectangle's area, as a share of the image's area (0.2 to 1 in BEiT's
    pre-training)."""
    flip: Probability = 0.0
    """Probability of a horizontal flip."""
    brightness: NonNegativeFloat = 0.0
    """Colour jitter as in torchvision: the brightness is multiplied by a random factor from
    1 - value to 1 + value."""
    contrast: NonNegativeFloat = 0.0
    """Colour jitter: the contrast is multiplied by a random factor from 1 - value to 1 + value."""
    saturation: NonNegativeFloat = 0.0
    """Colour jitter: the saturation is multiplied by a random factor from 1 - value to
    1 + value."""
    hue: Annotated[float, Interval(ge=0, le=0.5)] = 0.0
    """Colour jitter: the hue is shifted by up to this fraction of the colour circle."""
    rand_augment: Annotated[float, Interval(ge=0, le=10)] = 0.0
    """Magnitude of RandAugment (arXiv 1909.13719): M in timm's "rand-mM-mstdS-inc1". 0: no
    RandAugment."""
    rand_augment_std: NonNegativeFloat = 0.5
    """Standard deviation of RandAugment's magnitude: S in timm's "rand-mM-mstdS-inc1"."""
    erasing: Probability = 0.0
    """Probability that a random rectangle is replaced by noise (arXiv 1708.04896)."""
    repeats: PositiveInt = 1
    """Number of copies of each image in a batch. Each copy is augmented differently."""

    @rule
    def _range_rises(self) -> Iterator[str]:
        if self.crop_scale[0] > self.crop_scale[1]:
            yield f"crop_scale must have the smaller share first, not {self.crop_scale}"


@configuration
class PairedAugmentationConfig:
    """Random changes of a training image and its mask, as in mmsegmentation for ADE20k."""

    resize: tuple[PositiveFloat, PositiveFloat] = (0.5, 2.0)
    """Range of the random scale factor. Each image is resized to `data.fit`, and then scaled by a
    random factor from this range."""
    largest_share: Probability = 0.75
    """Largest share of a crop that one class may have (mmsegmentation's `cat_max_ratio`). After
    ten attempts, the last crop is used."""
    flip: Probability = 0.5
    """Probability of a horizontal flip."""
    photometric: Probability = 0.5
    """Probability of each of four changes: brightness, contrast, saturation and hue."""

    @rule
    def _range_rises(self) -> Iterator[str]:
        if self.resize[0] > self.resize[1]:
            yield f"resize must have the smaller factor first, not {self.resize}"


@configuration
class ImageSourceConfig:
    """Source of images, and their normalisation."""

    source: str = "builtin:digits"
    """Source of the images. `builtin:digits` has 1797 handwritten digits of 8 x 8 pixels, from
    scikit-learn. `builtin:scenes` has handwritten digits on a canvas, with masks. A path names a
    folder of images, tar shards, or a table of paths (.jsonl, .json, .csv, .tsv, .parquet). A data
    set of the hub is `hf:NAME[:CONFIG[:SPLIT]]`."""
    validation_source: str | None = None
    """Separate source of validation images. From `validation_source`, Magneto reads the validation
    split, else the test split, else all images. Null uses the validation split of `source`. If
    `source` has no validation split, null uses a part of the training images."""
    validation_fraction: Share = 0.2
    """Share of the training images that are held out if a source has no validation split. The
    recipe's seed selects the validation images of a built-in set. For a source that is not built
    in, a hash of the image names selects the validation images."""
    classes: tuple[str, ...] | None = None
    """Names of the classes in the order of their numbers; null uses the classes of the training
    images."""
    image_column: str | None = None
    """Column of the images; null looks for a column with a usual name."""
    mask_column: str | None = None
    """Column of the masks; null looks for a column with a usual name."""
    normalisation: Literal["half", "imagenet"] = "half"
    """Normalisation of pixels. With "half", pixels range from -1 to 1. With "imagenet", ImageNet's
    mean is subtracted, and the result is divided by ImageNet's standard deviation."""

    @rule
    def _sources_are_there(self) -> Iterator[str]:
        for source in (self.source, self.validation_source):
            yield from builtin_mistakes(source, NAMES, "images")


@configuration
class ImageDataConfig(ImageSourceConfig):
    """The `data` section of a recipe for images."""

    label_column: str | None = None
    """Column of the labels; null looks for a column with a usual name, and "" reads no labels."""
    resize: PositiveInt | None = None
    """Length in pixels to which the shorter side of a validation image is resized, before the
    centre crop. ImageNet's usual value is 256 for crops of 224. Null uses the model's
    image_size."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Augmentation of training images."""

    @rule
    def _classes_differ(self) -> Iterator[str]:
        for name, times in Counter(self.classes or ()).most_common(1):
            if times > 1:
                yield f"classes has the name {name!r} {times} times: make all names different"


@configuration
class FineTunedImageConfig(ImageEncoderConfig):
    """Encoder over patches, optionally initialised from another run."""

    layer_decay: Free[Part] = 1.0
    """Layer-wise decay. The learning rate of a layer is `layer_decay` times the rate of the next
    higher layer. The paper's image classifiers use 0.65 and 0.8. 1: no layer-wise decay."""
    pretrained: Free[str | None] = None
    """Directory of a run of an image task. The run's patch embedding, positions and encoder
    initialise the model. `data.normalisation` must be the normalisation of the run. Null trains
    from scratch. Magneto replaces "{placement}" in the path by the name of the norm placement."""


@configuration
class ImageClassifierConfig(FineTunedImageConfig):
    """Image classifier: an encoder over patches, and a head."""

    classes: PositiveInt | None = None
    """Number of classes; null uses the number of classes in the data."""
    pooling: Literal["mean", "mean_then_norm", "first"] = "mean"
    """Input of the head. With "mean", the final norm comes before the mean of the patches. With
    "mean_then_norm", the norm comes after the mean, as in BEiT-3. In Post-LN, which has no final
    norm, "mean" and "mean_then_norm" are equal. With "first", the head reads the class token, as in
    ViT."""
    objective: Free[Literal["cross_entropy", "binary_cross_entropy"]] = "cross_entropy"
    """Training loss. With "binary_cross_entropy", the loss is summed over the classes (arXiv
    2110.00476, section 4.1)."""
    label_smoothing: Free[Dropout] = 0.0
    """Share of the target that is spread evenly over all classes (0.1 in the paper)."""

    @rule
    def _first_feature_is_the_class_token(self) -> Iterator[str]:
        if self.pooling == "first" and self.class_token == "none":
            yield "pooling 'first' needs class_token 'learned'"


@configuration
class ImageClassificationDataConfig(ImageDataConfig):
    """Labelled images: the `data` section of an image-classification recipe."""

    mixup: NonNegativeFloat = 0.0
    """Alpha of mixup's Beta distribution (0.8 in the paper); 0 turns mixup off."""
    cutmix: NonNegativeFloat = 0.0
    """Alpha of CutMix's Beta distribution (1.0 in the paper); 0 turns CutMix off. If mixup and
    CutMix are both on, each pair of images gets one of the two at random."""
    class_names: str | None = None
    """Path of a text file with one class name per line, in the order of the classes' numbers.
    `class_names` replaces `classes`. Set `class_names` to evaluate a run on a folder whose
    subfolders are not named after the run's classes. ImageNet's subfolders, for example, are named
    by wnids (n01440764, ...)."""
    candidates: Literal["all", "present"] = "all"
    """Classes that the model may predict in validation. With "all", every class of the model is
    allowed. With "present", only classes of the validation images are allowed, such as the 200 of
    ImageNet-A."""


def given_names(data: ImageClassificationDataConfig) -> tuple[str, ...] | None:
    """Return the class names that a recipe sets; None if the data determine the names.

    Raises:
        FileNotFoundError: If the file of names does not exist.
        ValueError: If the file of names is not UTF-8, or if a name occurs twice.
    """
    if data.class_names is None:
        return data.classes
    lines = read_lines(existing_path(data.class_names), StrictCounts())
    names = tuple(line.strip() for line in lines if line.strip())
    if len(set(names)) < len(names):
        raise ValueError(f"{data.class_names} has a class name twice: make all names different")
    return names


@configuration
class ImageTokenizerConfig(ImageEncoderConfig):
    """Image tokenizer (VQ-KD): an encoder, a codebook and a decoder.

    The decoder predicts a teacher's features. The defaults are those of BEiT v2 (arXiv 2208.06366,
    section 3.1, and its released code).
    """

    codes: Codes = 8192
    """Number of codes in the codebook."""
    code_width: Width = 32
    """Width of a code's vector."""
    decay: Dropout = 0.99
    """Decay of the codebook's moving averages."""
    revive_below: Dropout = 0.03
    """A code is revived if its share of the features falls below this value divided by `codes`. A
    revived code takes over part of a frequent code's features. With `revive_below` 0, no code is
    revived, as in BEiT v2's released implementation."""
    commitment: NonNegativeFloat = 1.0
    """Weight of the commitment loss, the mean squared difference between the encoder's output and
    the code's vector."""
    decoder_depth: Layers = 3
    """Number of layers of the decoder."""
    teacher: str = "hog"
    """Teacher whose features the decoder predicts. With "hog", the decoder predicts histograms of
    oriented gradients. With "pixels", the decoder predicts the pixels of each patch. With
    "clip:PATH" or "dino:PATH", the teacher is a transformers model in a folder or on the hub."""
    target_width: PositiveInt | None = None
    """Width of the teacher's features; null takes the width from the teacher."""

    @rule
    def _teacher_is_there(self) -> Iterator[str]:
        kind, _, path = self.teacher.partition(":")
        if (f"{kind}:PATH" if path else kind) not in TEACHERS:
            yield f"teacher must be one of {', '.join(TEACHERS)}, not {self.teacher!r}"


@configuration
class ImageModelConfig(ImageEncoderConfig):
    """Masked image model: an encoder over patches that predicts the codes of masked patches."""

    codes: Codes | None = None
    """Number of codes; null uses the image tokenizer's number of codes."""
    class_token: Literal["none", "learned"] = "learned"
    """"learned" puts a learned class token before the patches, as in BEiT."""
    aggregation_layer: PositiveInt | None = None
    """Layer of patch aggregation (arXiv 2208.06366, section 2.3); null turns patch aggregation off.
    Patch aggregation adds a small stack that also predicts the codes of the masked patches. The
    small stack reads the features of the patches at `aggregation_layer`, and the class token of the
    top layer. The class token thus learns to summarise the image. BEiT v2 uses layer 9 of 12 (base)
    and layer 21 of 24 (large)."""
    aggregation_depth: Layers = 2
    """Number of layers of the small stack in patch aggregation."""
    loss_chunk: Free[NonNegativeInt] = 1024
    """Number of masked patches whose logits are computed at once in the loss; 0 for all."""

    @rule
    def _aggregation_is_inside(self) -> Iterator[str]:
        if self.aggregation_layer is not None and self.aggregation_layer >= self.layers:
            yield (f"aggregation_layer must be at least 1 and below layers ({self.layers}), "
                   f"not {self.aggregation_layer}")  # fmt: skip
        if self.aggregation_layer is not None and self.class_token == "none":
            yield "aggregation_layer needs class_token 'learned'"

    @rule
    def _masked_patches_stay_unseen(self) -> Iterator[str]:
        if self.stem != "linear":
            yield "stem must be 'linear', because convolutions leak masked patches to neighbours"


@configuration
class ImageModellingDataConfig(ImageDataConfig):
    """The `data` section of a recipe for masked image modelling."""

    image_tokenizer: str = BUILTIN_TOKENIZER
    """Image tokenizer whose codes are predicted. The value is the directory of an image-tokenizer
    run, or `builtin:patches`, which is k-means of the training images' patches."""
    mask_ratio: Share = 75 / 196
    """Share of masked patches (75 of 196 in BEiT v2)."""

    @rule
    def _patches_have_codes(self) -> Iterator[str]:
        if self.augmentation.erasing:
            yield "augmentation.erasing must be 0: erased patches have no code"


@configuration
class SegmenterConfig(FineTunedImageConfig):
    """Segmenter: a ViT, and UperNet on the features of four of its layers.

    The defaults are those of BEiT's recipe for ADE20k.
    """

    image_size: Side | None = 512
    """Height and width of training crops and of evaluation windows in pixels, at least two patches.
    Null takes the size from the pre-trained run. Without a run, the size is the median of the
    images' shorter sides, at most 64, rounded to a multiple of the patch size."""
    classes: Annotated[int, Interval(ge=2, le=IGNORED)] | None = 150
    """Number of classes. Null takes the number of class names in the data. If the data have no
    class names, null takes the largest class number in the masks (at most 2,000 masks of each
    split are read), plus 1."""
    feature_layers: FourLayers | None = None
    """Four layers, counted from 0, whose features the heads read. The last of the four layers must
    be the top layer of the encoder. With 12 layers, BEiT uses 3, 5, 7 and 11. With 24 layers, BEiT
    uses 7, 11, 15 and 23. Null uses four evenly spaced layers."""
    head_channels: Width = 768
    """Channels of UperNet (768 for a base model, 1024 for a large model)."""
    pool_scales: tuple[PositiveInt, ...] = (1, 2, 3, 6)
    """Sizes of the grids in pyramid pooling. A grid of size 3 has 3 x 3 cells."""
    head_dropout: Dropout = 0.1
    """Dropout of whole channels before each head's classifier."""
    auxiliary_channels: Width = 256
    """Channels of the auxiliary FCN head."""
    auxiliary_level: Annotated[int, Interval(ge=0, le=3)] = 2
    """Index of the feature map that the auxiliary head reads, counted from 0."""
    auxiliary_weight: NonNegativeFloat = 0.4
    """Weight of the auxiliary head's loss."""
    inference: Literal["slide", "whole"] = "slide"
    """Inference on the whole image, or on windows. With "slide", the logits of overlapping windows
    of `image_size` are averaged. With "whole", the model encodes the whole image at once, and
    interpolates learned positions to the image's size."""
    stride: PositiveInt | None = 341
    """Pixels from one window to the next; null uses `image_size`, so that windows do not
    overlap."""

    @rule
    def _windows_cover_the_image(self) -> Iterator[str]:
        if self.image_size is None:
            return
        if self.patch_size is not None and self.image_size < 2 * self.patch_size:
            yield (f"image_size must be at least {2 * self.patch_size} pixels (two patches), not "
                   f"{self.image_size}")  # fmt: skip
        if self.stride is not None and self.stride > self.image_size:
            yield f"stride must be from 1 to image_size ({self.image_size}), not {self.stride}"

    @rule
    def _feature_layers_rise(self) -> Iterator[str]:
        top, layers = self.layers - 1, list(self.read_layers)
        if layers != sorted(layers) or layers[-1] != top:
            yield f"feature_layers {layers} must ascend and end with the top layer ({top})"

    @property
    def read_layers(self) -> tuple[int, ...]:
        """Layers whose features the heads read: `feature_layers`, or four evenly spaced layers."""
        return self.feature_layers or tuple(
            max(self.layers * quarter // 4 - 1, 0) for quarter in (1, 2, 3, 4)
        )


@configuration
class SegmentationDataConfig(ImageSourceConfig):
    """Images with masks: the `data` section of a segmentation recipe."""

    source: str = "builtin:scenes"
    """Source of the images and masks. `builtin:scenes` has handwritten digits on a canvas. The
    source may also be a table of paths, `hf:NAME[:CONFIG]`, or a folder. A folder of images and
    masks has images/ and annotations/, or train/ and trainannot/."""
    classes: tuple[str, ...] | None = None
    """Names of the classes in the order of their numbers. With `reduce_zero_label`, the
    first name belongs to number 1 in the mask files. Null uses the class names of the source, or
    else the class numbers."""
    reduce_zero_label: bool = False
    """Whether 0 in a mask is ignored and all other numbers are reduced by one, as for ADE20k."""
    ignored: tuple[Annotated[int, Interval(ge=0, le=IGNORED)], ...] = ()
    """Ignored numbers in the masks. With `reduce_zero_label`, give the numbers as they are in the
    mask files. The number 255 is always ignored."""
    fit: tuple[PositiveInt, PositiveInt] | None = None
    """Limits of an image's longer side and shorter side, in pixels (2048 and 512 for ADE20k).
    Before augmentation, each image is made as large as both limits allow, at the same aspect ratio.
    With null, images are not resized before augmentation."""
    augmentation: PairedAugmentationConfig = PairedAugmentationConfig()
    """Augmentation of training images with their masks."""

    @property
    def label_column(self) -> str:
        return ""
