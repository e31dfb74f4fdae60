"""How many examples of a batch are images, texts and pairs."""

from __future__ import annotations

from collections.abc import Sequence

PARTS = ("images", "texts", "pairs")


def stream_sizes(batch_size: int, shares: Sequence[int]) -> dict[str, int]:
    """Return how many examples of a batch are images, texts and pairs.

    Raises:
        ValueError: If the batch can't be cut so.
    """
    whole = sum(shares)
    if batch_size % whole:
        nearest = max(whole, round(batch_size / whole) * whole)
        raise ValueError(f"training.batch_size ({batch_size}) must be a multiple of {whole}, the "
                         f"sum of data.batch_shares: {nearest} for example")  # fmt: skip
    return {key: batch_size // whole * share for key, share in zip(PARTS, shares, strict=True)}
