"""Splits of data: what they are called, and which examples are held out for validation."""

from __future__ import annotations

import hashlib

# Names of splits in files and data sets, best first.
SPLIT_NAMES = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
# And the split that a name stands for.
SPLITS = {name: split for split, names in SPLIT_NAMES.items() for name in names}


def held_out(text: str, fraction: float) -> bool:
    """Return whether an example belongs to the validation split, by the hash of a text of it.

    The share that is held out never changes when examples are added.
    """
    digest = hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64
