"""A stream of batches: what the loop asks of it, so that training is the same however it is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class BatchStream(Protocol):
    """Global batches in a reproducible order, cut for ranks and micro-batches."""

    def next(self, parts: int, wanted: Sequence[int]) -> list[Any]:
        """Cut the next batch in `parts` near-equal pieces; return those numbered `wanted`."""
        ...

    def name_next(self, parts: int, wanted: Sequence[int]) -> str:
        """Say of which examples `next` would make these pieces, for messages; make nothing."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream stands, as plain JSON values that will not change."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another stream stood."""
        ...
