"""Folders of images: a folder per class, images alone, or images beside a folder of masks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from magneto.data.counts import Counts
from magneto.data.files import walk_files
from magneto.vision.images import FileStore
from magneto.vision.listing import (
    IMAGE_ENDINGS,
    SPLIT_WORDS,
    Listing,
    number_labels,
    standard_splits,
    unlabelled,
)

# Folders of masks beside one of images, and what follows the name of a split's folder of images
# in the name of its folder of masks (CamVid's, as SegNet's authors give it).
IMAGE_FOLDERS = ("images", "image", "imgs")
MASK_FOLDERS = ("annotations", "masks", "annotation", "mask", "labels")
MASK_SUFFIXES = ("annot", "_annot", "_labels", "_masks", "_mask")
OTHER_FILES = "files that are no images left out"
WITHOUT_MASK = "images without a mask left out"


def list_folder(folder: Path, counts: Counts) -> dict[str, Listing]:
    """List the splits of a folder: "train", and "validation" and "test" if they are there.

    Known are (train/, val/ or test/, each with) a folder per class, or images without labels;
    images/ with annotations/ or masks/, maybe each with training/ and validation/ (as ADE20k);
    train/ with trainannot/ (as CamVid). A mask is a file of the image's name, but for its ending.

    Raises:
        ValueError: If there are no images.
    """
    inside = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    found = _paired_folders(inside, counts)
    if found:
        return {split: _with_masks(*pair, counts) for split, pair in found.items()}
    splits = standard_splits(inside)
    classes = set(inside.values()) - set(splits.values())
    if "train" not in splits and (classes or not splits):
        return {"train": _by_class(folder, counts)}
    return {split: _by_class(path, counts) for split, path in splits.items()}


def _paired_folders(inside: dict[str, Path], counts: Counts) -> dict[str, tuple[Path, Path]]:
    """Return folders of images with their folders of masks, by split.

    A split that has no folder of masks, as a test split may, is counted and left out.
    """
    images = next((inside[name] for name in IMAGE_FOLDERS if name in inside), None)
    masks = next((inside[name] for name in MASK_FOLDERS if name in inside), None)
    if images and masks:
        parts = {path.name.lower(): (path, masks / path.name) for path in images.iterdir()}
        splits = standard_splits(parts)
        there = {name: pair for name, pair in splits.items() if pair[1].is_dir()}
        bare = [pair[0] for name, pair in splits.items() if there and name not in there]
        counts[WITHOUT_MASK] += sum(len(list(image_names(path, Counts()))) for path in bare)
        return there or {"train": (images, masks)}
    pairs = {
        name: (inside[name], inside[name + suffix])
        for words in SPLIT_WORDS.values()
        for name in words
        for suffix in MASK_SUFFIXES
        if name in inside and name + suffix in inside
    }
    return standard_splits(pairs)


def _by_class(folder: Path, counts: Counts) -> Listing:
    """List images, whose labels are the folders they lie in."""
    names = list(image_names(folder, counts))
    if not names:
        raise ValueError(f"no images in {folder}: no file ends in {', '.join(IMAGE_ENDINGS)}")
    words = [first if rest else None for first, _, rest in (n.partition("/") for n in names)]
    return Listing(FileStore(folder, names), *number_folders(words))


def number_folders(words: list[str | None]) -> tuple:
    """Number the names of folders in the order of the alphabet, also where they are numbers.

    So torchvision's ImageFolder does.
    """
    labels, classes = number_labels([None if word is None else f"/{word}" for word in words])
    return labels, [name[1:] for name in classes]


def _with_masks(images: Path, masks: Path, counts: Counts) -> Listing:
    """List the images that have a mask, and their masks."""
    known = {_stem(name): name for name in image_names(masks, Counts())} if masks.is_dir() else {}
    names = list(image_names(images, counts))
    paired = [name for name in names if _stem(name) in known]
    counts[WITHOUT_MASK] += len(names) - len(paired)
    if not paired:
        raise ValueError(f"no image in {images} has a mask of its name in {masks}")
    return unlabelled(
        FileStore(images, paired), FileStore(masks, [known[_stem(n)] for n in paired])
    )


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def image_names(folder: Path, counts: Counts) -> Iterator[str]:
    """Yield the images below a folder, in order, relative to it; links to folders are followed."""
    for path in walk_files(folder, counts):
        if path.name.lower().endswith(IMAGE_ENDINGS):
            yield path.relative_to(folder).as_posix()
        else:
            counts[OTHER_FILES] += 1
