"""A batch made of the configuration alone: the largest that a recipe allows, for plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.vision_language.modelling.data import MaskedData
from magneto.vision_language.modelling.examples import WordHiding
from magneto.vision_language.modelling.streams import PARTS


def black_examples(data: MaskedData, examples: int) -> dict[str, Any]:
    """Return a batch of black images, of the longest texts and of pairs of both.

    Args:
        data: Whose tokenizer is known; nothing is read.
        examples: Shared out as `data.batch_shares` says, one at least of each kind.
    """
    shares = data.data.batch_shares
    counts = [max(1, round(examples * share / sum(shares))) for share in shares]
    longest = {"texts": data.text_length, "pairs": data.paired_text_length}
    ratios = {"texts": data.data.text_mask_ratio, "pairs": data.data.paired_text_mask_ratio}
    pieces: dict[str, dict[str, Tensor]] = {}
    for name, count in zip(PARTS, counts, strict=True):
        pieces[name] = {}
        if name != "texts":
            pieces[name] |= black_images(data, count)
        if name in longest:
            hiding = WordHiding(data.words, ratios[name])
            pieces[name] |= hidden_texts(hiding, count, longest[name])
    return data.join(pieces)


def black_images(data: MaskedData, count: int) -> dict[str, Tensor]:
    """Return "images" with hidden "patches", none of them "blank"."""
    side = data.model.image_size
    return {
        "images": torch.zeros(count, data.model.channels, side, side),
        "patches": torch.arange(data.patches.count).repeat(count, 1),
        "blank": torch.zeros(count, dtype=torch.bool),
    }


def hidden_texts(hiding: WordHiding, count: int, length: int) -> dict[str, Tensor]:
    """Return "seen" and "targets", (count, length), of texts of one word again and again."""
    word = int(np.flatnonzero(hiding.masking.plain)[0])
    seen, targets = hiding(np.full(length, word, np.int64), np.random.default_rng(0))
    rows = {"seen": seen, "targets": targets}
    lengths = torch.full((count,), length)
    return {n: torch.from_numpy(row).repeat(count, 1) for n, row in rows.items()} | {
        "length": lengths
    }
