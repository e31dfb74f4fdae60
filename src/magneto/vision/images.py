"""Training and validation images from any source, read by index.

`load_images` lists a source without decoding its images. `magneto.vision.batches` makes batches.
`magneto.vision.transforms` and `magneto.vision.augmentation` make a model's input from a `Picture`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from magneto.data.formats import (
    has_files,
    media_column,
    media_names,
    read_source,
    split_folders,
    subfolders,
)
from magneto.data.media import Files, MediaColumn
from magneto.data.problems import Counts, DataProblems
from magneto.data.sources import parse_source
from magneto.data.table import NO_CLASS, Classes, Table, divide, table_of_columns
from magneto.files import import_extra
from magneto.progress import SILENT, Progress
from magneto.vision.config import IMAGE_FOLDERS, MASK_FOLDERS, MASK_SUFFIXES, ImageDataConfig
from magneto.vision.decoding import BrokenImage, Picture, Pixels, open_image, open_mask
from magneto.vision.transforms import from_image, to_image

# Step between the 17 grey levels of the digits, as bytes.
LEVEL = 15
# Scenes: height and width in pixels, and number of scenes by split.
SIZE = 48
SCENES = {"train": 1600, "validation": 400}
# Scenes: largest number of digits, and range of their height and width in pixels.
MOST_DIGITS = 4
DIGIT_SIZES = (12, 24)
# Ink of a digit's pixel, from 0 to 1, above which the mask has the digit's class at this pixel.
INK = 0.4
NOISE = 12.0
CLASSES = ["background", *map(str, range(10))]

UNLABELLED = NO_CLASS
# Labels that are whole numbers below this limit are class numbers; others are names.
MOST_CLASSES = 1_000_000
# Kinds of problems with images.
BROKEN, MISSING_IMAGE = "broken image", "missing image"
BY_PILLOW = "JPEG decoded by Pillow, since simplejpeg refuses it"
WITHOUT_IMAGE = "records left out because of a missing image"
WITHOUT_MASK = "images without a mask"
NOT_PAIRED = "images left out because of a missing mask"
# Images whose masks show how masks are named.
SAMPLED_STEMS = 20
# Endings of Cityscapes' images, and of those of its masks that have class numbers.
CITYSCAPES, CLASS_MASKS = "_leftImg8bit", ("_labelTrainIds", "_labelIds")


def digits() -> dict[str, Table]:
    """Return scikit-learn's digits: 1797 images (8, 8, 1) with labels. The background is black."""
    pixels, labels = _load_digits()
    classes = Classes(labels, [str(digit) for digit in range(10)])
    columns = {"image": Pixels(pixels, peak=16 * LEVEL), "label": classes}
    return {"train": table_of_columns(columns, "builtin:digits")}


def _load_digits() -> tuple[np.ndarray, np.ndarray]:
    datasets = import_extra("sklearn.datasets", "vision", "builtin:digits needs scikit-learn")
    values, labels = datasets.load_digits(return_X_y=True)
    pixels = (np.asarray(values) * LEVEL).astype(np.uint8).reshape(-1, 8, 8, 1)
    return pixels, np.asarray(labels, np.int64)


def scenes() -> dict[str, Table]:
    """Return colour scenes of 48 x 48 pixels with masks of 11 classes.

    A mask has 0 for the background and digit + 1 for a digit. Training scenes and validation scenes
    consist of different handwritten digits.
    """
    pixels, labels = _load_digits()
    held = np.arange(len(pixels)) % 5 == 0
    return {
        "train": _compose(pixels[~held], labels[~held], SCENES["train"], 1),
        "validation": _compose(pixels[held], labels[held], SCENES["validation"], 2),
    }


def _compose(pixels: np.ndarray, labels: np.ndarray, count: int, seed: int) -> Table:
    images = np.zeros((count, SIZE, SIZE, 3), np.uint8)
    masks = np.zeros((count, SIZE, SIZE), np.uint8)
    for number in range(count):
        random = np.random.default_rng([seed, number])
        images[number], masks[number] = _scene(pixels, labels, random)
    unlabelled = Classes(np.full(count, NO_CLASS, np.int64), CLASSES)
    columns = {"image": Pixels(images), "label": unlabelled, "mask": Pixels(masks)}
    return table_of_columns(columns, "builtin:scenes")


def _scene(
    pixels: np.ndarray, labels: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    mask = np.zeros((SIZE, SIZE), np.uint8)
    image = random.uniform(0, 110, 3) + np.zeros((SIZE, SIZE, 3))
    for _ in range(random.integers(1, MOST_DIGITS + 1)):
        which, size = random.integers(len(pixels)), int(random.integers(*DIGIT_SIZES))
        top, left = random.integers(0, SIZE - size + 1, 2)
        part = slice(top, top + size), slice(left, left + size)
        ink = from_image(to_image(pixels[which]).resize((size, size))) / pixels.max()
        image[part] += ink * (random.uniform(130, 255, 3) - image[part])
        mask[part][ink[..., 0] > INK] = labels[which] + 1
    image += random.normal(0, NOISE, image.shape)
    return image.clip(0, 255).astype(np.uint8), mask


@dataclass(frozen=True)
class ImageSplit:
    """Images of a split, with indices from 0 to `len(split) - 1`.

    Attributes:
        table: Table with a column "image". Columns of labels, masks and texts are optional. The
            column "label" has int64 class numbers, or `UNLABELLED`.
        problems: Counter of images that can't be read properly.
        names: Names of the image columns, in the order of the model's inputs. Every example has an
            image in each of these columns.
    """

    table: Table
    problems: DataProblems = field(default_factory=DataProblems)
    names: tuple[str, ...] = ("image",)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def columns(self) -> list[MediaColumn]:
        return [self.table.columns[name] for name in self.names]

    @property
    def peak(self) -> int:
        """Largest possible pixel value."""
        images = self.columns[0]
        return images.peak if isinstance(images, Pixels) else 255

    @property
    def channels(self) -> int:
        """Number of channels of every image: 1 or 3."""
        images = self.columns[0]
        return images.all.shape[-1] if isinstance(images, Pixels) else 3

    @property
    def has_masks(self) -> bool:
        """Whether at least one image has a mask."""
        masks = self.table.columns.get("mask")
        return masks is not None and bool(masks.present()[self.table.rows].any())

    def label(self, index: int) -> int:
        """Return the class number of an image, or `UNLABELLED`."""
        return int(self.labels_of(np.array(index)))

    def labels_of(self, indices: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the class numbers of some images (by default of all), int64. See `label`."""
        rows = self.table.rows[indices]
        labels = self.table.columns.get("label")
        return np.full(rows.shape, UNLABELLED, np.int64) if labels is None else labels[rows]

    def values(self, name: str) -> Any:
        return self.table.values(name)

    def take(self, indices: np.ndarray) -> ImageSplit:
        return replace(self, table=self.table.take(indices))

    def name(self, index: int) -> str:
        """Return the paths or keys of an example's images, for messages."""
        return ", ".join(column.name(int(self.table.rows[index])) for column in self.columns)

    def open(self, index: int) -> Picture:
        """Open an image without decoding its pixels; raise BrokenImage if it is unreadable."""
        return self.open_all(index)[0]

    def open_all(self, index: int) -> list[Picture]:
        """Open all images of an example; see `open`."""
        row = int(self.table.rows[index])
        return [
            open_image(column[row], partial(self.problems.record, BY_PILLOW, column.name(row)))
            for column in self.columns
        ]

    def read(
        self,
        index: int,
        transform: Callable[[Picture, np.random.Generator], np.ndarray],
        random: np.random.Generator,
    ) -> np.ndarray:
        """Return an example's transformed image, or a stack of its images if there are several."""
        images = [transform(picture, random) for picture in self.open_all(index)]
        return images[0] if len(images) == 1 else np.stack(images)

    def broken(self, index: int, error: BrokenImage) -> None:
        self.problems.record(BROKEN, self.name(index), str(error))

    def pixels(self, index: int) -> np.ndarray:
        """Return an upright image, uint8 (height, width, channels). Colours are RGB."""
        return self.open(index).pixels()

    def mask(self, index: int) -> np.ndarray:
        """Return an image's mask with its stored class numbers, uint8 (height, width)."""
        return open_mask(self.table.columns["mask"][int(self.table.rows[index])])

    @property
    def digest(self) -> str:
        """Digest of all labels, texts, image names and image sizes.

        To save time, the digest covers the bytes of only some images.
        """
        return self.table.digest


@dataclass(frozen=True)
class ImageSplits:
    """Training and validation images of a source.

    `classes` has the names of the classes in the order of their numbers. If the images have no
    labels, `classes` is empty.
    """

    train: ImageSplit
    validation: ImageSplit
    classes: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    def describe(self, rows: str = "images") -> str:
        """Return a text with the numbers of examples, classes and problems.

        `rows` is the plural noun for the examples, such as "images".
        """
        parts = {f"training {rows}": len(self.train), f"validation {rows}": len(self.validation)}
        if self.classes:
            parts["classes"] = len(self.classes)
        return self.counts.describe_amounts(parts)


def load_images(
    config: ImageDataConfig,
    seed: int,
    progress: Progress = SILENT,
    problems: DataProblems | None = None,
) -> ImageSplits:
    """List a source's images; `seed` chooses the validation images of a built-in set.

    Raises:
        FileNotFoundError: If the path does not exist.
        ValueError: If there are no images, or if a validation image has an unknown class.
    """
    counts = Counts()
    splits = _read(config.source, config, counts, progress)
    other = None
    if config.validation_source is not None:
        other = _read(config.validation_source, config, counts, progress)
    elif {*splits} == {"train"} and parse_source(config.source).kind == "builtin":
        rows, draw = splits["train"], torch.Generator().manual_seed(seed)
        order = torch.randperm(len(rows), generator=draw).numpy()
        held = min(max(1, round(len(rows) * config.validation_fraction)), len(rows) - 1)
        splits = {"train": rows.take(order[held:]), "validation": rows.take(order[:held])}
    parts = divide(splits, other, config.validation_fraction, "image", counts)
    classes = list(config.classes or parts[0].columns["label"].names)
    known = problems or DataProblems()
    train, validation = (ImageSplit(numbered(part, classes), known) for part in parts)
    return ImageSplits(train, validation, classes, counts)


def _read(
    source: str, config: ImageDataConfig, counts: Counts, progress: Progress
) -> dict[str, Table]:
    found = parse_source(source)
    if found.kind == "builtin":
        return digits() if found.name == "digits" else scenes()
    splits = read_source(source, counts, "image", progress, paired_folders)
    return {split: image_table(table, config, counts) for split, table in splits.items()}


def image_table(table: Table, config: ImageDataConfig, counts: Counts) -> Table:
    """Return a table with the columns "image", "label" and, if there are masks, "mask".

    Rows without an image are counted and left out.
    """
    mask = table.find("mask", config.mask_column, media_names_of(table))
    image = find_images(table, config.image_column, mask)
    if image is None:
        raise table.no_column("image", "label")
    named = [n for n, column in table.columns.items() if isinstance(column, Classes)]
    label = table.find("label", config.label_column)
    if label is None and config.label_column is None and len(named) == 1:
        label = named[0]
    columns: dict[str, Any] = {"image": media_column(table, image)}
    if label:
        table.check_one_class(label)
    columns["label"] = table.columns[label] if label else [None] * len(columns["image"])
    columns["label"] = as_classes(columns["label"])
    if mask is not None:
        columns["mask"] = media_column(table, mask)
    found = with_images(replace(table, columns=columns), "image", counts)
    if mask is not None:
        counts[WITHOUT_MASK] += int((~columns["mask"].present()[found.rows]).sum())
    return found


def find_images(table: Table, given: str | None, mask: str | None = None) -> str | None:
    """Return the name of the column of images, or None if there is none.

    If the table has a `MediaColumn`, columns of other types are not considered. `given` is the
    column name that the recipe sets. `mask` is the name of the column of masks.
    """
    media = media_names_of(table)
    plain = [name for name in media if name != mask]
    found = table.find("image", given, plain) or next(iter(plain), None)
    return None if media and found not in media else found


def media_names_of(table: Table) -> list[str]:
    return [name for name, column in table.columns.items() if isinstance(column, MediaColumn)]


def with_images(table: Table, column: str, counts: Counts) -> Table:
    """Return the rows with an image, and count the others.

    Raises:
        ValueError: If no row has an image.
    """
    present = table.columns[column].present()[table.rows]
    for row in table.rows[~present].tolist():
        counts.record(WITHOUT_IMAGE, table.place(row), "no image")
    if not present.any():
        raise ValueError(f"{table.where} has no images{counts.describe()}")
    return table.take(present)


def as_classes(column: Any) -> Classes:
    """Return the classes of a column of labels, numbered in alphabetical order.

    If all labels are whole numbers, each label is both the number and the name of its class.
    """
    if isinstance(column, Classes):
        return column
    words = [None if value is None else str(value).strip() or None for value in column]
    known = {word for word in words if word is not None}
    if known and all(is_number(word) for word in known):
        names = [str(number) for number in range(max(map(int, known)) + 1)]
        numbers = {word: int(word) for word in known}
    else:
        names = sorted(known)
        numbers = {word: number for number, word in enumerate(names)}
    labels = [UNLABELLED if word is None else numbers[word] for word in words]
    return Classes(np.array(labels, np.int64), names)


def is_number(word: str) -> bool:
    short = len(word) < len(str(MOST_CLASSES))  # Python refuses numbers of thousands of digits
    return short and word.isascii() and word.isdigit()


def numbered(table: Table, classes: Sequence[str]) -> Table:
    """Replace each class name in a table by its index in `classes`.

    If no label is in `classes` and all labels are whole numbers, the labels are used as indices.
    ImageNet-V2, for example, has folders with the names 0 to 999.

    If `classes` is empty, all images become `UNLABELLED`.

    Raises:
        ValueError: If an image has an unknown class.
    """
    labels: Classes = table.columns["label"]
    used = np.unique(labels.numbers[table.rows])
    names = [labels.names[number] for number in used if number != UNLABELLED]
    numbers = {name: number for number, name in enumerate(classes)}
    if not numbers.keys() & {*names} and all(map(is_number, names)):
        meant = {name: int(name) for name in names}
        numbers = meant if all(n < len(classes) for n in meant.values()) else numbers
    unknown = [name for name in names if classes and name not in numbers]
    if unknown:
        first = table.columns["image"].name(int(table.rows[0]))
        raise ValueError(f"the split whose first image is {first} has the unknown class "
                         f"{unknown[0]!r}. The {len(classes)} known classes come from data.classes "
                         "or from the training images")  # fmt: skip
    order = np.array(
        [*(numbers.get(name, UNLABELLED) for name in labels.names), UNLABELLED], np.int64
    )
    return replace(table, columns={**table.columns, "label": order[labels.numbers]})


def paired_folders(folder: Path, counts: Counts) -> dict[str, Table]:
    """List images with masks by split; return {} if there are no folders of masks.

    Images without a mask are counted and left out. For the layouts, see `mask_folders`.
    """
    pairs, bare = mask_folders(folder)
    if pairs:
        counts[NOT_PAIRED] += sum(len([*media_names(path, "image", Counts())]) for path in bare)
    return {split: _paired(*pair, counts) for split, pair in pairs.items()}


def mask_folders(folder: Path) -> tuple[dict[str, tuple[Path, Path]], list[Path]]:
    """Return the folders of images and of masks by split, and the folders of splits without masks.

    The folder may contain images/ and annotations/, or images/ and masks/. The folders of images
    and of masks may contain training/ and validation/, as in ADE20k. The splits may also be the
    outer folders, such as train/images/ and train/masks/. In CamVid's layout, train/ is beside
    trainannot/.
    """
    inside = subfolders(folder)
    if both := images_and_masks(inside):
        splits = split_folders(subfolders(both[0]))
        pairs = {split: (path, masks) for split, path in splits.items()
                 if (masks := both[1] / path.name).is_dir()}  # fmt: skip
        if not pairs:
            return {"train": both}, []
    else:
        splits, pairs = split_folders(inside), {}
        for split, path in splits.items():
            beside = [inside[path.name.lower() + suffix] for suffix in MASK_SUFFIXES
                      if path.name.lower() + suffix in inside]  # fmt: skip
            found = (path, beside[0]) if beside else images_and_masks(subfolders(path))
            pairs |= {split: found} if found else {}
    return pairs, [path for split, path in splits.items() if split not in pairs]


def images_and_masks(inside: Mapping[str, Path]) -> tuple[Path, Path] | None:
    images = next((inside[name] for name in IMAGE_FOLDERS if name in inside), None)
    beside = [inside[name] for name in MASK_FOLDERS if images and name in inside]
    # Folders of annotations may have boxes in text files.
    masks = next((path for path in beside if has_files(path, "image")), None)
    return (images, masks) if images and masks else None


def _paired(images: Path, masks: Path, counts: Counts) -> Table:
    names = list(media_names(images, "image", counts))
    found = find_masks(names, list(media_names(masks, "image", Counts())))
    counts[NOT_PAIRED] += len(names) - len(found)
    if not found:
        raise ValueError(f"no image in {images} has a mask of the same name in {masks}. Rename "
                         "masks (a.png for a.jpg), or give a table with a column of images "
                         "and a column of masks.")  # fmt: skip
    columns = {"image": Files(images, [*found]), "mask": Files(masks, [*found.values()])}
    return table_of_columns(columns, str(images), images)


def find_masks(names: Sequence[str], masks: Sequence[str]) -> dict[str, str]:
    """Return the mask of each image that has one.

    A mask has its image's name, but may have another file ending. If no image has such a mask, a
    mask may have its image's name followed by a word, as in a_mask.png for a.jpg. All masks have
    the same word.

    Raises:
        ValueError: If images have several masks.
    """
    known = {_stem(mask): mask for mask in masks}
    stems = {name: _stem(name).removesuffix(CITYSCAPES) for name in names}
    if known.keys() & {*stems.values()}:
        return {name: known[stem] for name, stem in stems.items() if stem in known}
    some = list(stems.values())[:SAMPLED_STEMS]
    words = {mask.removeprefix(stem) for stem in some for mask in known if mask.startswith(stem)}
    rows = {word: {name: known[stem + word] for name, stem in stems.items()
                   if stem + word in known} for word in sorted(words)}  # fmt: skip
    most = max(map(len, rows.values()), default=0)
    best = [word for word, found in rows.items() if 2 * len(found) > most]
    best = next(([word] for end in CLASS_MASKS for word in best if word.endswith(end)), best)
    if 2 * most < min(len(names), len(masks)):
        return {}
    if len(best) > 1:
        raise ValueError(f"images have several masks, such as {known[some[0] + best[0]]} and "
                         f"{known[some[0] + best[1]]}: keep one mask of each image")  # fmt: skip
    return rows[best[0]] if best else {}


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))
