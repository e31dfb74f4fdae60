"""Which examples are held out for validation: by a hash of their text, so that it never changes."""

from __future__ import annotations

import hashlib


def held_out(text: str, fraction: float) -> bool:
    """Return whether a document belongs to the validation split, by its hash alone."""
    digest = hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64
