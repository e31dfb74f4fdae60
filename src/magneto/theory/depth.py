"""What a derived constant may depend on: how deep the stacks are, and which one is meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stack = Literal["encoder", "decoder"]


@dataclass(frozen=True)
class Depth:
    """Depth of one stack and of its partner.

    Attributes:
        stack: Which stack the constant is for.
        layers: Layers in this stack (N of an encoder, M of a decoder).
        other_layers: Layers in the other stack of an encoder-decoder; 0 where there is none.

    Raises:
        ValueError: If `layers` is below 1 or `other_layers` below 0.
    """

    stack: Stack
    layers: int
    other_layers: int = 0

    def __post_init__(self) -> None:
        if self.stack not in ("encoder", "decoder"):
            raise ValueError(f"stack must be 'encoder' or 'decoder', not {self.stack!r}")
        if self.layers < 1:
            raise ValueError(f"a stack needs at least 1 layer, not {self.layers}")
        if self.other_layers < 0:
            raise ValueError(f"other_layers must be 0 or more, not {self.other_layers}")

    @property
    def alone(self) -> bool:
        """True for an encoder-only or a decoder-only model."""
        return self.other_layers == 0

    @property
    def sublayers(self) -> int:
        """Sublayers of this stack: L = 2N, or 3M for a decoder that attends to an encoder."""
        return self.layers * (3 if self.stack == "decoder" and not self.alone else 2)
