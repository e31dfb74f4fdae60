"""Batches of images with captions in which words are hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from magneto.data.batch import EVALUATION_SEED, LazyBatches, mixed_plans
from magneto.data.stream import BatchStream
from magneto.vision.batches import Transform, example_stream, read_or_blank
from magneto.vision.decoding import BrokenImage
from magneto.vision_language.captioning.left_to_right import CaptionHiding, left_to_right
from magneto.vision_language.captions import CaptionSplit
from magneto.vision_language.samples import join_samples, joined


@dataclass(frozen=True)
class CaptionBatches:
    """Makes batches of a split.

    A batch has "images", "samples" (pairs, read from left to right, with hidden words), "words"
    (numbers of the words to guess, among the language tokens) and "targets" (what they are).

    Attributes:
        split: Of captioned images.
        texts: Tokens of each image's captions, `<s>` ... `</s>`.
        hiding: Which words are hidden.
        image_tokens: Vision tokens of an image.
        blank: What stands for an image that can't be read.
    """

    split: CaptionSplit
    texts: Sequence[Sequence[np.ndarray]]
    hiding: CaptionHiding
    image_tokens: int
    blank: np.ndarray

    def training(self, transform: Transform, batch_size: int, seed: int) -> BatchStream:
        """Return shuffled pairs of an image and one of its captions.

        Words are hidden anew in every epoch. In the place of a broken image stands another pair:
        "broken" (scalar) counts the words to guess of such ones.
        """
        pairs = [(row, caption) for row, texts in enumerate(self.texts)
                 for caption in range(len(texts))]  # fmt: skip

        def example(number: int, random: np.random.Generator) -> dict[str, Any]:
            row, _ = pairs[number]
            return {"images": transform(self.split.open(row), random), "pair": number}

        def finish(batch: dict[str, Any], numbers: np.ndarray, draws: np.ndarray) -> dict[str, Any]:
            chosen = [pairs[number] for number in batch["pair"].tolist()]
            texts = [self.texts[row][caption] for row, caption in chosen]
            keys = [(seed, int(draw), int(number), 1)
                    for number, draw in zip(numbers, draws, strict=True)]  # fmt: skip
            hidden, counts = hide_words(texts, self.hiding, self.image_tokens, keys)
            broken = int(counts[batch["broken"].numpy()].sum())
            return {"images": batch["images"], **hidden, "broken": torch.tensor(broken)}

        def broken(number: int, error: BrokenImage) -> None:
            self.split.broken(pairs[number][0], error)

        return example_stream(len(pairs), example, batch_size, seed, finish=finish, broken=broken)

    def evaluation(self, transform: Transform, batch_size: int) -> LazyBatches:
        """Return the images in mixed order, each with its first caption, always hidden alike.

        There are also "rows" (images; their numbers in the split) and "broken" (images).
        """

        def read(row: int, random: np.random.Generator) -> np.ndarray:
            return transform(self.split.open(row), random)

        def make(rows: np.ndarray) -> dict[str, Any]:
            texts = [self.texts[row][0] for row in rows]
            keys = [(EVALUATION_SEED, int(row)) for row in rows]
            hidden, _ = hide_words(texts, self.hiding, self.image_tokens, keys)
            seen = read_or_blank(read, rows, self.blank, self.split.broken)
            return {**seen, **hidden, "rows": torch.from_numpy(rows)}

        return LazyBatches(mixed_plans(len(self.split), batch_size), make)


def hide_words(
    texts: Sequence[np.ndarray],
    hiding: CaptionHiding,
    image_tokens: int,
    keys: Sequence[Sequence[int]],
) -> tuple[dict[str, Any], np.ndarray]:
    """Hide words of texts, each by its key; return the batch's parts, and words per text.

    Args:
        texts: Tokens of each, `<s>` ... `</s>`.
        hiding: Which words are hidden.
        image_tokens: Vision tokens of an image.
        keys: Integers for each.
    """
    both = [hiding(text, np.random.default_rng(list(key)))
            for text, key in zip(texts, keys, strict=True)]  # fmt: skip
    samples = join_samples(image_tokens, paired=[seen for seen, _ in both])
    starts = samples.text_starts.tolist()
    places = [start + chosen for start, (_, chosen) in zip(starts, both, strict=True)]
    targets = [text[chosen] for text, (_, chosen) in zip(texts, both, strict=True)]
    packing = left_to_right(samples.packing, image_tokens)
    parts = {
        "samples": replace(samples, packing=packing),
        "words": torch.from_numpy(joined(places)),
        "targets": torch.from_numpy(joined(targets)),
    }
    return parts, np.array([len(chosen) for _, chosen in both])
