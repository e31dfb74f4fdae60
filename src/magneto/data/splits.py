"""Splits of data: what they are called, and which examples are held out for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

# Names of splits in files and data sets, best first.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
# And the split that a name stands for.
SPLITS = {name: split for split, names in SPLIT_NAMES.items() for name in names}


def standard_splits(
    there: Mapping[str, T], names: Mapping[str, Sequence[str]] = SPLIT_NAMES
) -> dict[str, T]:
    """Return what stands for "train", "validation" and "test", as far as they are there.

    Args:
        there: Anything by its name, in lower case.
        names: Of the splits, best first, where a field has others.
    """
    found = {split: [there[word] for word in words if word in there]
             for split, words in names.items()}  # fmt: skip
    return {split: values[0] for split, values in found.items() if values}


def hash_of(text: str) -> int:
    """Return the hash of a text, from 0 to below 2^64: the same on every machine."""
    digest = hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def held_out(text: str, fraction: float) -> bool:
    """Return whether an example belongs to the validation split, by the hash of a text of it.

    The share that is held out never changes when examples are added.
    """
    return hash_of(text) < fraction * 2**64
