"""Examples of masked data modelling: images, texts and pairs with masked patches and words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from magneto.data.stream import EVALUATION_SEED
from magneto.data.tokenizer import Tokenizer
from magneto.functional.cross_entropy import IGNORED
from magneto.language.text import tokenize_documents
from magneto.vision.batches import Example, Transform, read_image, stacked
from magneto.vision.images import ImageSplit
from magneto.vision.targets import BlockMasking
from magneto.vision_language.samples import MaskedSamples, concatenated, join_samples

if TYPE_CHECKING:
    from magneto.language.masked_lm import Masking

PARTS = ("images", "texts", "pairs")


@dataclass(frozen=True)
class ClosedTexts:
    """Concatenated tokens of texts, maybe mapped from disk, each followed by the end token."""

    tokens: np.ndarray
    end: int

    @cached_property
    def ends(self) -> np.ndarray:
        """Positions of the end tokens (texts,)."""
        return np.flatnonzero(self.tokens == self.end)

    def text(self, number: int) -> np.ndarray:
        start = self.ends[number - 1] + 1 if number else 0
        return self.tokens[start : self.ends[number]]


def close_texts(texts: Iterable[str], tokenizer: Tokenizer) -> ClosedTexts:
    kind = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    parts = [part.astype(kind) for part, _ in tokenize_documents(texts, tokenizer)]
    return ClosedTexts(np.concatenate([np.zeros(0, kind), *parts]), tokenizer.end)


def mask_words(
    masking: Masking, ratio: float, row: np.ndarray, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Mask a share of a text's tokens, at least one token and no special token.

    Returns the masked text, and the target of each position or `IGNORED`, both (length,).
    """
    most = max(1, round(ratio * int(masking.maskable[row].sum())))
    chosen = masking.choose(row, draw, most)
    seen, targets = row.copy(), np.full_like(row, IGNORED)
    targets[chosen] = row[chosen]
    seen[chosen] = masking.corrupt(row[chosen], draw)
    return seen, targets


MaskWords = Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]]
"""Function `mask_words` with its masking and ratio filled in."""


def image_examples(
    images: ImageSplit, transform: Transform, patches: BlockMasking, blank: np.ndarray | None = None
) -> Example:
    """Return a function from an image's index to "images", masked "patches" and "blank".

    `blank` replaces a broken image, of which no patch is predicted. If `blank` is None, a broken
    image raises `BrokenImage`.
    """

    def make(index: int, draw: np.random.Generator) -> dict[str, Any]:
        def read() -> np.ndarray:
            return transform(images.open(index), draw)

        broken = partial(images.broken, index)
        image, lost = (read(), False) if blank is None else read_image(read, blank, broken)
        places = np.arange(patches.count) if lost else patches.draw(draw)
        return {"images": image, "patches": places, "blank": np.bool_(lost)}

    return make


def text_examples(texts: ClosedTexts, begin: int, length: int, mask: MaskWords) -> Example:
    """Return a function from a sequence's index to "seen" and "targets", both (length,).

    Sequences are consecutive pieces of the texts, each after `<s>` (begin).
    """

    def make(index: int, draw: np.random.Generator) -> dict[str, Any]:
        tokens = texts.tokens[index * (length - 1) : (index + 1) * (length - 1)]
        seen, targets = mask(np.concatenate([[begin], tokens]).astype(np.int64), draw)
        return {"seen": seen, "targets": targets}

    return make


def pair_examples(
    of_image: Example, texts: ClosedTexts, begin: int, longest: int, mask: MaskWords
) -> Example:
    """Return a function from a pair's index to its image's example, "seen", "targets" and "length".

    A text is `<s>` (begin), its tokens and `</s>`, truncated or padded to `longest`.
    """

    def make(index: int, draw: np.random.Generator) -> dict[str, Any]:
        example = of_image(index, draw)
        tokens = texts.text(index)[: longest - 2]
        row = np.concatenate([[begin], tokens, [texts.end]]).astype(np.int64)
        seen, targets = np.zeros(longest, np.int64), np.full(longest, IGNORED)
        seen[: len(row)], hidden = mask(row, draw)
        if not example["blank"]:
            targets[: len(row)] = hidden
        return {**example, "seen": seen, "targets": targets, "length": len(row)}

    return make


def join_examples(image_tokens: int, pieces: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
    """Return a batch, given stacked examples of each stream in `PARTS`, by the stream's name.

    "images" are images alone, then those of pairs. "masked" is a `MaskedSamples`. "words" are the
    targets of masked words (masked words,), and "blank" is boolean (images,).
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
    """Stack the examples of some indices, maybe none, with the same randomness in every run."""
    rows = [
        make(number, np.random.default_rng([EVALUATION_SEED, which, number]))
        for number in (numbers.tolist() or [0])
    ]
    return {name: value[: len(numbers)] for name, value in stacked(rows).items()}


def stream_sizes(batch_size: int, shares: Sequence[int]) -> dict[str, int]:
    """Return the numbers of images, texts and pairs in a batch, which the shares must divide."""
    whole = sum(shares)
    if batch_size % whole:
        nearest = max(whole, round(batch_size / whole) * whole)
        raise ValueError(f"training.batch_size ({batch_size}) must be a multiple of {whole}, the "
                         f"sum of data.batch_shares, such as {nearest}")  # fmt: skip
    return {key: batch_size // whole * share for key, share in zip(PARTS, shares, strict=True)}
