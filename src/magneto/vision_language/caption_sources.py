"""Training and validation images with captions: Karpathy's layout, or what pre-training reads."""

from __future__ import annotations

from pathlib import Path

from magneto.data.counts import Counts
from magneto.data.files import existing_path
from magneto.data.sources import held_out, parse_source
from magneto.progress import SILENT, Progress
from magneto.vision_language.caption_config import CaptionDataConfig
from magneto.vision_language.captions import (
    IMAGES,
    CaptionedImage,
    CaptionSplit,
    CaptionSplits,
    find_karpathy,
    read_karpathy,
)
from magneto.vision_language.image_files import find_images
from magneto.vision_language.pairs import PairSplit, load_pairs


def load_captions(config: CaptionDataConfig, progress: Progress = SILENT) -> CaptionSplits:
    """List the captioned images of a source.

    Raises:
        FileNotFoundError: If there is no such path.
        ValueError: If there are no images to train on or to validate on, or not the split that is
            asked for.
    """
    path = karpathy_file(config.source)
    if path is not None:
        return load_karpathy(path, config)
    if config.validation_split != "val":
        raise ValueError(f"data.validation_split {config.validation_split} is of files in "
                         f"Karpathy's layout, and {config.source} is none: name what to validate "
                         "on, data.validation_source")  # fmt: skip
    found = load_pairs(config.pairs(), progress)
    parts = [by_image(part) for part in (found.train, found.validation)]
    if parse_source(config.source).kind == "builtin":
        parts = [distinct(part) for part in parts]
    return CaptionSplits(parts[0], parts[1], found.counts)


def karpathy_file(source: str) -> Path | None:
    """Return a source's file in Karpathy's layout, if it has one."""
    if parse_source(source).kind != "path":
        return None
    return find_karpathy(existing_path(source))


def load_karpathy(path: Path, config: CaptionDataConfig) -> CaptionSplits:
    """Read a file in Karpathy's layout, and another one to validate on, if it is named.

    Raises:
        ValueError: If it has no such images.
    """
    counts = Counts()
    there = read_karpathy(path, find_images(config.image_folder or str(path)), counts)
    train, other = there.get("train", next(iter(there.values()))), there
    if config.validation_source not in (None, config.source):
        file = karpathy_file(config.validation_source or "")
        if file is None:
            raise ValueError(f"{config.validation_source} has no dataset_*.json, {path} is one")
        other = read_karpathy(file, find_images(config.image_folder or str(file)), counts)
    if config.validation_split in other:
        held = other[config.validation_split]
    elif config.validation_split == "val" and config.validation_source is None:
        train, held = hold_out(train, config.validation_fraction)
    else:
        raise ValueError(f"{path} has no {config.validation_split} split, it has "
                         f"{', '.join(other)}: set data.validation_split")  # fmt: skip
    complete = train.complete
    if not len(complete) or not len(held):
        raise ValueError(f"{path} has {len(complete)} images to train on and {len(held)} to "
                         f"validate on: {counts.describe(IMAGES)}")  # fmt: skip
    return CaptionSplits(complete, held, counts)


def hold_out(split: CaptionSplit, fraction: float) -> tuple[CaptionSplit, CaptionSplit]:
    """Cut a split in one to train and one to validate on, by a hash of the images' names."""
    parts: tuple[list[CaptionedImage], list[CaptionedImage]] = ([], [])
    for row in split.rows:
        parts[held_out(row.name, fraction)].append(row)
    return CaptionSplit(split.store, parts[0]), CaptionSplit(split.store, parts[1])


def by_image(split: PairSplit) -> CaptionSplit:
    """Return pairs as images with all of their captions."""
    captions: dict[int, list[str]] = {}
    for number, text in zip(split.numbers.tolist(), split.texts, strict=True):
        captions.setdefault(number, []).append(text)
    rows = [CaptionedImage(split.store.key(number), number, tuple(texts))
            for number, texts in captions.items()]  # fmt: skip
    return CaptionSplit(split.store, rows)


def distinct(split: CaptionSplit) -> CaptionSplit:
    """Return one image of those with the same captions: no model can tell them apart by text."""
    kept = {row.captions: row for row in reversed(split.rows)}
    return CaptionSplit(split.store, [row for row in split.rows if kept[row.captions] is row])
