"""Batches of images and captions, apart: pairs to train on, and all captions of images to rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from magneto.data.batch import LazyBatches, mixed_plans
from magneto.data.stream import BatchStream, place_of
from magneto.vision.batches import Transform, example_stream, read_or_blank
from magneto.vision.decoding import BrokenImage
from magneto.vision_language.captions import CaptionSplit
from magneto.vision_language.samples import join_samples


class WholeBatchStream(BatchStream):
    """Pieces of a global batch that know where they stand in it, for negatives from all of it.

    To each piece are added "start", how many examples stand before it in the global batch, and
    "total", how many there are. The first of the pieces that are asked for has all of them in
    "pieces", so that they can be embedded before any of them is learnt from.
    """

    def batch(self, step: int, parts: int = 1, wanted: Sequence[int] = (0,)) -> list[Any]:
        """Make the pieces numbered `wanted` of a step's global batch."""
        total = len(self.plan(step))
        made = [
            {**piece, "start": place_of(number, total, parts), "total": total}
            for piece, number in zip(super().batch(step, parts, wanted), wanted, strict=True)
        ]
        return [{**made[0], "pieces": made}, *made[1:]] if parts > 1 else made


@dataclass(frozen=True)
class RetrievalBatches:
    """Makes batches of a split.

    Attributes:
        split: Of captioned images.
        texts: Tokens of each image's captions, `<s>` ... `</s>`.
        image_tokens: Vision tokens of an image.
        blank: What stands for an image that can't be read.
    """

    split: CaptionSplit
    texts: Sequence[Sequence[np.ndarray]]
    image_tokens: int
    blank: np.ndarray

    def pairs(self) -> np.ndarray:
        """Return (row, number of a caption of it) of each pair, int64 (pairs, 2)."""
        return np.array([(row, caption) for row, texts in enumerate(self.texts)
                         for caption in range(len(texts))], np.int64)  # fmt: skip

    def training(self, transform: Transform, batch_size: int, seed: int) -> WholeBatchStream:
        """Return shuffled pairs; in the place of a broken one stands another.

        A batch has "images", "samples" (images alone, then as many texts alone) and "broken".
        """
        pairs = self.pairs()

        def example(number: int, random: np.random.Generator) -> dict[str, Any]:
            row = int(pairs[number, 0])
            return {"images": transform(self.split.open(row), random), "pair": number}

        def finish(batch: dict[str, Any], numbers: np.ndarray, draws: np.ndarray) -> dict[str, Any]:
            chosen = pairs[batch.pop("pair").numpy()].tolist()
            texts = [self.texts[row][caption] for row, caption in chosen]
            samples = join_samples(self.image_tokens, images=len(texts), alone=texts)
            return {**batch, "samples": samples}

        def broken(number: int, error: BrokenImage) -> None:
            self.split.broken(int(pairs[number, 0]), error)

        stream = example_stream(len(pairs), example, batch_size, seed, finish=finish, broken=broken)
        return WholeBatchStream(stream.plan, stream.make, stream.describe)

    def evaluation(self, transform: Transform, batch_size: int) -> LazyBatches:
        """Return the images in mixed order, `batch_size` at a time, each with all of its captions.

        A batch has "images", "samples" (images alone, then texts alone), "rows" (images; their
        numbers in the split), "owners" (texts; the row of each), "first" (images; which text is
        the first of each) and "broken" (images).
        """

        def read(row: int, random: np.random.Generator) -> np.ndarray:
            return transform(self.split.open(row), random)

        def make(rows: np.ndarray) -> dict[str, Any]:
            counts = np.array([len(self.texts[row]) for row in rows])
            texts = [text for row in rows for text in self.texts[row]]
            return {
                **read_or_blank(read, rows, self.blank, self.split.broken),
                "samples": join_samples(self.image_tokens, images=len(rows), alone=texts),
                "rows": torch.from_numpy(rows),
                "owners": torch.from_numpy(rows.repeat(counts)),
                "first": torch.from_numpy(counts.cumsum() - counts),
            }

        return LazyBatches(mixed_plans(len(self.split), batch_size), make)
