"""Three streams as one: each batch has images, texts and pairs, cut for ranks each by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from magneto.training.task import BatchStream

PARTS = ("images", "texts", "pairs")


class JoinedStreams:
    """Global batches of several streams, joined piece by piece.

    A stream has its own order, its own place and its own number of examples in a batch, so that one
    may begin its third epoch while another is in its first. Each is cut for itself: piece i has the
    i-th piece of every stream.

    Args:
        streams: By name.
        sizes: Examples that each gives to a global batch.
        join: From a piece of each stream, by name, to what is given out.
    """

    def __init__(
        self,
        streams: Mapping[str, BatchStream],
        sizes: Mapping[str, int],
        join: Callable[[dict[str, Any]], Any],
    ) -> None:
        self.streams, self.sizes, self.join = dict(streams), dict(sizes), join

    def next(self, parts: int, wanted: Sequence[int]) -> list[Any]:
        """Cut the next global batch in pieces; see `magneto.training.task.BatchStream`.

        Raises:
            ValueError: If a stream has fewer examples in a batch than there are pieces.
        """
        name, size = min(self.sizes.items(), key=lambda item: item[1])
        if size < parts:
            raise ValueError(f"a batch has {size} {name} and is cut in {parts} pieces (ranks times "
                             "training.gradient_accumulation_steps): enlarge training.batch_size, "
                             "or data.batch_shares")  # fmt: skip
        pieces = {key: stream.next(parts, wanted) for key, stream in self.streams.items()}
        return [
            self.join({key: pieces[key][place] for key in pieces}) for place in range(len(wanted))
        ]

    def name_next(self, parts: int, wanted: Sequence[int]) -> str:
        """Say of which examples of each stream the next pieces would be."""
        return "; ".join(
            f"{key}: {stream.name_next(parts, wanted)}" for key, stream in self.streams.items()
        )

    def state_dict(self) -> dict[str, Any]:
        """Return where each stream stands."""
        return {key: stream.state_dict() for key, stream in self.streams.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where other streams stood."""
        for key, stream in self.streams.items():
            stream.load_state_dict(state[key])


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
