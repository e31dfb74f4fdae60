"""Tar shards in webdataset's layout: files of one key are one example (a.jpg, a.cls or a.json).

An index of where each image begins is made once, and kept in the cache: so any image is read at
once, and the order is shuffled over all shards, which reading them from front to end can't do.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from magneto.data.cache import cache_directory, file_states, fingerprint, is_kept, made_whole
from magneto.data.counts import MALFORMED, Counts
from magneto.data.problems import BadRecord, guarded
from magneto.files import write_json
from magneto.progress import Progress
from magneto.vision.images import NO_MASKS, EncodedStore
from magneto.vision.listing import (
    IMAGE_ENDINGS,
    Listing,
    number_labels,
    standard_splits,
)

MASK_MEMBERS = ("seg.png", "mask.png", "seg", "mask")
WITHOUT_IMAGE = "examples without an image left out"
# A larger member of JSON or of words is none.
WORDS_BYTES = 1 << 20


@dataclass(frozen=True)
class WordMembers:
    """Where an example in a shard has its words: its label, or its caption.

    Attributes:
        endings: Of the members that may have them.
        keys: Under which a member of JSON does, best first.
    """

    endings: tuple[str, ...]
    keys: tuple[str, ...]


LABELS = WordMembers(("cls", "json"), ("label", "cls", "class"))
CAPTIONS = WordMembers(("txt", "caption", "json"), ("caption", "text", "txt"))


@dataclass
class Index:
    """Where examples lie in shards, a list entry each.

    Attributes:
        keys: What they are called.
        places: (number of the shard, first byte, bytes) of the image.
        masks: Likewise of the mask; (-1, 0, 0) where there is none.
        labels: Words, or None.
        counts: What was odd.
    """

    keys: list[str] = field(default_factory=list)
    places: list[tuple[int, int, int]] = field(default_factory=list)
    masks: list[tuple[int, int, int]] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)


class ShardStore(EncodedStore):
    """Images in tar shards.

    Args:
        shards: The files.
        keys: Of the images.
        places: (number of the shard, first byte, bytes) of each, int64 (count, 3).
    """

    def __init__(self, shards: Sequence[Path], keys: Sequence[str], places: np.ndarray) -> None:
        self.shards, self.keys, self.places = shards, keys, places

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, number: int) -> str:
        """Return the key in the shard."""
        return self.keys[number]

    def name(self, number: int) -> str:
        """Return shard and key."""
        return f"{self.shards[self.places[number, 0]]}, {self.keys[number]}"

    def sizes(self) -> np.ndarray:
        """Return the bytes of each image."""
        return np.ascontiguousarray(self.places[:, 2])

    def read(self, number: int) -> bytes:
        """Return the bytes of an image."""
        shard, first, size = self.places[number].tolist()
        with self.shards[shard].open("rb") as file:
            file.seek(first)
            return file.read(size)


def find_shards(source: Path) -> list[Path]:
    """List the tar files of a folder, or of a folder per split in it; of a tar file itself."""
    if source.is_file():
        return [source] if source.suffix == ".tar" else []
    found = [*source.glob("*.tar"), *source.glob("*/*.tar")]
    return sorted(path for path in found if not path.name.startswith("."))


def list_shards(
    source: Path, shards: Sequence[Path], counts: Counts, progress: Progress
) -> dict[str, Listing]:
    """List the splits of shards, which their folder or file name tells: "train" if nothing does.

    Raises:
        ValueError: If they hold no images.
    """
    parts = shards_by_split(source, shards)
    return {split: _listing(source, paths, counts, progress) for split, paths in parts.items()}


def shards_by_split(source: Path, shards: Sequence[Path]) -> dict[str, list[Path]]:
    """Return shards by the split that their folder or file name tells; "train" if nothing does."""
    parts: dict[str, list[Path]] = {}
    for shard in shards:
        place = shard.relative_to(source if source.is_dir() else source.parent)
        words = re.findall("[a-z]+", str(place.with_suffix("")).lower())
        split = next(iter(standard_splits(dict(zip(words, words, strict=True)))), "train")
        parts.setdefault(split, []).append(shard)
    return parts


def _listing(source: Path, shards: list[Path], counts: Counts, progress: Progress) -> Listing:
    index = kept_index(shards, progress)
    counts.update(index.counts)
    if not index.keys:
        raise ValueError(f"no images in the tar files of {source}")
    places = np.array(index.places, np.int64).reshape(-1, 3)
    masks = np.array(index.masks, np.int64).reshape(-1, 3)
    has_masks = bool((masks[:, 0] >= 0).all())
    return Listing(
        ShardStore(shards, index.keys, places),
        *number_labels(index.labels),
        ShardStore(shards, index.keys, masks) if has_masks else NO_MASKS,
    )


def kept_index(shards: Sequence[Path], progress: Progress, words: WordMembers = LABELS) -> Index:
    """Return the index of shards from the cache; it is made if they, or it, are new."""
    name = fingerprint(file_states(shards), words.endings)
    held = cache_directory() / f"shards-{name}"
    kept = held / "index.json"
    if not is_kept(held, progress):
        made = Index()
        for number, shard in enumerate(shards):
            progress.update("indexing shards", number, len(shards))
            add_shard(made, shard, number, words)
        progress.update("indexing shards", len(shards), len(shards))
        with made_whole(held) as aside:
            write_json(aside / "index.json", {**vars(made), "counts": made.counts.plain()})
    values = json.loads(kept.read_text(encoding="utf-8"))
    return Index(**{**values, "counts": Counts.of_plain(values["counts"])})


def add_shard(index: Index, shard: Path, number: int, words: WordMembers) -> None:
    """Add the examples of a shard; what is cut off at its end is counted."""
    end, key, members = shard.stat().st_size, "", {}
    try:
        with guarded(), tarfile.open(shard, "r:") as file:
            for member in file:
                vars(file)["members"] = []  # it would keep them all
                if not member.isreg():
                    continue
                if member.size < 0 or member.offset_data + member.size > end:
                    raise tarfile.ReadError("unexpected end of data")
                folder, slash, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                if (folder + slash + stem) != key:
                    _add_example(index, key, members)
                    key, members = folder + slash + stem, {}
                said = _words(file, member, words) if ending in words.endings else None
                members[ending.lower()] = ((number, member.offset_data, member.size), said)
    except BadRecord as error:
        index.counts.met(MALFORMED, str(shard), str(error))
    _add_example(index, key, members)


def _add_example(index: Index, key: str, members: dict[str, Any]) -> None:
    if not members:
        return
    image = next((e for e in members if f".{e}".endswith(IMAGE_ENDINGS)
                  and e not in MASK_MEMBERS), None)  # fmt: skip
    if image is None:
        index.counts[WITHOUT_IMAGE] += 1
        return
    mask = next((members[ending][0] for ending in MASK_MEMBERS if ending in members), (-1, 0, 0))
    index.keys.append(key)
    index.places.append(members[image][0])
    index.masks.append(mask)
    index.labels.append(next((word for _, word in members.values() if word is not None), None))


def _words(file: tarfile.TarFile, member: tarfile.TarInfo, words: WordMembers) -> str | None:
    """Return what a small member of text or JSON says; None if it says nothing."""
    opened = file.extractfile(member)
    if opened is None or member.size > WORDS_BYTES:
        return None
    text = opened.read().decode("utf-8", errors="replace").strip()
    if not member.name.endswith(".json"):
        return text or None
    try:
        with guarded():
            value = json.loads(text)
    except BadRecord:
        return None
    if isinstance(value, dict):
        value = next((value[key] for key in words.keys if key in value), None)
    return str(value) if isinstance(value, str | int) else None
