"""Images with texts from any source, as splits that tasks read by index.

How a task uses it::

    splits = load_pairs(config, progress)        # lists the source; decodes nothing
    split = splits.train
    len(split), split.text(3), split.name(3)     # pairs; the text; for messages
    split.open(3)                                # a picture, as of magneto.vision.images
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from magneto.data.cache import content_digest
from magneto.data.counts import EMPTY, Counts
from magneto.data.files import existing_path
from magneto.data.formats import media_column, read_source
from magneto.data.media import Files, MediaColumn
from magneto.data.problems import DataProblems
from magneto.data.sources import VALIDATED, parse_source
from magneto.data.table import Table, hold_out, whole_table
from magneto.progress import SILENT, Progress
from magneto.vision.decoding import Picture
from magneto.vision.images import ImageSplit, find_images, images_of, with_images
from magneto.vision_language.config import PairDataConfig
from magneto.vision_language.scenes import scene_pairs

MISSING = "images that are not there left out"
TWICE = "pairs that come twice left out"


@dataclass(frozen=True)
class PairSplit:
    """Pairs of a split, by index: 0 to `len(split) - 1`.

    Attributes:
        store: Where the images lie.
        numbers: Of the image of each pair in `store`, int64.
        texts: Of each pair.
        problems: Told of images that are not read as they should be.
    """

    store: MediaColumn
    numbers: np.ndarray
    texts: Sequence[str]
    problems: DataProblems = field(default_factory=DataProblems)

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def images(self) -> ImageSplit:
        """The image of each pair, by the pair's index."""
        return images_of(self.store, self.numbers, self.problems)

    @cached_property
    def single_images(self) -> ImageSplit:
        """Each image once, however many texts it has."""
        return images_of(self.store, np.unique(self.numbers), self.problems)

    def text(self, index: int) -> str:
        """Return the text of a pair."""
        return self.texts[index]

    def name(self, index: int) -> str:
        """Return the image's path or key, for messages."""
        return self.images.name(index)

    def open(self, index: int) -> Picture:
        """Open the image of a pair.

        Raises:
            BrokenImage: If it can't be read, or is no image.
        """
        return self.images.open(index)

    @cached_property
    def digest(self) -> str:
        """A short name for the content: all texts, names and sizes of images, bytes of some."""
        texts = "\0".join(self.texts).encode(errors="surrogatepass")
        return content_digest(texts, self.images.digest.encode())


@dataclass(frozen=True)
class PairSplits:
    """What a source has.

    Attributes:
        train: To train on.
        validation: To validate on.
        counts: What was met while the source was listed.
    """

    train: PairSplit
    validation: PairSplit
    counts: Counts = field(default_factory=Counts)

    def describe(self) -> str:
        """Say how much there is, and what was odd."""
        parts = {"training pairs": len(self.train), "validation pairs": len(self.validation)}
        return self.counts.beside(parts)


def load_pairs(
    config: PairDataConfig, progress: Progress = SILENT, problems: DataProblems | None = None
) -> PairSplits:
    """List the pairs of a source.

    Args:
        config: Which, and what is held out.
        progress: Told of long work.
        problems: Told of images that are not read as they should be; None tells nobody.

    Raises:
        FileNotFoundError: If there is no such path; names the nearest.
        ValueError: If there are no pairs to train on, or none to validate on.
    """
    counts = Counts()
    there = list_pairs(config.source, config, counts, progress)
    train = there.get("train") or next(iter(there.values()))
    if config.validation_source is not None:
        other = list_pairs(config.validation_source, config, counts, progress)
        parts = train, other[next(split for split in VALIDATED if split in other)]
    elif "validation" in there and "train" in there:
        parts = train, there["validation"]
    elif len(train):
        parts = hold_out_images(train, config, counts)
    else:
        parts = train, train
    if not all(len(part) for part in parts):
        raise ValueError(f"{config.source} has {len(parts[0])} pairs to train on and "
                         f"{len(parts[1])} to validate on{counts.describe()}: set "
                         "data.validation_fraction or data.validation_source")  # fmt: skip
    told = problems or DataProblems()
    train_split, validation = (replace(part, problems=told) for part in parts)
    return PairSplits(train_split, validation, counts)


def list_pairs(
    source: str, config: PairDataConfig, counts: Counts, progress: Progress
) -> dict[str, PairSplit]:
    """List the splits of a source: "train", "validation" and "test", as far as they are there.

    Raises:
        FileNotFoundError: If there is no such path; names the nearest.
        ValueError: If what is there holds no images with texts.
    """
    if parse_source(source).kind == "builtin":
        return {split: PairSplit(pairs.images, np.arange(len(pairs.texts)), pairs.texts)
                for split, pairs in scene_pairs().items()}  # fmt: skip
    there = read_source(source, counts, "image", progress)
    return {split: pairs_of(table, config, counts) for split, table in there.items()}


def pairs_of(table: Table, config: PairDataConfig, counts: Counts) -> PairSplit:
    """Return the pairs of a table: a row may have several texts, and a file several rows.

    What is left out is counted: rows without an image or a text, files that are not there, texts
    that are empty, and pairs that come twice, by the image and the text or by `config.id_column`.

    Raises:
        ValueError: If it has no column of images, or of texts.
    """
    if config.image_folder is not None:
        table = replace(table, root=existing_path(config.image_folder))
    image = find_images(table, config.image_column)
    text = table.find("text", config.text_column)
    if image is None or text is None:
        raise table.no_column(*(("image", "text") if image is None else ("text",)))
    store, texts = media_column(table, image), table.columns[text]
    table = with_images(replace(table, columns={**table.columns, "image": store}), "image", counts)
    missing = store.sizes() < 0 if isinstance(store, Files) else np.zeros(len(store), bool)
    given = table.columns[config.id_column] if config.id_column else None
    first: dict[str, int] = {}
    # Hashes, since what they are of would fill the memory; two of a billion are alike.
    seen: set[int] = set()
    pairs: list[tuple[int, str]] = []
    for row in table.rows.tolist():
        if missing[row]:
            counts[MISSING] += 1
            continue
        number = first.setdefault(store.key(row), row) if isinstance(store, Files) else row
        for place, said in enumerate(texts_of(texts[row])):
            words = " ".join(said.split())
            own = (number, words) if given is None else (str(given[row]), place)
            if not words:
                counts.met(EMPTY, f"{table.where}, record {row + 1}", "no text")
            elif hash(own) in seen:
                counts[TWICE] += 1
            else:
                seen.add(hash(own))
                pairs.append((number, words))
    numbers = np.array([number for number, _ in pairs], np.int64)
    return PairSplit(store, numbers, [words for _, words in pairs])


def texts_of(value: Any) -> list[str]:
    """Return a text, or a list of texts, as a list; an empty text where it is neither."""
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return value
    return [value if isinstance(value, str) else ""]


def hold_out_images(
    pairs: PairSplit, config: PairDataConfig, counts: Counts
) -> tuple[PairSplit, PairSplit]:
    """Cut pairs in those to train and to validate on; all texts of an image stay together."""
    keys = [pairs.store.key(number) for number in pairs.numbers.tolist()]
    parts = hold_out(
        whole_table({"image": keys}, config.source), config.validation_fraction, "image", counts
    )
    train, validation = (
        replace(pairs, numbers=pairs.numbers[part.rows],
                texts=[pairs.texts[row] for row in part.rows.tolist()])
        for part in parts
    )  # fmt: skip
    return train, validation
