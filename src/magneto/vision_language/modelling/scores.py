"""What the scores of masked data modelling are made of: four sums, one for each kind of guess."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.frequencies import count_numbers, frequency_nats
from magneto.vision.targets import CodeTargets
from magneto.vision_language.modelling.model import MaskedSamples

# Of images alone, of the images of pairs, of the texts of pairs, of texts alone.
KINDS = ("image", "paired_image", "paired_text", "text")


def by_kind(patches: Tensor, words: Tensor, masked: MaskedSamples) -> dict[str, Tensor]:
    """Cut rows of hidden patches and of hidden words by kind."""
    first, second = masked.alone_patches, masked.paired_words
    parts = (patches[:first], patches[first:], words[:second], words[second:])
    return dict(zip(KINDS, parts, strict=True))


def hidden_codes(targets: nn.Module, images: Tensor, patches: Tensor) -> Tensor:
    """Return the codes of the hidden patches of images, (hidden patches,).

    Args:
        targets: A `CodeTargets`, on the images' device.
        images: (images, channels, height, width); there may be none in validation.
        patches: Numbers of the hidden ones, image * patches of an image + patch.
    """
    return targets(images).flatten().index_select(0, patches) if len(images) else patches


def masked_sums(
    logits: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor], masked: MaskedSamples
) -> dict[str, Tensor]:
    """Return summed nats, right guesses and guesses of each kind.

    Args:
        logits: Of hidden patches (hidden patches, codes) and hidden words (hidden words, tokens).
        targets: What was hidden: (hidden patches,) and (hidden words,).
        masked: Of the batch.
    """
    guesses = by_kind(*logits, masked)
    sums = {}
    for kind, answers in by_kind(*targets, masked).items():
        rows = guesses[kind].float()
        sums[f"{kind}_nats"] = F.cross_entropy(rows, answers, reduction="sum")
        sums[f"{kind}_right"] = (rows.argmax(-1) == answers).sum()
        sums[f"{kind}_count"] = torch.ones_like(answers).sum()
    return sums


def masked_scores(sums: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics: the loss over all guesses, nats per guess and accuracy of each kind.

    A kind that nothing was asked of has none.
    """
    total = sum(sums[f"{kind}_nats"] for kind in KINDS)
    found = {"loss": total / max(sum(sums[f"{kind}_count"] for kind in KINDS), 1)}
    for kind in KINDS:
        if count := sums[f"{kind}_count"]:
            found[f"{kind}_loss"] = sums[f"{kind}_nats"] / count
            found[f"{kind}_accuracy"] = sums[f"{kind}_right"] / count
    return {**found, "unreadable_images": float(sums.get("unreadable", 0))}


def baseline_sums(
    targets: CodeTargets,
    texts: tuple[np.ndarray, np.ndarray],
    plain: np.ndarray,
    sizes: tuple[int, int],
    train: Iterable[dict[str, Any]],
    held: Iterable[dict[str, Any]],
) -> dict[str, float]:
    """Return the sums of answering with the frequencies of the training data, each kind its own.

    Args:
        targets: Gives codes.
        texts: Tokens to train on, of texts alone and of pairs.
        plain: Which tokens may be hidden.
        sizes: Codes, and tokens of the vocabulary.
        train: Batches of training images, whose codes are counted.
        held: Batches to validate on.
    """
    # Codes are on the device of the tokenizer, what is counted on the CPU.
    codes, asked = ({kind: np.zeros(_size(kind, sizes), np.int64) for kind in KINDS}
                    for _ in range(2))  # fmt: skip
    for counts, batches in ((codes, train), (asked, held)):
        for batch in batches:
            masked = batch["masked"]
            device = targets.scale.device
            where = masked.patches.to(device)
            patches = hidden_codes(targets, batch["images"].to(device), where).cpu()
            for kind, found in by_kind(patches, batch["words"], masked).items():
                counts[kind] += count_numbers(found.numpy(), _size(kind, sizes))
    alone, paired = (count_numbers(tokens, sizes[1]) for tokens in texts)
    allowed = np.zeros(sizes[1], bool)
    allowed[: len(plain)] = plain
    known = {**codes, "text": alone * allowed, "paired_text": paired * allowed}
    sums: dict[str, float] = {}
    for kind in KINDS:
        may = None if "image" in kind else allowed
        sums[f"{kind}_nats"] = frequency_nats(known[kind], asked[kind], may)
        sums[f"{kind}_right"] = float(asked[kind][known[kind].argmax()])
        sums[f"{kind}_count"] = float(asked[kind].sum())
    return sums


def _size(kind: str, sizes: tuple[int, int]) -> int:
    return sizes[0] if "image" in kind else sizes[1]
