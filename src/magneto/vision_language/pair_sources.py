"""Where images with texts come from: .jsonl files, tar shards, the hub, or drawn scenes.

What is left out is counted: records without an image or a text, images that are not there, texts
that are empty, pairs that come twice. Nothing is decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from magneto.config import nearest
from magneto.data.counts import EMPTY, MALFORMED, Counts
from magneto.data.files import existing_path, has_ending, unpacked_name
from magneto.data.formats import find_shards, read_hub, read_shards, shards_by_split
from magneto.data.media import Files, MediaColumn
from magneto.data.records import read_objects
from magneto.data.sources import Source, parse_source
from magneto.data.splits import standard_splits
from magneto.progress import Progress
from magneto.vision.images import with_images
from magneto.vision_language.config import PairDataConfig
from magneto.vision_language.scenes import scene_pairs

ENDING = (".jsonl",)
# Keys and columns that are found where the recipe names none, best first.
IMAGE_FIELDS = ("image", "image_path", "img", "path", "file_name", "filename", "file", "image_file")
TEXT_FIELDS = ("caption", "captions", "text", "texts", "sentence", "sentences", "raw", "title")
MISSING = "images that are not there left out"
TWICE = "pairs that come twice left out"
# Records between two words of progress.
STEP = 10_000


@dataclass(frozen=True)
class PairListing:
    """The pairs of one split of a source, as they lie.

    Attributes:
        images: Each once.
        numbers: Of the image of each pair, int64.
        texts: Of each pair.
    """

    images: MediaColumn
    numbers: np.ndarray
    texts: Sequence[str]


@dataclass
class PairCollector:
    """Takes texts of images one by one; leaves out what is empty or was there before.

    Attributes:
        counts: Of what is left out.
        numbers: Of the image of each pair that is taken.
        texts: Of each pair that is taken.
    """

    counts: Counts
    numbers: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    def add(self, number: int, text: str, identity: Any = None) -> None:
        """Take a pair.

        Args:
            number: Of its image.
            text: Its text.
            identity: What tells it apart from other pairs; by default its image and its text.
        """
        text = " ".join(text.split())
        if not text:
            self.counts[EMPTY] += 1
            return
        # Hashes, since what they are of would fill the memory; two of a billion are alike.
        name = hash((number, text) if identity is None else identity)
        if name in self._seen:
            self.counts[TWICE] += 1
            return
        self._seen.add(name)
        self.numbers.append(number)
        self.texts.append(text)

    def listing(self, images: MediaColumn) -> PairListing:
        """Return what was taken."""
        return PairListing(images, np.array(self.numbers, np.int64), self.texts)


def list_pairs(
    source: str, config: PairDataConfig, counts: Counts, progress: Progress
) -> dict[str, PairListing]:
    """List the splits of a source: "train", "validation" and "test", as far as they are there.

    Raises:
        FileNotFoundError: If there is no such path; names the nearest.
        ValueError: If what is there holds no images with texts.
    """
    found = parse_source(source)
    if found.kind == "builtin":
        return {split: PairListing(pairs.images, np.arange(len(pairs.texts)), pairs.texts)
                for split, pairs in scene_pairs().items()}  # fmt: skip
    if found.kind == "hf":
        return list_hub(found, config, counts)
    path = existing_path(source)
    if has_ending(path, ENDING):
        return {"train": list_file(path, config, counts, progress)}
    if shards := find_shards(path):
        return list_shards(path, shards, counts, progress)
    files = {Path(unpacked_name(file)).stem.lower(): file
             for file in sorted(path.iterdir() if path.is_dir() else ())
             if has_ending(file, ENDING)}  # fmt: skip
    splits = standard_splits(files)
    if "train" not in splits:
        raise ValueError(f"{path} is no set of images with texts: name a .jsonl file, a folder "
                         "with train.jsonl or with .tar shards, or hf:NAME")  # fmt: skip
    return {split: list_file(file, config, counts, progress) for split, file in splits.items()}


def list_file(
    path: Path, config: PairDataConfig, counts: Counts, progress: Progress
) -> PairListing:
    """List the pairs of a .jsonl file.

    Raises:
        ValueError: If its first record has no image or no text under a known key.
    """
    root = path.parent if config.image_folder is None else existing_path(config.image_folder)
    known: dict[str, int] = {}
    names: list[str] = []
    taken = PairCollector(counts)
    image_key = text_key = ""
    for row, record in enumerate(read_objects(path, counts), 1):
        if not image_key:
            image_key = pick_field(record, config.image_field, IMAGE_FIELDS, "image", str(path))
            text_key = pick_field(record, config.text_field, TEXT_FIELDS, "text", str(path))
        if row % STEP == 0:
            progress.update("listing images with texts", row, None)
        image, texts = record.get(image_key), texts_of(record.get(text_key))
        if not isinstance(image, str) or not image or texts is None:
            counts.met(MALFORMED, f"{path}, record {row}", "without a path of an image, or a text")
            continue
        if image not in known:
            known[image] = len(names) if os.path.isfile(root / image) else -1
            if known[image] >= 0:
                names.append(image)
        if known[image] < 0:
            counts[MISSING] += 1
            continue
        for place, text in enumerate(texts):
            given = record.get(config.id_field) if config.id_field else None
            identity = None if given is None else (str(given), place)
            taken.add(known[image], text, identity)
    return taken.listing(Files(root, names))


def pick_field(
    there: Iterable[str], given: str | None, usual: Sequence[str], what: str, where: str
) -> str:
    """Return the key that a configuration names, or the first usual one.

    Raises:
        ValueError: If it is not there.
    """
    names = list(there)
    if given is not None:
        if given not in names:
            raise ValueError(f"{where} has no {given!r} (data.{what}_field)"
                             f"{nearest(given, names)}")  # fmt: skip
        return given
    found = next((name for name in usual if name in names), None)
    if found is None:
        raise ValueError(f"{where} has no {what} among {', '.join(names) or 'nothing'}: name it, "
                         f"data.{what}_field")  # fmt: skip
    return found


def texts_of(value: Any) -> list[str] | None:
    """Return a text, or a list of texts, as a list; None if it is neither."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return value
    return None


def list_shards(
    source: Path, shards: Sequence[Path], counts: Counts, progress: Progress
) -> dict[str, PairListing]:
    """List tar shards in which a.jpg has a.txt or a.json with a caption beside it."""
    found = {}
    for split, paths in shards_by_split(source, shards).items():
        table = with_images(read_shards(paths, counts, progress), "image", counts)
        taken = PairCollector(counts)
        said = table.columns.get("text", [None] * len(table.columns["key"]))
        for number in table.rows.tolist():
            key = table.columns["key"][number]
            for text in texts_of(said[number]) or [""]:
                taken.add(number, text, (key, text))
        found[split] = taken.listing(table.columns["image"])
    return found


def list_hub(source: Source, config: PairDataConfig, counts: Counts) -> dict[str, PairListing]:
    """List the splits of a data set, or the one that the source names, as "train".

    Raises:
        ConfigError: If it can't be loaded.
        ValueError: If it has no column of images, or none of texts.
    """
    found = {}
    for split, table in read_hub(source).items():
        columns, where = table.columns, table.where
        images = [name for name, column in columns.items() if isinstance(column, MediaColumn)]
        image = pick_field(images, config.image_field, (*IMAGE_FIELDS, *images), "image", where)
        text = pick_field(columns, config.text_field, TEXT_FIELDS, "text", where)
        taken = PairCollector(counts)
        for number, said in enumerate(table.values(text)):
            texts = texts_of(said)
            if texts is None:
                counts.met(MALFORMED, f"{where}, row {number}", "without a text")
                continue
            for place, each in enumerate(texts):
                own = str(columns[config.id_field][number]) if config.id_field else ""
                taken.add(number, each, (own, place) if config.id_field else None)
        found[split] = taken.listing(columns[image])
    return found
