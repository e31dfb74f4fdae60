"""What simple models reach on the same bytes: the least that a trained model should beat."""

from __future__ import annotations

import lzma
from collections.abc import Sequence

import numpy as np

from magneto.data.frequencies import count_numbers, frequency_nats


def unigram_bits(train: bytes, test: bytes) -> float:
    """Bits per byte of single-byte frequencies of `train`, one added to each count."""
    counts = np.bincount(np.frombuffer(train, np.uint8), minlength=256) + 1.0
    return float(-np.log2(counts / counts.sum())[np.frombuffer(test, np.uint8)].mean())


def bigram_bits(train: bytes, test: bytes) -> float:
    """Bits per byte of byte pairs of `train`, backed off to single bytes with one pseudo-count."""
    symbols = np.frombuffer(train, np.uint8).astype(np.int64)
    single = np.bincount(symbols, minlength=256) + 1.0
    single /= single.sum()
    pairs = np.bincount(symbols[:-1] * 256 + symbols[1:], minlength=65536).reshape(256, 256)
    chance = (pairs + single) / (pairs.sum(1, keepdims=True) + 1.0)
    tested = np.frombuffer(test, np.uint8).astype(np.int64)
    bits = -np.log2(chance)[tested[:-1], tested[1:]]
    return float((bits.sum() - np.log2(single[tested[0]])) / len(tested))


def xz_bits(train: bytes, test: bytes) -> tuple[float, float]:
    """Bits per byte of `xz -9` on `test` alone, and on what it adds to `train` in front of it."""
    alone = len(lzma.compress(test, preset=9))
    added = len(lzma.compress(train + test, preset=9)) - len(lzma.compress(train, preset=9))
    return 8 * alone / len(test), 8 * added / len(test)


def text_baselines(train: Sequence[str], test: Sequence[str]) -> dict[str, float]:
    """Return the bits per byte of every baseline, by name."""
    first, second = (
        "\n\n".join(texts).encode("utf-8", errors="replace") for texts in (train, test)
    )
    alone, added = xz_bits(first, second)
    return {
        "unigram": unigram_bits(first, second),
        "bigram": bigram_bits(first, second),
        "xz -9": alone,
        "xz -9 after the training text": added,
    }


def unigram_nats(train: np.ndarray, test: np.ndarray, allowed: np.ndarray) -> float:
    """Nats per token of the frequencies in `train`, one added to each count.

    Args:
        train: Token numbers.
        test: Token numbers to be predicted.
        allowed: (vocabulary,), True for tokens that can be asked for; the others have no share.
    """
    size = len(allowed)
    nats = frequency_nats(count_numbers(train, size), count_numbers(test, size), allowed)
    return nats / len(test)
