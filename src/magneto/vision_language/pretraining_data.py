"""The examples of masked data modelling: images, texts and pairs, with what is hidden in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from magneto.data.problems import guarded
from magneto.data.stream import EVALUATION_SEED
from magneto.data.tokenizer import Tokenizer
from magneto.functional.cross_entropy import IGNORED
from magneto.language.text import tokenize_documents
from magneto.vision.batches import Example, Transform, stacked
from magneto.vision.decoding import BrokenImage
from magneto.vision.images import ImageSplit
from magneto.vision.targets import BlockMasking
from magneto.vision_language.samples import MaskedSamples, concatenated, join_samples

if TYPE_CHECKING:
    from magneto.language.masked_lm import Masking

PARTS = ("images", "texts", "pairs")


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
    parts = [part.astype(kind) for part, _ in tokenize_documents(texts, tokenizer)]
    return ClosedTexts(np.concatenate([np.zeros(0, kind), *parts]), tokenizer.end)


def hide_words(
    masking: Masking, ratio: float, row: np.ndarray, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Hide a share of a text's tokens that are no special ones, one at least.

    Returned is what is seen, and what is to be guessed in each place, or `IGNORED`; (length,) both.
    """
    most = max(1, round(ratio * int(masking.maskable[row].sum())))
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

    `blank` stands for an image that can't be read, of which nothing is guessed then; None raises
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

    It has "images", of images alone, then of pairs; "masked", a `MaskedSamples`; "words", the
    hidden ones, (hidden words,); "blank", boolean (images,).
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
