"""The data of masked data modelling: three streams to train on, fixed batches to validate on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.data.problems import Counts, DataProblems
from magneto.data.stream import BatchStream, LazyBatches, joined, mixed_order
from magneto.data.tokenizer import Tokenizer
from magneto.language.config import MaskedTextDataConfig, TextDataConfig
from magneto.language.masked_lm import Masking
from magneto.language.text import prepare_text, split_documents, text_tokenizer
from magneto.progress import SILENT, Progress
from magneto.vision.augmentation import Augmentation
from magneto.vision.batches import Told, Transform, evaluation_images, example_stream
from magneto.vision.config import ImageDataConfig, ImageModelConfig
from magneto.vision.images import ImageSplit, images_of, load_images
from magneto.vision.targets import BlockMasking, CodeTargets, load_targets
from magneto.vision.transforms import CentreCrop, Reading
from magneto.vision_language.config import BUILTIN, MaskedDataConfig, MaskedDataModelConfig
from magneto.vision_language.pretraining_examples import (
    ClosedTexts,
    Example,
    ImageExamples,
    PairExamples,
    TextExamples,
    WordHiding,
    close_texts,
    fixed_examples,
    join_examples,
    readable,
)
from magneto.vision_language.scenes import scene_images, scene_texts
from magneto.vision_language.tables import ImageRows, RowSplits, load_captions

PARTS = ("images", "texts", "pairs")
# Examples of each stream in an evaluation batch.
EVALUATION_BATCH = 64
# Images of a batch of which builtin:patches is made.
BATCH = 64
CUT = "texts of pairs cut"
TRAIN, VALIDATION = 0, 1


@dataclass(frozen=True)
class Pairs:
    """Images with texts, a pair of one each.

    Attributes:
        images: The image of each pair, by the pair's index.
        texts: Of each pair.
    """

    images: ImageSplit
    texts: list[str]


def pairs_of(rows: ImageRows) -> Pairs:
    """Return each image with each of its captions."""
    captions, column = rows.values("captions"), rows.table.columns["image"]
    numbers = rows.table.rows.repeat([len(own) for own in captions])
    images = images_of(column, numbers, rows.problems)
    return Pairs(images, [text for own in captions for text in own])


class MaskedData:
    """Images, texts and pairs, listed and tokenised when they are asked for.

    Args:
        model: What the model reads.
        data: What there is, and what is hidden.
        seed: Of what is held out of built-in images.
        problems: Told of images that are not read as they should be.

    Attributes:
        progress: Told of long work.
    """

    def __init__(
        self,
        model: MaskedDataModelConfig,
        data: MaskedDataConfig,
        seed: int,
        problems: DataProblems,
    ) -> None:
        self.model, self.data, self.seed, self.problems = model, data, seed, problems
        self.progress: Progress = SILENT

    @cached_property
    def captions(self) -> RowSplits:
        """Images with all of their texts."""
        return load_captions(self.data, self.problems, self.progress)

    @cached_property
    def pairs(self) -> tuple[Pairs, Pairs]:
        """Images with texts, to train and to validate on."""
        return pairs_of(self.captions.train), pairs_of(self.captions.validation)

    @cached_property
    def images(self) -> tuple[ImageSplit, ImageSplit]:
        """Images without a text, to train and to validate on."""
        data = self.data
        if data.image_source is None:
            train, validation = self.captions.train, self.captions.validation
            return train.images[0], validation.images[0]
        if data.image_source == BUILTIN:
            found = scene_images()
            return images_of(found["train"]), images_of(found["validation"])
        config = ImageDataConfig(
            source=data.image_source, validation_source=data.image_validation_source,
            validation_fraction=data.validation_fraction, label_column="",
        )  # fmt: skip
        splits = load_images(config, self.seed, self.progress, self.problems)
        self.progress.say(f"{data.image_source}: {splits.describe()}")
        return splits.train, splits.validation

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The texts' tokenizer; without touching the texts, unless it is learnt from them."""
        data = self.data
        texts = self._vocabulary_texts() if data.tokenizer == "bpe" else ()
        return text_tokenizer(data.tokenizer, data.vocab_size, texts, self.progress)

    def _vocabulary_texts(self) -> Iterator[str]:
        """Yield the texts to train on, of pairs and alone, from which a tokenizer may be learnt."""
        yield from self.pairs[TRAIN].texts
        if self.data.text_source == BUILTIN:
            yield from scene_texts()["train"]
        elif self.data.text_source is not None:
            yield from split_documents(self._text_config("bytes", 2), "train", Counts())

    def _text_config(self, tokenizer: str, length: int) -> TextDataConfig:
        """Return the `data` section by which the texts without an image are read."""
        data = self.data
        assert data.text_source is not None
        return TextDataConfig(
            source=data.text_source, validation_source=data.text_validation_source,
            validation_fraction=data.validation_fraction, tokenizer=tokenizer, max_length=length,
        )  # fmt: skip

    @cached_property
    def paired_texts(self) -> tuple[ClosedTexts, ClosedTexts]:
        """Tokens of the texts of pairs, to train and to validate on."""
        train, validation = (close_texts(pairs.texts, self.tokenizer) for pairs in self.pairs)
        return train, validation

    @cached_property
    def texts(self) -> tuple[ClosedTexts, ClosedTexts]:
        """Tokens of texts without an image, to train and to validate on.

        Raises:
            ValueError: If they are too few for a sequence.
        """
        data, tokenizer, length = self.data, self.tokenizer, self.text_length
        if data.text_source is None:
            train, validation = self.paired_texts
        elif data.text_source == BUILTIN:
            train, validation = (close_texts(texts, tokenizer) for texts in scene_texts().values())
        else:
            # A file, or the bytes, whose tokenizer has none.
            name = "bytes" if tokenizer.path is None else str(tokenizer.path)
            made = prepare_text(self._text_config(name, length), self.progress)
            self.progress.say(f"{data.text_source}: {made.counts.describe()}, "
                              f"{len(made.train.tokens):,} tokens")  # fmt: skip
            train, validation = (
                ClosedTexts(split.tokens, tokenizer.end) for split in (made.train, made.validation)
            )
        for split, texts in (("training", train), ("validation", validation)):
            if len(texts.tokens) <= length:
                raise ValueError(f"{data.text_source or data.source} has {len(texts.tokens)} "
                                 f"{split} tokens, too few for one sequence of {length}: give more "
                                 "text, or lower data.text_length")  # fmt: skip
        return train, validation

    @property
    def text_length(self) -> int:
        """Tokens of a text without an image."""
        return self._length("text_length")

    @property
    def paired_text_length(self) -> int:
        """Tokens of a text with an image, at most."""
        return self._length("paired_text_length")

    def _length(self, name: str) -> int:
        """Return a length that is set, or the model's; raise ValueError if that is shorter."""
        most, wanted = self.model.max_length, getattr(self.data, name)
        if wanted is not None and wanted > most:
            raise ValueError(f"data.{name} ({wanted}) is above model.max_length ({most})")
        return wanted or most

    @cached_property
    def patches(self) -> BlockMasking:
        """What hides patches."""
        grid = self.model.image_grid
        return BlockMasking(grid.rows, grid.columns, self.data.image_mask_ratio)

    @cached_property
    def words(self) -> Masking:
        """What hides words.

        Raises:
            ValueError: If the tokenizer has no mask token.
        """
        data = self.data
        config = MaskedTextDataConfig(
            tokenizer=data.tokenizer, masking=data.masking, corruption=data.corruption,
            max_length=self.model.max_length,
        )  # fmt: skip
        return Masking(config, self.tokenizer)

    @cached_property
    def targets(self) -> CodeTargets:
        """The frozen tokenizer of images, which reads what the model reads; on the CPU at first.

        Raises:
            FileNotFoundError: If there is no such run.
            ValueError: If it is a tokenizer of other images, or `codes` is not set.
        """
        model, data = self.model, self.data
        shape = ImageModelConfig(
            image_size=model.image_size, patch_size=model.patch_size, channels=model.channels,
            codes=model.codes,
        )  # fmt: skip

        def batches() -> LazyBatches:
            images = self.images[TRAIN]
            crop = self.crop(images, "half")
            return evaluation_images(images, crop, BATCH, crop.reading.blank)

        return load_targets(data.image_tokenizer, shape, data.normalisation, self.seed, batches)

    def describe(self) -> str:
        """Say how much there is, and what was odd."""
        ends = self.paired_texts[TRAIN].ends
        cut = int((np.diff(ends, prepend=-1) - 1 > self.paired_text_length - 2).sum())
        counts = Counts(self.captions.counts)
        counts[CUT] = cut
        train, validation = self.pairs
        said = counts.beside({"training pairs": len(train.texts),
                              "validation pairs": len(validation.texts)})  # fmt: skip
        return (f"{self.data.source}: {said}; beside them {len(self.images[TRAIN]):,} "
                f"images and {len(self.texts[TRAIN].tokens):,} tokens of text")  # fmt: skip

    def reading(self, split: ImageSplit, normalisation: str | None = None) -> Reading:
        """Return the form in which the model reads the images of a split; see `crop`."""
        model, form = self.model, normalisation or self.data.normalisation
        return Reading(model.image_size, model.channels, form, split.peak)

    def crop(self, split: ImageSplit, normalisation: str | None = None) -> CentreCrop:
        """Return what is done to images in validation; None normalises them as the model's."""
        reading = self.reading(split, normalisation)
        return CentreCrop(reading, self.data.resize or reading.size)

    def examples(
        self, split: int, transforms: tuple[Transform, Transform]
    ) -> tuple[ImageExamples, TextExamples, PairExamples]:
        """Return what makes the examples of each stream.

        Args:
            split: `TRAIN` or `VALIDATION`.
            transforms: What is done to images alone, and to those of pairs.
        """
        data, begin, longest = self.data, self.tokenizer.begin, self.paired_text_length
        alone = WordHiding(self.words, data.text_mask_ratio)
        paired = WordHiding(self.words, data.paired_text_mask_ratio)
        with_text = ImageExamples(self.pairs[split].images, transforms[1], self.patches)
        return (
            ImageExamples(self.images[split], transforms[0], self.patches),
            TextExamples(self.texts[split], begin, self.text_length, alone),
            PairExamples(with_text, self.paired_texts[split], begin, longest, paired),
        )

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return images, texts and pairs, each in its own order; other parts are hidden each time.

        Raises:
            ValueError: If a batch can't be cut by `batch_shares`.
        """
        sizes = stream_sizes(batch_size, self.data.batch_shares)
        augmentations = (
            Augmentation(self.reading(self.images[TRAIN]), self.data.image_augmentation),
            Augmentation(self.reading(self.pairs[TRAIN].images), self.data.augmentation),
        )
        made = self.examples(TRAIN, augmentations)
        counts = (len(self.images[TRAIN]), len(made[1]), len(self.pairs[TRAIN].texts))
        told: tuple[Told, ...] = (
            self.images[TRAIN].broken,
            lambda index, error: None,  # no text is broken
            self.pairs[TRAIN].images.broken,
        )
        streams = {
            name: example_stream(
                counts[place], made[place], sizes[name], len(PARTS) * seed + place,
                broken=told[place],
            )
            for place, name in enumerate(PARTS)
        }  # fmt: skip
        return joined(streams, self.join)

    def join(self, pieces: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
        """Make a batch of a piece of each stream."""
        return join_examples(self.model.image_tokens, *(pieces[name] for name in PARTS))

    def fixed_batches(self, split: int) -> LazyBatches:
        """Return all of a split in mixed order; always the same parts are hidden."""
        pair_images = self.pairs[split].images
        crops = (self.crop(self.images[split]), self.crop(pair_images))
        images, texts, pairs = self.examples(split, crops)
        makers: tuple[Callable[[int, np.random.Generator], Example], ...] = (
            lambda index, draw: readable(
                images, images.blank, crops[0].reading, index, draw, self.images[split].broken
            ),
            texts,
            lambda index, draw: readable(
                pairs,
                lambda image: pairs.blank(image, index, draw),
                crops[1].reading,
                index,
                draw,
                pair_images.broken,
            ),
        )
        counts = (len(self.images[split]), len(texts), len(pair_images))
        number = -(-max(counts) // EVALUATION_BATCH)
        orders = [np.array_split(mixed_order(count), number) for count in counts]

        def make(plan: tuple[np.ndarray, ...]) -> dict[str, Any]:
            rows = zip(makers, plan, range(len(PARTS)), strict=True)
            pieces = [fixed_examples(maker, numbers, which) for maker, numbers, which in rows]
            return self.join(dict(zip(PARTS, pieces, strict=True)))

        return LazyBatches(list(zip(*orders, strict=True)), make)

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        """Return a batch of black images, of the longest texts and of pairs of both.

        Args:
            examples: Shared out as `batch_shares` says, one at least of each kind.
        """
        shares = self.data.batch_shares
        counts = [max(1, round(examples * share / sum(shares))) for share in shares]
        hidden = {
            "texts": (self.text_length, self.data.text_mask_ratio),
            "pairs": (self.paired_text_length, self.data.paired_text_mask_ratio),
        }
        pieces: dict[str, dict[str, Tensor]] = {}
        for name, count in zip(PARTS, counts, strict=True):
            pieces[name] = self._black_images(count) if name != "texts" else {}
            if name in hidden:
                pieces[name] |= self._hidden_texts(count, *hidden[name])
        return self.join(pieces)

    def _black_images(self, count: int) -> dict[str, Tensor]:
        """Return "images" with hidden "patches", none of them "blank"."""
        side = self.model.image_size
        return {
            "images": torch.zeros(count, self.model.channels, side, side),
            "patches": torch.arange(self.patches.count).repeat(count, 1),
            "blank": torch.zeros(count, dtype=torch.bool),
        }

    def _hidden_texts(self, count: int, length: int, ratio: float) -> dict[str, Tensor]:
        """Return "seen" and "targets", (count, length), of one word again and again."""
        word = int(np.flatnonzero(self.words.plain)[0])
        made = WordHiding(self.words, ratio)(np.full(length, word), np.random.default_rng(0))
        found = {name: torch.from_numpy(row).repeat(count, 1)
                 for name, row in zip(("seen", "targets"), made, strict=True)}  # fmt: skip
        return {**found, "length": torch.full((count,), length)}


def stream_sizes(batch_size: int, shares: Sequence[int]) -> dict[str, int]:
    """Return how many examples of a batch are images, texts and pairs.

    Raises:
        ValueError: If the batch can't be cut so.
    """
    whole = sum(shares)
    if batch_size % whole:
        nearest = max(whole, round(batch_size / whole) * whole)
        raise ValueError(f"training.batch_size ({batch_size}) must be a multiple of {whole}, the "
                         f"sum of data.batch_shares: {nearest} for example")  # fmt: skip
    return {key: batch_size // whole * share for key, share in zip(PARTS, shares, strict=True)}
