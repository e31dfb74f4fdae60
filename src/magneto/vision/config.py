"""The `model` and `data` sections of recipes of images. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Interval

from magneto.config import LARGEST
from magneto.data.files import existing_path
from magneto.data.sources import wrong_builtin
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
# A tokenizer of images without a run: k-means of their patches.
BUILTIN_TOKENIZER = "builtin:patches"
TEACHERS = ("hog", "pixels", "clip:PATH", "dino:PATH")
# Of a mask's pixels: the class of what no loss or score sees.
IGNORED = 255
# Folders of masks beside one of images, and what follows the name of a split's folder of images
# in the name of its folder of masks (CamVid's, as SegNet's authors give it).
IMAGE_FOLDERS = ("images", "image", "imgs")
MASK_FOLDERS = ("annotations", "masks", "annotation", "mask", "labels")
MASK_SUFFIXES = ("annot", "_annot", "_labels", "_masks", "_mask")
Side = Annotated[int, Interval(ge=1, le=65536)]
Codes = Annotated[int, Interval(ge=2, lt=LARGEST)]
FourLayers = tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt, NonNegativeInt]


@configuration
class ImageInputConfig:
    """Size of a model's images and of their patches."""

    image_size: Side | None = 224
    """Height and width of the image in pixels, a multiple of `patch_size`. None: the median of the
    images' shorter sides, at most 64; with `pretrained` or a trained image tokenizer that run's."""
    patch_size: Side | None = 16
    """Height and width of a patch in pixels. None: 8 patches a side, or fewer of 2 pixels; with
    another run that run's."""
    channels: Side | None = 3
    """Channels of the image. None: 1 if a sample of the images is grey, else 3; with another run
    that run's."""

    @rule
    def _patches_fill_the_image(self) -> Iterator[str]:
        size, patch = self.image_size, self.patch_size
        if size is not None and patch is not None and size % patch:
            yield f"patch_size ({patch}) must divide image_size ({size})"

    @property
    def input_sizes(self) -> tuple[int, int, int]:
        """`image_size`, `patch_size` and `channels`.

        Raises:
            ValueError: If one of them is None, which the task derives when it is prepared.
        """
        if self.image_size is None or self.patch_size is None or self.channels is None:
            raise ValueError("model.image_size, patch_size or channels is null: prepare the task, "
                             "which derives it from the data, or set it")  # fmt: skip
        return self.image_size, self.patch_size, self.channels

    @property
    def patches(self) -> int:
        """Patches of one image."""
        size, patch, _ = self.input_sizes
        return (size // patch) ** 2


@configuration
class ImageEncoderConfig(ImageInputConfig, TransformerConfig):
    """An encoder over the patches of an image.

    Where `image_size`, `patch_size` or `channels` is None, `max_length` is derived too.
    """

    stem: Literal["linear", "convolutions"] = "linear"
    """What makes a vector of each patch: a "linear" map, or "convolutions" with a stride (arXiv
    2106.14881), which learn more from few images, and see beyond the patch."""
    class_token: Literal["none", "learned"] = "none"
    """"learned" puts a learned vector before the patches."""

    @rule
    def _positions_reach_all_patches(self) -> Iterator[str]:
        if self.positions != "learned" or None in (self.image_size, self.patch_size, self.channels):
            return
        if self.max_length < self.grid.length:
            yield (f"max_length must be at least {self.grid.length}, the patches and the class "
                   "token if any")  # fmt: skip

    @property
    def grid(self) -> Grid:
        """The patches row by row, after the class token if there is one."""
        size, patch, _ = self.input_sizes
        return Grid(size // patch, size // patch, self.prefix)

    @property
    def prefix(self) -> int:
        """Vectors before the patches: the class token if there is one."""
        return int(self.class_token == "learned")


@configuration
class AugmentationConfig:
    """How a training image is changed at random; nothing is, by default."""

    crop: Literal["centre", "random_resized"] = "centre"
    """"centre" takes the largest square in the middle, as in validation; "random_resized" a
    rectangle drawn at random, made a square (arXiv 1409.4842, section 6)."""
    crop_scale: tuple[Part, Part] = (0.08, 1.0)
    """Range of that rectangle's share of the image (0.2 to 1 in BEiT's pre-training)."""
    flip: Probability = 0.0
    """Probability of a mirror image."""
    brightness: NonNegativeFloat = 0.0
    """Colour jitter, as in torchvision: brightness is multiplied by 1 - it to 1 + it."""
    contrast: NonNegativeFloat = 0.0
    """Likewise."""
    saturation: NonNegativeFloat = 0.0
    """Likewise."""
    hue: Annotated[float, Interval(ge=0, le=0.5)] = 0.0
    """Turned by up to this part of the circle of colours, either way: 0 to 0.5."""
    rand_augment: Annotated[float, Interval(ge=0, le=10)] = 0.0
    """Magnitude of RandAugment, 0 to 10 (arXiv 1909.13719); 0 is off. As timm's
    "rand-mM-mstdS-inc1": where an operation has a strength, it grows with the magnitude."""
    rand_augment_std: NonNegativeFloat = 0.5
    """Standard deviation of an operation's magnitude."""
    erasing: Probability = 0.0
    """Probability that a rectangle becomes noise (arXiv 1708.04896)."""
    repeats: PositiveInt = 1
    """Times that an image comes in a batch, each time changed otherwise; 1 is once."""

    @rule
    def _range_rises(self) -> Iterator[str]:
        if self.crop_scale[0] > self.crop_scale[1]:
            yield f"crop_scale must be a range above 0, not {self.crop_scale}"


@configuration
class PairedAugmentationConfig:
    """How a training image and its mask are changed together, as mmsegmentation does for ADE20k."""

    resize: tuple[PositiveFloat, PositiveFloat] = (0.5, 2.0)
    """Range of the factor by which an image is resized, after `data.fit`."""
    largest_share: Probability = 0.75
    """Largest share of a crop that one class may have (`cat_max_ratio`); after ten tries the last
    crop is taken."""
    flip: Probability = 0.5
    """Probability of a mirror image."""
    photometric: Probability = 0.5
    """Probability of each change of brightness, contrast, saturation and hue."""

    @rule
    def _range_rises(self) -> Iterator[str]:
        if self.resize[0] > self.resize[1]:
            yield f"resize must be a range above 0, not {self.resize}"


@configuration
class ImageSourceConfig:
    """Which images, and how the model reads them."""

    source: str = "builtin:digits"
    """builtin:digits, 1797 handwritten digits of 8 x 8 pixels (UCI, by scikit-learn);
    builtin:scenes, such digits on a canvas with masks; the path of a folder of images, of tar
    shards, or of a table of paths (.jsonl, .json, .csv, .tsv, .parquet); or
    hf:NAME[:CONFIG[:SPLIT]]."""
    validation_source: str | None = None
    """Validate on another source: all images of its validation split, else of its test split, else
    of the whole. None validates on the source's own validation split, or on images held out of its
    training split."""
    validation_fraction: Share = 0.2
    """Share of images held out where a source has no validation split: drawn by the recipe's seed
    from a built-in set, by a hash of their names from others."""
    classes: tuple[str, ...] | None = None
    """Names of the classes in the order of their numbers. None: those of the training images."""
    image_column: str | None = None
    """Column of a table or data set that has the images; None finds it."""
    mask_column: str | None = None
    """Column that has the masks; None finds it."""
    normalisation: Literal["half", "imagenet"] = "half"
    """What the model reads: "half" is pixels from -1 to 1; "imagenet" has the mean and standard
    deviation of ImageNet's pixels taken out."""

    @rule
    def _sources_are_there(self) -> Iterator[str]:
        for source in (self.source, self.validation_source):
            yield from wrong_builtin(source, NAMES, "images")


@configuration
class ImageDataConfig(ImageSourceConfig):
    """Images: the `data` section of a recipe. See docs/concepts/image_data.md."""

    label_column: str | None = None
    """Column that has the labels; None finds it, "" reads none."""
    resize: PositiveInt | None = None
    """Shorter side to which a validation image is resized before its middle is cut out (256 for 224
    on ImageNet); None resizes it to the model's image_size."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Of training images."""


@configuration
class FineTunedImageConfig(ImageEncoderConfig):
    """An encoder over patches that may begin with that of another run."""

    layer_decay: Free[Part] = 1.0
    """Each layer learns at the rate of the one above it times this; 1 for none (0.65 and 0.8 in the
    paper's classifiers)."""
    pretrained: Free[str | None] = None
    """Directory of a run of images whose patches, positions and encoder to begin with;
    "{placement}" in it stands for the placement's name. None begins from scratch."""


@configuration
class ImageClassifierConfig(FineTunedImageConfig):
    """An encoder over patches, and a head."""

    classes: PositiveInt | None = None
    """Of the answer; None for as many as the data has."""
    pooling: Literal["mean", "mean_then_norm", "first"] = "mean"
    """What the head sees: the "mean" of the patches' features; the same mean of features that the
    stack's last norm has not seen, with that norm after it ("mean_then_norm", as BEiT-3 does; the
    mean alone where a placement, such as Post-LN, has no last norm); or the "first" feature, the
    class token's (as ViT does)."""
    objective: Free[Literal["cross_entropy", "binary_cross_entropy"]] = "cross_entropy"
    """What training minimises: "cross_entropy" over the classes, or "binary_cross_entropy" of each
    class by itself, summed over the classes (arXiv 2110.00476, section 4.1)."""
    label_smoothing: Free[Dropout] = 0.0
    """Share of a label that is spread over all classes (0.1 in the paper)."""

    @rule
    def _first_feature_is_the_class_token(self) -> Iterator[str]:
        if self.pooling == "first" and self.class_token == "none":
            yield "pooling 'first' needs class_token 'learned'"


@configuration
class ImageClassificationDataConfig(ImageDataConfig):
    """Labelled images: the `data` section of a recipe.

    See docs/concepts/image_classification.md.
    """

    mixup: NonNegativeFloat = 0.0
    """Alpha of the Beta distribution by which pairs of training images are mixed (0.8 in the
    paper); 0 is off."""
    cutmix: NonNegativeFloat = 0.0
    """Likewise of the share of pixels that stay where a part of one is put into another (1.0 in the
    paper); 0 is off. Where both are on, each pair takes one of them."""
    class_names: str | None = None
    """Path of a text file with a class's name in each line, in the order of their numbers, in place
    of `classes`. For a run whose classes have other names than the folders that it is measured on:
    ImageNet's 1000 wnids, n01440764 and so on."""
    candidates: Literal["all", "present"] = "all"
    """Which classes an answer is chosen from in validation: "all" that the model has, or those that
    are "present" in the validation images (200 of ImageNet-A and -R)."""


def given_names(data: ImageClassificationDataConfig) -> tuple[str, ...] | None:
    """Return the names of the classes that a recipe gives; None for those of the data.

    Raises:
        FileNotFoundError: If there is no file of them; names the nearest.
        ValueError: If two classes have one name.
    """
    if data.class_names is None:
        return data.classes
    lines = existing_path(data.class_names).read_text(encoding="utf-8").splitlines()
    names = tuple(line.strip() for line in lines if line.strip())
    if len(set(names)) < len(names):
        raise ValueError(f"{data.class_names} has a class's name twice")
    return names


@configuration
class ImageTokenizerConfig(ImageEncoderConfig):
    """An encoder, a codebook, and a small decoder that a teacher's features are read from.

    Defaults are those of BEiT v2 (arXiv 2208.06366, section 3.1, and its released code).
    """

    codes: Codes = 8192
    """Vectors of the codebook."""
    code_width: Width = 32
    """Width of each."""
    decay: Dropout = 0.99
    """Of the codebook's moving averages."""
    revive_below: Dropout = 0.03
    """A code whose share of use falls below this multiple of an even share (1 / `codes`) is
    revived: it gets a part of what a much used code stands for. 0 revives none, as in the released
    code."""
    commitment: NonNegativeFloat = 1.0
    """Weight of the distance between the encoder's output and its code."""
    decoder_depth: Layers = 3
    """Layers of the decoder."""
    teacher: str = "hog"
    """What the decoder predicts: "hog", histograms of gradients, or "pixels", both of the image
    itself; "clip:PATH" or "dino:PATH", the features of a model of transformers, a folder or a name
    on the hub."""
    target_width: PositiveInt | None = None
    """Width of the teacher's features; None asks the teacher."""

    @rule
    def _teacher_is_there(self) -> Iterator[str]:
        kind, _, path = self.teacher.partition(":")
        if (f"{kind}:PATH" if path else kind) not in TEACHERS:
            yield f"teacher {self.teacher!r} is none: there are {', '.join(TEACHERS)}"


@configuration
class ImageModelConfig(ImageEncoderConfig):
    """An encoder over patches, some of them hidden, that guesses the codes of the hidden ones."""

    codes: Codes | None = None
    """Of the tokenizer; None for as many as it has."""
    class_token: Literal["none", "learned"] = "learned"
    """"learned" by default, as in BEiT."""
    aggregation_layer: PositiveInt | None = None
    """Layers after which patches go to a second, small stack, which sees the class token of the
    last layer beside them and guesses the same codes, so that the class token has to sum up the
    image (patch aggregation, arXiv 2208.06366, section 3.2: 9 of 12 layers, 21 of 24). None for no
    second guess."""
    aggregation_depth: Layers = 2
    """Layers of that stack."""
    loss_chunk: Free[NonNegativeInt] = 1024
    """Rows of logits that exist at once in the loss; 0 for all."""

    @rule
    def _aggregation_is_inside(self) -> Iterator[str]:
        if self.aggregation_layer is not None and self.aggregation_layer >= self.layers:
            yield (f"aggregation_layer must be 1 or more and below layers ({self.layers}), "
                   f"not {self.aggregation_layer}")  # fmt: skip
        if self.aggregation_layer is not None and self.class_token == "none":
            yield "aggregation_layer needs class_token 'learned'"

    @rule
    def _hidden_patches_stay_hidden(self) -> Iterator[str]:
        if self.stem != "linear":
            yield "stem must be linear: convolutions show what is hidden to its neighbours"


@configuration
class ImageModellingDataConfig(ImageDataConfig):
    """Images, and what makes codes of them: the `data` section of a recipe."""

    image_tokenizer: str = BUILTIN_TOKENIZER
    """The directory of a run of an image-tokenizer recipe, whose codes are to be guessed; or
    builtin:patches, k-means of the images' own patches."""
    mask_ratio: Share = 75 / 196
    """Share of the patches that is hidden (BEiT v2 hides 75 of 196)."""

    @rule
    def _tokenizer_is_named(self) -> Iterator[str]:
        if not self.image_tokenizer:
            yield f"image_tokenizer must be a run's directory or {BUILTIN_TOKENIZER}"


@configuration
class SegmenterConfig(FineTunedImageConfig):
    """A ViT with UperNet on four of its layers; the defaults are BEiT's recipe for ADE20k."""

    image_size: Side | None = 512
    """Height and width of training crops, and of the windows of sliding-window evaluation, in
    pixels; two patches or more. None: as for other models of images."""
    classes: Annotated[int, Interval(ge=2, le=IGNORED)] | None = 150
    """Number of classes of a pixel. None: as many as the data names, or as a sample of the masks
    has."""
    feature_layers: FourLayers | None = None
    """Four layers, counted from 0, whose features the heads read; the last is the top layer (3, 5,
    7, 11 of 12; 7, 11, 15, 23 of 24). None spreads them evenly."""
    head_channels: Width = 768
    """Of UperNet (768 for base, 1024 for large)."""
    pool_scales: tuple[PositiveInt, ...] = (1, 2, 3, 6)
    """Rows and columns that pyramid pooling pools to."""
    head_dropout: Dropout = 0.1
    """Of whole channels, before the classes."""
    auxiliary_channels: Width = 256
    """Of the auxiliary FCN head."""
    auxiliary_level: Annotated[int, Interval(ge=0, le=3)] = 2
    """Which of the four maps it reads, counted from 0."""
    auxiliary_weight: NonNegativeFloat = 0.4
    """Of its loss."""
    inference: Literal["slide", "whole"] = "slide"
    """How an image is segmented: "slide" puts windows of `image_size` over it, "whole" reads it at
    once, learned positions interpolated to its size."""
    stride: PositiveInt | None = 341
    """Pixels from one window to the next. None: `image_size`, so that windows do not overlap."""

    @rule
    def _windows_cover_the_image(self) -> Iterator[str]:
        if self.image_size is None:
            return
        if self.patch_size is not None and self.image_size < 2 * self.patch_size:
            yield f"image_size must be {2 * self.patch_size} or more, not {self.image_size}"
        if self.stride is not None and self.stride > self.image_size:
            yield f"stride must be 1 to image_size ({self.image_size}), not {self.stride}"

    @rule
    def _feature_layers_rise(self) -> Iterator[str]:
        top, layers = self.layers - 1, list(self.read_layers)
        if layers != sorted(layers) or layers[-1] != top:
            yield (f"feature_layers must rise from 0 or more to the top layer, {top}, "
                   f"not {layers}")  # fmt: skip

    @property
    def read_layers(self) -> tuple[int, ...]:
        """The layers whose features the heads read: those that are set, or an even spread."""
        return self.feature_layers or tuple(
            max(self.layers * quarter // 4 - 1, 0) for quarter in (1, 2, 3, 4)
        )

    @rule
    def _pyramid_has_scales(self) -> Iterator[str]:
        if not self.pool_scales:
            yield "pool_scales must be one number or more"


@configuration
class SegmentationDataConfig(ImageSourceConfig):
    """Images with masks: the `data` section of a recipe. See docs/concepts/image_data.md."""

    source: str = "builtin:scenes"
    """builtin:scenes, handwritten digits on a canvas; a folder with images/ and annotations/ or
    with train/ and trainannot/; a table of paths; or hf:NAME[:CONFIG]."""
    classes: tuple[str, ...] | None = None
    """Names of the classes in the order of their numbers, after `reduce_zero_label`; None for the
    source's, or else their numbers."""
    reduce_zero_label: bool = False
    """Whether 0 in a mask is no class, and 1 the first (ADE20k): 0 is ignored, all others are one
    less."""
    ignored: tuple[Annotated[int, Interval(ge=0, le=IGNORED)], ...] = ()
    """Further numbers in masks, as they are stored, that are no class. 255 is none."""
    fit: tuple[PositiveInt, PositiveInt] | None = None
    """Longer and shorter side that an image is made to fit in, its ratio kept ((2048, 512) for
    ADE20k), before a training image is changed at random; None keeps its size."""
    augmentation: PairedAugmentationConfig = PairedAugmentationConfig()
    """Of training images, together with their masks."""

    @property
    def label_column(self) -> str:
        """Labels of whole images are not read."""
        return ""
