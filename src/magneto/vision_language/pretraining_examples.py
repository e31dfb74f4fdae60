"""Examples of the three streams, each with what is hidden in it; and batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.data.problems import guarded
from magneto.data.stream import EVALUATION_SEED
from magneto.data.tokenizer import Tokenizer
from magneto.functional.cross_entropy import IGNORED
from magneto.language.masked_lm import Masking
from magneto.language.text import tokenised
from magneto.vision.batches import Told, Transform, stacked
from magneto.vision.decoding import BrokenImage
from magneto.vision.images import ImageSplit
from magneto.vision.targets import BlockMasking
from magneto.vision.transforms import Reading
from magneto.vision_language.heads import MaskedSamples
from magneto.vision_language.samples import join_samples, joined

Example = dict[str, Any]


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


@dataclass(frozen=True)
class WordHiding:
    """Hides a share of the words of a text.

    Attributes:
        masking: Which, and by what.
        ratio: Share of the tokens that are no special ones; one at least.
    """

    masking: Masking
    ratio: float

    def __call__(self, row: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return what is seen of tokens, (length,), and what is to be guessed in each place."""
        most = max(1, round(self.ratio * int(self.masking.plain[row].sum())))
        chosen = self.masking.choose(row, draw, most)
        seen, targets = row.copy(), np.full_like(row, IGNORED)
        targets[chosen] = row[chosen]
        seen[chosen] = self.masking.corrupt(row[chosen], draw)
        return seen, targets


@dataclass(frozen=True)
class ImageExamples:
    """Images with hidden patches.

    Attributes:
        images: Of a split.
        transform: What is done to one.
        patches: Which of its patches are hidden.
    """

    images: ImageSplit
    transform: Transform
    patches: BlockMasking

    def __call__(self, index: int, draw: np.random.Generator) -> Example:
        """Return "images", "patches" (hidden ones), and "blank", False.

        Raises:
            BrokenImage: If the image can't be read.
        """
        image = self.transform(self.images.open(index), draw)
        return {"images": image, "patches": self.patches.draw(draw), "blank": np.False_}

    def blank(self, image: np.ndarray) -> Example:
        """Return what stands for an image that can't be read; nothing of it is guessed."""
        hidden = np.arange(self.patches.count)
        return {"images": image, "patches": hidden, "blank": np.True_}


@dataclass(frozen=True)
class TextExamples:
    """Sequences cut from texts one after another, `<s>` before each, with hidden words.

    Attributes:
        texts: Of a split.
        begin: Number of `<s>`.
        length: Of a sequence, `<s>` included.
        words: Which are hidden.
    """

    texts: ClosedTexts
    begin: int
    length: int
    words: WordHiding

    def __len__(self) -> int:
        return len(self.texts.tokens) // (self.length - 1)

    def __call__(self, index: int, draw: np.random.Generator) -> Example:
        """Return "seen" and "targets", (length,) both."""
        start = index * (self.length - 1)
        tokens = self.texts.tokens[start : start + self.length - 1]
        seen, targets = self.words(np.concatenate([[self.begin], tokens]).astype(np.int64), draw)
        return {"seen": seen, "targets": targets}


@dataclass(frozen=True)
class PairExamples:
    """Images with hidden patches, each with a text with hidden words.

    Attributes:
        images: The image of each pair.
        texts: The text of each pair.
        begin: Number of `<s>`.
        length: Longest text, `<s>` and `</s>` included; what is longer is cut.
        words: Which are hidden.
    """

    images: ImageExamples
    texts: ClosedTexts
    begin: int
    length: int
    words: WordHiding

    def __call__(self, index: int, draw: np.random.Generator) -> Example:
        """Return what `ImageExamples` does, "seen" and "targets", filled up, and "length"."""
        return self._with_text(self.images(index, draw), index, draw)

    def blank(self, image: np.ndarray, index: int, draw: np.random.Generator) -> Example:
        """Return what stands for a pair whose image can't be read; nothing of it is guessed."""
        example = self._with_text(self.images.blank(image), index, draw)
        return {**example, "targets": np.full_like(example["targets"], IGNORED)}

    def _with_text(self, example: Example, index: int, draw: np.random.Generator) -> Example:
        tokens = self.texts.text(index)[: self.length - 2]
        row = np.concatenate([[self.begin], tokens, [self.texts.end]]).astype(np.int64)
        seen, targets = np.zeros(self.length, np.int64), np.full(self.length, IGNORED)
        seen[: len(row)], targets[: len(row)] = self.words(row, draw)
        return {**example, "seen": seen, "targets": targets, "length": len(row)}


def join_examples(
    image_tokens: int, images: dict[str, Tensor], texts: dict[str, Tensor], pairs: dict[str, Tensor]
) -> dict[str, Any]:
    """Make a batch of stacked examples of each stream.

    Args:
        image_tokens: Vision tokens of an image: one more than its patches.
        images: Of `ImageExamples`.
        texts: Of `TextExamples`.
        pairs: Of `PairExamples`.

    Returns:
        "images", of images alone, then of pairs; "masked", a `MaskedSamples`; "words", the hidden
        ones, (hidden words,); "blank", boolean (images,).
    """
    lengths = pairs["length"].tolist()
    paired = [cut_rows(pairs[key].numpy(), lengths) for key in ("seen", "targets")]
    alone = [list(texts[key].numpy()) for key in ("seen", "targets")]
    targets = joined([*paired[1], *alone[1]])
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


def cut_rows(rows: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    """Return each row of (rows, longest) up to its length."""
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def readable(
    make: Callable[[int, np.random.Generator], Example],
    blank: Callable[[np.ndarray], Example],
    reading: Reading,
    index: int,
    draw: np.random.Generator,
    broken: Told,
) -> Example:
    """Make an example; where its image can't be read, tell so, and give a grey one's `blank`."""
    try:
        with guarded(BrokenImage):
            return make(index, draw)
    except BrokenImage as error:
        broken(index, error)
        return blank(reading.blank)


def fixed_examples(
    make: Callable[[int, np.random.Generator], Example], numbers: np.ndarray, which: int
) -> dict[str, Tensor]:
    """Stack examples that are the same in every run; of no numbers, tensors without rows.

    Args:
        make: From a number and a generator to an example.
        numbers: Of the examples.
        which: Number of the stream.
    """
    rows = [
        make(number, np.random.default_rng([EVALUATION_SEED, which, number]))
        for number in (numbers.tolist() or [0])
    ]
    return {name: value[: len(numbers)] for name, value in stacked(rows).items()}
