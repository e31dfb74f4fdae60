"""The data of masked data modelling: images, texts and pairs, each with what is hidden in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from magneto.data.problems import Counts, DataProblems, guarded
from magneto.data.stream import EVALUATION_SEED, LazyBatches
from magneto.data.tokenizer import Tokenizer
from magneto.functional.cross_entropy import IGNORED
from magneto.language.config import MaskedTextDataConfig, TextDataConfig
from magneto.language.text import prepare_text, split_documents, text_tokenizer, tokenised
from magneto.progress import SILENT, Progress
from magneto.vision.batches import Example, Transform, evaluation_images, stacked
from magneto.vision.config import ImageDataConfig, ImageModelConfig
from magneto.vision.decoding import BrokenImage
from magneto.vision.images import ImageSplit, images_of, load_images
from magneto.vision.targets import BlockMasking, CodeTargets, load_targets
from magneto.vision.transforms import CentreCrop, Reading
from magneto.vision_language.config import BUILTIN, MaskedDataConfig, MaskedDataModelConfig
from magneto.vision_language.samples import (
    MaskedSamples,
    concatenated,
    join_samples,
)
from magneto.vision_language.tables import ImageRows, RowSplits, load_captions

if TYPE_CHECKING:
    from magneto.language.masked_lm import Masking

PARTS = ("images", "texts", "pairs")
# Images of a batch of which builtin:patches is made.
BATCH = 64
CUT = "texts of pairs cut"
TRAIN, VALIDATION = 0, 1


@dataclass(frozen=True)
class Pairs:
    """Images with texts, a pair of one each: the image and the text by the pair's index."""

    images: ImageSplit
    texts: list[str]


def pairs_of(rows: ImageRows) -> Pairs:
    """Return each image with each of its captions."""
    captions, column = rows.values("captions"), rows.table.columns["image"]
    numbers = rows.table.rows.repeat([len(own) for own in captions])
    images = images_of(column, numbers, rows.problems)
    return Pairs(images, [text for own in captions for text in own])


@dataclass(frozen=True)
class ClosedTexts:
    """Tokens of texts one after another, each closed by the end token.

    Attributes:
        tokens: (tokens,), of a type that is as small as the vocabulary allows, or mapped from disk.
        end: Number of the end token.
    """

    tokens: np.ndarray
    end: int

    @cached_property
    def ends(self) -> np.ndarray:
        """Places of the end tokens, (texts,)."""
        return np.flatnonzero(self.tokens == self.end)

    def text(self, number: int) -> np.ndarray:
        """Return the tokens of a text, without the end token."""
        start = self.ends[number - 1] + 1 if number else 0
        return self.tokens[start : self.ends[number]]


def close_texts(texts: Iterable[str], tokenizer: Tokenizer) -> ClosedTexts:
    """Tokenise texts that are in memory."""
    kind = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    parts = [part.astype(kind) for part, _ in tokenised(texts, tokenizer)]
    return ClosedTexts(np.concatenate([np.zeros(0, kind), *parts]), tokenizer.end)


def hide_words(
    masking: Masking, ratio: float, row: np.ndarray, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Hide a share of the words of a text, one at least.

    Args:
        masking: Which, and by what.
        ratio: Share of the tokens that are no special ones.
        row: Tokens of the text, (length,).
        draw: What is drawn from.

    Returns:
        What is seen, and what is to be guessed in each place, or `IGNORED`; (length,) both.
    """
    most = max(1, round(ratio * int(masking.plain[row].sum())))
    chosen = masking.choose(row, draw, most)
    seen, targets = row.copy(), np.full_like(row, IGNORED)
    targets[chosen] = row[chosen]
    seen[chosen] = masking.corrupt(row[chosen], draw)
    return seen, targets


Hide = Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]]
"""`hide_words` of a masking and a ratio."""


def image_examples(
    images: ImageSplit, transform: Transform, patches: BlockMasking, blank: np.ndarray | None = None
) -> Example:
    """Return what makes "images", "patches" (hidden ones) and "blank" of an image's index.

    Args:
        images: Of a split.
        transform: What is done to one.
        patches: Which of its patches are hidden.
        blank: Stands for an image that can't be read, of which nothing is guessed then; None raises
            `BrokenImage`.
    """

    def make(index: int, draw: np.random.Generator) -> dict[str, Any]:
        try:
            with guarded(BrokenImage):
                image = transform(images.open(index), draw)
        except BrokenImage as error:
            if blank is None:
                raise
            images.broken(index, error)
            return {"images": blank, "patches": np.arange(patches.count), "blank": np.True_}
        return {"images": image, "patches": patches.draw(draw), "blank": np.False_}

    return make


def text_examples(texts: ClosedTexts, begin: int, length: int, hide: Hide) -> Example:
    """Return what makes "seen" and "targets", (length,), of a sequence's index.

    Sequences are cut from texts one after another, with `<s>` (begin) before each.
    """

    def make(index: int, draw: np.random.Generator) -> dict[str, Any]:
        tokens = texts.tokens[index * (length - 1) : (index + 1) * (length - 1)]
        seen, targets = hide(np.concatenate([[begin], tokens]).astype(np.int64), draw)
        return {"seen": seen, "targets": targets}

    return make


def pair_examples(
    of_image: Example, texts: ClosedTexts, begin: int, longest: int, hide: Hide
) -> Example:
    """Return what makes an image's example with "seen", "targets" and "length" of its text.

    A text is `<s>` (begin), its tokens and `</s>`, cut to `longest` and filled up to it.
    """

    def make(index: int, draw: np.random.Generator) -> dict[str, Any]:
        example = of_image(index, draw)
        tokens = texts.text(index)[: longest - 2]
        row = np.concatenate([[begin], tokens, [texts.end]]).astype(np.int64)
        seen, targets = np.zeros(longest, np.int64), np.full(longest, IGNORED)
        seen[: len(row)], hidden = hide(row, draw)
        if not example["blank"]:
            targets[: len(row)] = hidden
        return {**example, "seen": seen, "targets": targets, "length": len(row)}

    return make


def join_examples(image_tokens: int, pieces: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
    """Make a batch of stacked examples of each stream, by the names of `PARTS`.

    Args:
        image_tokens: Vision tokens of an image: one more than its patches.
        pieces: What `image_examples`, `text_examples` and `pair_examples` make.

    Returns:
        "images", of images alone, then of pairs; "masked", a `MaskedSamples`; "words", the hidden
        ones, (hidden words,); "blank", boolean (images,).
    """
    images, texts, pairs = (pieces[name] for name in PARTS)
    lengths = pairs["length"].tolist()
    paired = [
        [row[:length] for row, length in zip(pairs[key].numpy(), lengths, strict=True)]
        for key in ("seen", "targets")
    ]
    alone = [list(texts[key].numpy()) for key in ("seen", "targets")]
    targets = concatenated([*paired[1], *alone[1]])
    words = np.flatnonzero(targets != IGNORED)
    blank = torch.cat([images["blank"], pairs["blank"]])
    patches = torch.cat([images["patches"], pairs["patches"]])
    hidden = torch.zeros(len(blank), image_tokens - 1, dtype=torch.bool).scatter(1, patches, True)
    places = patches + torch.arange(len(blank))[:, None] * (image_tokens - 1)
    first = len(images["blank"])
    masked = MaskedSamples(
        samples=join_samples(image_tokens, first, paired[0], alone[0]),
        hidden=hidden,
        patches=places[~blank].flatten(),
        words=torch.from_numpy(words),
        alone_patches=int((~blank[:first]).sum()) * patches.shape[1],
        paired_words=int((words < sum(lengths)).sum()),
    )
    together = torch.cat([images["images"], pairs["images"]])
    return {"images": together, "masked": masked, "words": torch.from_numpy(targets[words]),
            "blank": blank}  # fmt: skip


class MaskedData:
    """Images, texts and pairs, listed and tokenised when they are asked for.

    Args:
        model: What the model reads.
        data: What there is, and what is hidden.
        seed: Of what is held out of built-in images.
        problems: Told of images that are not read as they should be.

    Attributes:
        progress: Told of long work.
        text_length: Tokens of a text without an image.
        paired_text_length: Tokens of a text with an image, at most.

    Raises:
        ValueError: If one of the lengths is above the model's.
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
        self.text_length = self._length("text_length")
        self.paired_text_length = self._length("paired_text_length")

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
            from magneto.vision_language.scenes import scene_images

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
            yield from drawn_texts()["train"]
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
            train, validation = (close_texts(texts, tokenizer) for texts in drawn_texts().values())
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
        from magneto.language.masked_lm import Masking

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


def drawn_texts() -> dict[str, list[str]]:
    """Return texts without an image about drawn scenes, of "train" and "validation"."""
    from magneto.vision_language.scenes import scene_texts

    return scene_texts()


def fixed_examples(make: Example, numbers: np.ndarray, which: int) -> dict[str, Tensor]:
    """Stack examples that are the same in every run; of no numbers, tensors without rows."""
    rows = [
        make(number, np.random.default_rng([EVALUATION_SEED, which, number]))
        for number in (numbers.tolist() or [0])
    ]
    return {name: value[: len(numbers)] for name, value in stacked(rows).items()}


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
