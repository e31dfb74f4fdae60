"""Scales of a stack's weights, the v and w of the bounds: given, derived, or from a variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

from magneto.theory.depth import Depth
from magneto.theory.placement import Placement, Sublayer, find_placement

# Beyond these a scale is a mistake, and its fourth power leaves the range of a float.
SMALLEST, LARGEST = 1e-20, 1e20
ALONE: tuple[Sublayer, ...] = ("self_attention", "feed_forward")
CROSSING: tuple[Sublayer, ...] = ("self_attention", "cross_attention", "feed_forward")


@dataclass(frozen=True)
class Scales:
    """Scales of a stack's sublayers.

    Attributes:
        v: Of each sublayer's second matrix (out_proj or fc2), in the order they are computed.
        w: Of each sublayer's first matrix (v_proj or fc1).
        alpha: Weight of the skip connection.

    Raises:
        ValueError: If the lengths differ or are 0, or a scale is not a usable positive number.
    """

    v: tuple[float, ...]
    w: tuple[float, ...]
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not self.v or len(self.v) != len(self.w):
            raise ValueError(
                f"v and w need one value per sublayer each, not {len(self.v)} and {len(self.w)}"
            )
        for name, values in (("v", self.v), ("w", self.w), ("alpha", (self.alpha,))):
            for number, value in enumerate(values, 1):
                if not (isfinite(value) and SMALLEST <= value <= LARGEST):
                    where = f"{name} of sublayer {number}" if name != "alpha" else name
                    raise ValueError(f"{where} must be a positive number, not {value!r}")

    @classmethod
    def of(
        cls,
        sublayers: int,
        v: float | Sequence[float],
        w: float | Sequence[float],
        alpha: float = 1.0,
    ) -> Scales:
        """Return scales of that many sublayers; a single number is for all of them.

        Raises:
            ValueError: If a sequence has another length.
        """
        parts = []
        for name, given in (("v", v), ("w", w)):
            values = tuple(given) if isinstance(given, Sequence) else (given,) * sublayers
            if len(values) != sublayers:
                raise ValueError(
                    f"{name} has {len(values)} values for {sublayers} sublayers: give one for all, "
                    "or one each"
                )
            parts.append(values)
        return cls(parts[0], parts[1], alpha)


def derived_scales(
    placement: str | Placement, depth: Depth, *, cross_gain: float | None = None
) -> Scales:
    """Return the scales of a placement's own initialisation, on square matrices.

    Args:
        placement: Its `gain` and `alpha` are used.
        depth: Of the stack.
        cross_gain: v = w of cross-attention. None: as the other sublayers, which is what theorem 3
            assumes. The paper's text and code leave cross-attention at 1.
    """
    row = find_placement(placement)
    gain = row.gain(depth)
    kinds = ALONE if depth.alone or depth.stack == "encoder" else CROSSING
    gains = {"cross_attention": gain if cross_gain is None else cross_gain}
    layer = [gains.get(kind, gain) for kind in kinds]
    return Scales.of(depth.sublayers, layer * depth.layers, layer * depth.layers, row.alpha(depth))


def effective_scale(fan_in: int, variance: float) -> float:
    """Return v or w of a weight matrix: sqrt(fan_in * variance of its entries).

    A square matrix with Xavier's initialisation and gain g has scale g. Rectangular ones do not:
    fc1 from d to 4d has sqrt(0.4) g and fc2 back sqrt(1.6) g.
    """
    return sqrt(fan_in * variance)
