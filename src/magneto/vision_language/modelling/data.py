"""The data of masked data modelling: three streams to train on, fixed batches to validate on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from magneto.data.batch import LazyBatches, mixed_order
from magneto.data.counts import Counts
from magneto.data.problems import DataProblems
from magneto.data.stream import BatchStream, joined
from magneto.data.tokenizer import Tokenizer
from magneto.language.config import MaskedTextDataConfig
from magneto.language.masking import Masking
from magneto.progress import SILENT, Progress
from magneto.vision.augmentation import Augmentation
from magneto.vision.batches import Told, Transform, example_stream
from magneto.vision.images import ImageSplit
from magneto.vision.targets import BlockMasking
from magneto.vision.transforms import CentreCrop, Reading
from magneto.vision_language.modelling.config import MaskedDataConfig, MaskedDataModelConfig
from magneto.vision_language.modelling.examples import (
    Example,
    ImageExamples,
    PairExamples,
    TextExamples,
    WordHiding,
    fixed_examples,
    join_examples,
    readable,
)
from magneto.vision_language.modelling.sources import (
    ClosedTexts,
    close_texts,
    image_splits,
    text_splits,
    vocabulary_texts,
)
from magneto.vision_language.modelling.streams import PARTS, stream_sizes
from magneto.vision_language.pairs import PairSplit, PairSplits, load_pairs
from magneto.vision_language.vocabulary import text_tokenizer

# Examples of each stream in an evaluation batch.
EVALUATION_BATCH = 64
CUT = "texts of pairs cut"
TRAIN, VALIDATION = 0, 1


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
    def pairs(self) -> PairSplits:
        """Images with texts."""
        return load_pairs(self.data, self.progress, self.problems)

    @cached_property
    def images(self) -> tuple[ImageSplit, ImageSplit]:
        """Images without a text, to train and to validate on."""
        return image_splits(self.data, self.pairs, self.seed, self.progress, self.problems)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The texts' tokenizer; without touching the texts, unless it is learnt from them."""
        data = self.data
        texts = vocabulary_texts(data, self.pairs) if data.tokenizer == "bpe" else ()
        return text_tokenizer(data.tokenizer, data.vocab_size, texts, self.progress)

    @cached_property
    def paired_texts(self) -> tuple[ClosedTexts, ClosedTexts]:
        """Tokens of the texts of pairs, to train and to validate on."""
        pairs, tokenizer = self.pairs, self.tokenizer
        train = close_texts(pairs.train.texts, tokenizer)
        return train, close_texts(pairs.validation.texts, tokenizer)

    @cached_property
    def texts(self) -> tuple[ClosedTexts, ClosedTexts]:
        """Tokens of texts without an image, to train and to validate on."""
        length, paired = self.text_length, self.paired_texts
        return text_splits(self.data, paired, self.tokenizer, length, self.progress)

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

    def describe(self) -> str:
        """Say how much there is, and what was odd."""
        ends = self.paired_texts[TRAIN].ends
        cut = int((np.diff(ends, prepend=-1) - 1 > self.paired_text_length - 2).sum())
        counts = Counts(self.pairs.counts)
        counts[CUT] = cut
        pairs = PairSplits(self.pairs.train, self.pairs.validation, counts)
        return (f"{self.data.source}: {pairs.describe()}; beside them {len(self.images[TRAIN]):,} "
                f"images and {len(self.texts[TRAIN].tokens):,} tokens of text")  # fmt: skip

    def reading(self, split: ImageSplit) -> Reading:
        """Return the form in which the model reads the images of a split."""
        model, peak = self.model, split.peak
        return Reading(model.image_size, model.channels, self.data.normalisation, peak)

    def crop(self, split: ImageSplit) -> CentreCrop:
        """Return what is done to images in validation."""
        reading = self.reading(split)
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
        with_text = ImageExamples(self.pair_split(split).images, transforms[1], self.patches)
        return (
            ImageExamples(self.images[split], transforms[0], self.patches),
            TextExamples(self.texts[split], begin, self.text_length, alone),
            PairExamples(with_text, self.paired_texts[split], begin, longest, paired),
        )

    def pair_split(self, split: int) -> PairSplit:
        """Return the pairs to train or to validate on."""
        return (self.pairs.train, self.pairs.validation)[split]

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return images, texts and pairs, each in its own order; other parts are hidden each time.

        Raises:
            ValueError: If a batch can't be cut by `batch_shares`.
        """
        sizes = stream_sizes(batch_size, self.data.batch_shares)
        augmentations = (
            Augmentation(self.reading(self.images[TRAIN]), self.data.image_augmentation),
            Augmentation(self.reading(self.pairs.train.images), self.data.augmentation),
        )
        made = self.examples(TRAIN, augmentations)
        counts = (len(self.images[TRAIN]), len(made[1]), len(self.pairs.train))
        told: tuple[Told, ...] = (
            self.images[TRAIN].broken,
            lambda index, error: None,  # no text is broken
            self.pairs.train.images.broken,
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
        pair_split = self.pair_split(split)
        crops = (self.crop(self.images[split]), self.crop(pair_split.images))
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
                pair_split.images.broken,
            ),
        )
        counts = (len(self.images[split]), len(texts), len(pair_split))
        number = -(-max(counts) // EVALUATION_BATCH)
        orders = [np.array_split(mixed_order(count), number) for count in counts]

        def make(plan: tuple[np.ndarray, ...]) -> dict[str, Any]:
            rows = zip(makers, plan, range(len(PARTS)), strict=True)
            pieces = [fixed_examples(maker, numbers, which) for maker, numbers, which in rows]
            return self.join(dict(zip(PARTS, pieces, strict=True)))

        return LazyBatches(list(zip(*orders, strict=True)), make)
