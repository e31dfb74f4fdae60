"""Captions read from left to right: what a word sees, and which words are hidden from the model.

An image's tokens see each other. A word sees the image, the words before it and itself (BEiT-3,
section 3.3). So a caption is written word by word by the model that learnt to fill in hidden ones:
a `<mask>` at its end is the next word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from magneto.data.tokenizer import Tokenizer
from magneto.language.config import MaskedTextDataConfig
from magneto.language.masking import Masking
from magneto.nn.multiway import Packing
from magneto.vision_language.samples import join_samples, joined


def left_to_right(packing: Packing, image_tokens: int) -> Packing:
    """Return a packing of pairs in which words see no later words, and images see no words.

    Args:
        packing: Of pairs alone.
        image_tokens: Of each image.
    """
    place = torch.arange(packing.length, device=packing.vision_place.device)
    query, key = place[:, None], place[None]
    # Padding stands behind all words, which do not see it.
    allowed = (key < image_tokens) | ((query >= image_tokens) & (key <= query))
    return replace(packing, attention_mask=allowed[None])


@dataclass(frozen=True)
class CaptionHiding:
    """Hides tokens of captions: of the chosen ones 80 % are masked, 10 % another, 10 % stay.

    Attributes:
        masking: What is seen in their place.
        ratio: Share of the tokens after `<s>` that are chosen; one at least.
    """

    masking: Masking
    ratio: float

    def __call__(self, row: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Choose and hide tokens, `</s>` among them.

        Args:
            row: Tokens of a caption, `<s>` ... `</s>`.
            draw: What is drawn from.

        Returns:
            What is seen, and the places of the chosen ones, in order.
        """
        count = max(1, round(self.ratio * (len(row) - 1)))
        chosen = 1 + np.sort(draw.choice(len(row) - 1, count, replace=False))
        seen = row.copy()
        seen[chosen] = self.masking.corrupt(row[chosen], draw)
        return seen, chosen


def caption_hiding(tokenizer: Tokenizer, ratio: float) -> CaptionHiding:
    """Return what hides tokens of captions.

    Raises:
        ValueError: If the tokenizer has no mask token.
    """
    return CaptionHiding(Masking(MaskedTextDataConfig(corruption="bert"), tokenizer), ratio)


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
