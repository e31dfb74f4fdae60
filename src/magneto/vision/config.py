"""The `model` and `data` sections of recipes of images. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from magneto.config import ConfigError
from magneto.data.files import existing_path
from magneto.data.sources import check_builtin, parse_source
from magneto.nn.config import Grid, TransformerConfig

# Built-in sets.
NAMES = ("digits", "scenes")
# A tokenizer of images without a run: k-means of their patches.
BUILTIN_TOKENIZER = "builtin:patches"
TEACHERS = ("hog", "pixels", "clip:PATH", "dino:PATH")
# Of a mask's pixels: the class of what no loss or score sees.
IGNORED = 255


def outside(config: Any, **ranges: str) -> list[str]:
    """Return a line for each field that lies outside of its range, such as "(0, 1]"; None may."""
    wrong = []
    for name, allowed in ranges.items():
        low, high = map(float, allowed[1:-1].split(","))
        left_out = {low} if allowed[0] == "(" else set()
        left_out |= {high} if allowed[-1] == ")" else set()
        value = getattr(config, name)
        if value is not None and (value in left_out or not low <= value <= high):
            words = f"{low:g} or more" if high == math.inf else f"in {allowed}"
            wrong.append(f"{name} must be {words}, not {value}")
    return wrong


def refuse(wrong: list[str]) -> None:
    """Raise ConfigError with all that is wrong, if anything is."""
    if wrong:
        raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class ImageEncoderConfig(TransformerConfig):
    """An encoder over the patches of an image.

    Attributes:
        image_size: Height and width of the image, in pixels; a multiple of `patch_size`.
        patch_size: Height and width of a patch.
        channels: Of the image.
        stem: What makes a vector of each patch: a "linear" map, or "convolutions" with a stride
            (arXiv 2106.14881), which learn more from few images, and see beyond the patch.
        class_token: "learned" puts a learned vector before the patches.
    """

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    stem: Literal["linear", "convolutions"] = "linear"
    class_token: Literal["none", "learned"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        sides = {name: "[1, 65536]" for name in ("image_size", "patch_size", "channels")}
        wrong = outside(self, **sides)
        if not wrong and self.image_size % self.patch_size:
            wrong.append(
                f"patch_size ({self.patch_size}) must divide image_size ({self.image_size})"
            )
        if not wrong and self.positions == "learned" and self.max_length < self.grid.length:
            wrong.append(f"max_length must be at least {self.grid.length}, the patches and the "
                         "class token if any")  # fmt: skip
        refuse(wrong)

    @property
    def grid(self) -> Grid:
        """The patches row by row, after the class token if there is one."""
        side = self.image_size // self.patch_size
        return Grid(side, side, self.prefix)

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return self.grid.rows * self.grid.columns

    @property
    def prefix(self) -> int:
        """Vectors before the patches: the class token if there is one."""
        return int(self.class_token == "learned")


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
        wrong = [
            f"{name} must be a range above 0, not {low}, {high}"
            for name, (low, high), most in (
                ("crop_scale", self.crop_scale, 1), ("crop_ratio", self.crop_ratio, math.inf)
            )
            if not 0 < low <= high <= most
        ]  # fmt: skip
        wrong += outside(
            self, flip="[0, 1]", erasing="[0, 1]", hue="[0, 0.5]", rand_augment="[0, 10]",
            brightness="[0, inf)", contrast="[0, inf)", saturation="[0, inf)",
            rand_augment_std="[0, inf)", rand_augment_operations="[1, inf)", repeats="[1, inf)",
        )  # fmt: skip
        refuse(wrong)


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
        wrong = outside(self, largest_share="[0, 1]", flip="[0, 1]", photometric="[0, 1]")
        if not 0 < self.resize[0] <= self.resize[1]:
            wrong.append(f"resize must be a range above 0, not {self.resize}")
        if self.fit is not None and min(self.fit) < 1:
            wrong.append(f"fit must be two sizes of 1 or more, not {self.fit}")
        refuse(wrong)


@dataclass(frozen=True, kw_only=True)
class ImageSourceConfig:
    """Which images, and how the model reads them.

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
        mask_column: Column that has the masks; None finds it.
        normalisation: What the model reads: "half" is pixels from -1 to 1; "imagenet" has the mean
            and standard deviation of ImageNet's pixels taken out.
    """

    source: str = "builtin:digits"
    validation_source: str | None = None
    validation_fraction: float = 0.2
    classes: tuple[str, ...] | None = None
    image_column: str | None = None
    mask_column: str | None = None
    normalisation: Literal["half", "imagenet"] = "half"

    def __post_init__(self) -> None:
        for given in (self.source, self.validation_source):
            found = parse_source(given or "")
            if found.kind == "builtin":
                check_builtin(found, NAMES, "images")
        refuse(outside(self, validation_fraction="(0, 1)"))


@dataclass(frozen=True, kw_only=True)
class ImageDataConfig(ImageSourceConfig):
    """Images: the `data` section of a recipe. See docs/concepts/image_data.md.

    Attributes:
        label_column: Column that has the labels; None finds it, "" reads none.
        resize: Shorter side to which a validation image is resized before its middle is cut out
            (256 for 224 on ImageNet); None resizes it to the model's image_size.
        augmentation: Of training images.
    """

    label_column: str | None = None
    resize: int | None = None
    augmentation: AugmentationConfig = AugmentationConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(outside(self, resize="[1, inf)"))


@dataclass(frozen=True, kw_only=True)
class ImageClassifierConfig(ImageEncoderConfig):
    """An encoder over patches, and a head.

    Attributes:
        classes: Of the answer; None for as many as the data has.
        pooling: What the head sees: the "mean" of the patches' features; the same mean of features
            that the stack's last norm has not seen, with that norm after it ("mean_then_norm", as
            BEiT-3 does; the mean alone where a placement, such as Post-LN, has no last norm); or
            the "first" feature, the class token's (as ViT does).
        objective: What training minimises: "cross_entropy" over the classes, or
            "binary_cross_entropy" of each class by itself, summed over the classes (arXiv
            2110.00476, section 4.1).
        label_smoothing: Share of a label that is spread over all classes (0.1 in the paper).
        layer_decay: Each layer learns at the rate of the one above it times this; 1 for none (0.65
            and 0.8 in the paper).
        pretrained: Directory of a run of images whose patches, positions and encoder to begin with;
            "{placement}" in it stands for the placement's name. None begins from scratch.
    """

    classes: int | None = None
    pooling: Literal["mean", "mean_then_norm", "first"] = "mean"
    objective: Literal["cross_entropy", "binary_cross_entropy"] = "cross_entropy"
    label_smoothing: float = 0.0
    layer_decay: float = 1.0
    pretrained: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = outside(self, label_smoothing="[0, 1)", layer_decay="(0, 1]")
        if self.pooling == "first" and self.class_token == "none":
            wrong.append("pooling 'first' needs class_token 'learned'")
        refuse(wrong)


@dataclass(frozen=True, kw_only=True)
class ImageClassificationDataConfig(ImageDataConfig):
    """Labelled images: the `data` section of a recipe. See docs/concepts/image_classification.md.

    Attributes:
        mixup: Alpha of the Beta distribution by which pairs of training images are mixed (0.8 in
            the paper); 0 is off.
        cutmix: Likewise of the share of pixels that stay where a part of one is put into another
            (1.0 in the paper); 0 is off. Where both are on, each pair takes one of them.
        class_names: Path of a text file with a class's name in each line, in the order of their
            numbers, in place of `classes`. For a run whose classes have other names than the
            folders that it is measured on: ImageNet's 1000 wnids, n01440764 and so on.
        candidates: Which classes an answer is chosen from in validation: "all" that the model has,
            or those that are "present" in the validation images (200 of ImageNet-A and -R).
    """

    mixup: float = 0.0
    cutmix: float = 0.0
    class_names: str | None = None
    candidates: Literal["all", "present"] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(outside(self, mixup="[0, inf)", cutmix="[0, inf)"))


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


@dataclass(frozen=True, kw_only=True)
class ImageTokenizerConfig(ImageEncoderConfig):
    """An encoder, a codebook, and a small decoder that a teacher's features are read from.

    Defaults are those of BEiT v2 (arXiv 2208.06366, section 3.1, and its released code).

    Attributes:
        codes: Vectors of the codebook.
        code_width: Width of each.
        decay: Of the codebook's moving averages.
        revive_below: A code whose share of use falls below this multiple of an even share
            (1 / `codes`) is revived: it gets a part of what a much used code stands for. 0 revives
            none, as in the released code.
        k_means_iterations: Of the k-means that the codebook begins with.
        k_means_patches: Patches per code that it sees, at least.
        commitment: Weight of the distance between the encoder's output and its code.
        decoder_depth: Layers of the decoder.
        teacher: What the decoder predicts: "hog", histograms of gradients, or "pixels", both of the
            image itself; "clip:PATH" or "dino:PATH", the features of a model of transformers, a
            folder or a name on the hub.
        target_width: Width of the teacher's features; None asks the teacher.
    """

    codes: int = 8192
    code_width: int = 32
    decay: float = 0.99
    revive_below: float = 0.03
    k_means_iterations: int = 10
    k_means_patches: int = 10
    commitment: float = 1.0
    decoder_depth: int = 3
    teacher: str = "hog"
    target_width: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = outside(
            self, codes="[2, inf)", code_width="[1, inf)", decoder_depth="[1, inf)",
            k_means_patches="[1, inf)", k_means_iterations="[0, inf)", commitment="[0, inf)",
            decay="[0, 1)", revive_below="[0, 1)",
        )  # fmt: skip
        kind, _, path = self.teacher.partition(":")
        if (f"{kind}:PATH" if path else kind) not in TEACHERS:
            wrong.append(f"no teacher {self.teacher!r}: there are {', '.join(TEACHERS)}")
        refuse(wrong)


@dataclass(frozen=True, kw_only=True)
class ImageModelConfig(ImageEncoderConfig):
    """An encoder over patches, some of them hidden, that guesses the codes of the hidden ones.

    Attributes:
        codes: Of the tokenizer; None for as many as it has.
        class_token: "learned" by default, as in BEiT.
        aggregation_layer: Layers after which patches go to a second, small stack, which sees the
            class token of the last layer beside them and guesses the same codes, so that the class
            token has to sum up the image (patch aggregation, arXiv 2208.06366, section 3.2: 9 of 12
            layers, 21 of 24). None for no second guess.
        aggregation_depth: Layers of that stack.
        loss_chunk: Rows of logits that exist at once in the loss; 0 for all.
    """

    codes: int | None = None
    class_token: Literal["none", "learned"] = "learned"
    aggregation_layer: int | None = None
    aggregation_depth: int = 2
    loss_chunk: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = outside(self, codes="[2, inf)", aggregation_depth="[1, inf)")
        if self.stem != "linear":
            wrong.append("stem must be linear: convolutions show what is hidden to its neighbours")
        if self.aggregation_layer is not None:
            if not 1 <= self.aggregation_layer < self.layers:
                wrong.append(f"aggregation_layer must be 1 or more and below layers "
                             f"({self.layers}), not {self.aggregation_layer}")  # fmt: skip
            if self.class_token == "none":
                wrong.append("aggregation_layer needs class_token 'learned'")
        refuse(wrong)


@dataclass(frozen=True, kw_only=True)
class ImageModellingDataConfig(ImageDataConfig):
    """Images, and what makes codes of them: the `data` section of a recipe.

    Attributes:
        image_tokenizer: The directory of a run of an image-tokenizer recipe, whose codes are to be
            guessed; or builtin:patches, k-means of the images' own patches.
        mask_ratio: Share of the patches that is hidden (BEiT v2 hides 75 of 196).
    """

    image_tokenizer: str = BUILTIN_TOKENIZER
    mask_ratio: float = 75 / 196

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = outside(self, mask_ratio="(0, 1)")
        if not self.image_tokenizer:
            wrong.append(f"image_tokenizer must be a run's directory or {BUILTIN_TOKENIZER}")
        refuse(wrong)


@dataclass(frozen=True, kw_only=True)
class SegmenterConfig(ImageEncoderConfig):
    """A ViT with UperNet on four of its layers; the defaults are BEiT's recipe for ADE20k.

    Attributes:
        image_size: Height and width of training crops, and of the windows of sliding-window
            evaluation, in pixels; two patches or more.
        classes: Of a pixel.
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
    classes: int = 150
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
        size, top, layers = self.image_size, self.layers - 1, list(self.feature_layers)
        wrong = outside(
            self, image_size=f"[{2 * self.patch_size}, inf)", stride=f"[1, {size}]",
            classes=f"[2, {IGNORED}]", head_dropout="[0, 1)", auxiliary_level="[0, 3]",
            auxiliary_weight="[0, inf)", layer_decay="(0, 1]",
        )  # fmt: skip
        if layers != sorted(layers) or layers[0] < 0 or layers[-1] != top:
            wrong.append(f"feature_layers must rise from 0 or more to the top layer, {top}, "
                         f"not {layers}")  # fmt: skip
        if not self.pool_scales or min(self.pool_scales) < 1:
            wrong.append(f"pool_scales must be 1 or more each, not {list(self.pool_scales)}")
        refuse(wrong)


@dataclass(frozen=True, kw_only=True)
class SegmentationDataConfig(ImageSourceConfig):
    """Images with masks: the `data` section of a recipe. See docs/concepts/image_data.md.

    Attributes:
        source: builtin:scenes, handwritten digits on a canvas; a folder with images/ and
            annotations/ or with train/ and trainannot/; a table of paths; or hf:NAME[:CONFIG].
        classes: Names of the classes in the order of their numbers, after `reduce_zero_label`;
            None for the source's, or else their numbers.
        reduce_zero_label: Whether 0 in a mask is no class, and 1 the first (ADE20k): 0 is ignored,
            all others are one less.
        ignored: Further numbers in masks, as they are stored, that are no class. 255 is none.
        fit: Longer and shorter side that a validation image is made to fit in, its ratio kept
            ((2048, 512) for ADE20k); None keeps its size. Of training images `augmentation` says
            the same.
        augmentation: Of training images, together with their masks.
    """

    source: str = "builtin:scenes"
    reduce_zero_label: bool = False
    ignored: tuple[int, ...] = ()
    fit: tuple[int, int] | None = None
    augmentation: PairedAugmentationConfig = PairedAugmentationConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = [n for n in self.ignored if not 0 <= n <= IGNORED]
        if wrong:
            raise ValueError(f"ignored numbers are 0 to {IGNORED}, not {wrong[0]}")
        if self.fit is not None and min(self.fit) < 1:
            raise ValueError(f"fit must be two sides of 1 or more, not {list(self.fit)}")

    @property
    def label_column(self) -> str:
        """Labels of whole images are not read."""
        return ""
