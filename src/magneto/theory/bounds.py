"""Bounds on the model update: the change of the label's logit in one SGD step at initialisation.

The formulas of Post-LN and DeepNorm come from DeepNet (arXiv 2203.00555). The formulas of Pre-LN
and Sub-LN come from the paper arXiv 2210.06423 (section 3.2, appendices A and B). All bounds are
divided by eta d, the learning rate times the width. Under the paper's assumptions, the bounds give
the order of magnitude of the update. `docs/theory.md` states the limits of these assumptions.

The scale of a weight matrix is sqrt(fan_in * variance of its entries). Sublayers are numbered
l = 1..L. These symbols describe sublayer l:

- w_l: scale of the first matrix (v_proj or fc1).
- v_l: scale of the second matrix (out_proj or fc2).
- t_l: effect of updating the two matrices by one SGD step (`Family.step`).
- s_l: contribution of the sublayer to the residual stream (`Family.signal`).
- q_l: share of the effect t_l that reaches the output of the model (`Family.backward`).

The bound of a stack is t_1 q_1 + ... + t_L q_L. In an encoder-decoder, a share C of the encoder's
update reaches the decoder's output. C is the sum of s_l q_l over the cross-attention sublayers l of
the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum, isfinite, log, sqrt
from statistics import linear_regression
from typing import Literal

from magneto.theory.placement import PLACEMENTS, Depth, Placement, Slot, find_placement

Form = Literal["paper", "first_order", "telescoped"]
# Range of a plausible scale; fourth powers of far larger ones overflow a float.
SMALLEST, LARGEST = 1e-20, 1e20


@dataclass(frozen=True)
class Scales:
    """Scales of a stack's weight matrices, with one v and one w per sublayer.

    Attributes:
        v: Scale of each sublayer's second matrix (out_proj or fc2), in order of computation.
        w: Scale of each sublayer's first matrix (v_proj or fc1).
        alpha: Weight of the skip connection.

    Raises:
        ValueError: If lengths differ or are 0, or a scale is out of range.
    """

    v: tuple[float, ...]
    w: tuple[float, ...]
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not self.v or len(self.v) != len(self.w):
            raise ValueError(
                f"v and w must have one value per sublayer, not {len(self.v)} and {len(self.w)}"
            )
        for name, values in (("v", self.v), ("w", self.w), ("alpha", (self.alpha,))):
            for number, value in enumerate(values, 1):
                if not (isfinite(value) and SMALLEST <= value <= LARGEST):
                    where = f"{name} of sublayer {number}" if name != "alpha" else name
                    raise ValueError(
                        f"{where} must be a positive number from {SMALLEST:g} to {LARGEST:g}, "
                        f"not {value!r}"
                    )

    @classmethod
    def of(
        cls,
        sublayers: int,
        v: float | Sequence[float],
        w: float | Sequence[float],
        alpha: float = 1.0,
    ) -> Scales:
        """Return `Scales` of several sublayers.

        If v or w is one number, every sublayer has this scale.

        Raises:
            ValueError: If the length of a sequence differs from `sublayers`.
        """
        parts = []
        for name, given in (("v", v), ("w", w)):
            values = tuple(given) if isinstance(given, Sequence) else (given,) * sublayers
            if len(values) != sublayers:
                raise ValueError(
                    f"{name} must have one value, or one value for each of the {sublayers} "
                    f"sublayers, not {len(values)} values"
                )
            parts.append(values)
        return cls(parts[0], parts[1], alpha)


def derived_scales(
    placement: str | Placement, depth: Depth, *, cross_gain: float | None = None
) -> Scales:
    """Return the scales of square matrices under a placement's initialisation.

    Args:
        placement: Placement with `gain` and `alpha`.
        depth: Depth of the stack.
        cross_gain: Gain of v_proj and out_proj in cross-attention. The text and the code of the
            paper (arXiv 2210.06423) use the gain 1. By default, cross-attention has the gain of
            self-attention, as theorem 3.3 assumes.
    """
    row = find_placement(placement)
    gain = row.gain(depth)
    crosses = depth.stack == "decoder" and not depth.alone
    cross = [gain if cross_gain is None else cross_gain] if crosses else []
    scales = (gain, *cross, gain) * depth.layers
    return Scales(scales, scales, row.alpha(depth))


def effective_scale(fan_in: int, variance: float) -> float:
    """Return the scale of a weight matrix: sqrt(fan_in * variance of its entries).

    The fields v and w of `Scales` contain such scales. A square Xavier matrix with gain g has the
    scale g. fc1 from d to 4d has the scale sqrt(0.4) g, and fc2 from 4d to d has the scale
    sqrt(1.6) g.
    """
    return sqrt(fan_in * variance)


def _printed(signals: Sequence[float], alpha: float) -> list[float]:
    """Return q_l as printed in theorems 3.1 to 3.3. q_l is the same for every sublayer l.

    q_l = (1 + s_2 / S_1 + s_3 / S_2 + ... + s_L / S_(L-1)) / S_L. Here s_1 ... s_L are `signals`,
    and S_k = s_1 + ... + s_k is the sum of the first k signals.
    """
    sums = list(accumulate(signals))
    paths = 1 + fsum(s / before for s, before in zip(signals[1:], sums[:-1], strict=True))
    return [paths / sums[-1]] * len(signals)


def _first_order(signals: Sequence[float], alpha: float) -> list[float]:
    """Return q_l of appendix A.

    q_l = (1 + s_(l+1) / S_l + ... + s_L / S_(L-1)) / S_L, with the symbols of `_printed`.
    """
    sums = list(accumulate(signals))
    ratios = [s / before for s, before in zip(signals[1:], sums[:-1], strict=True)]
    above = list(accumulate(reversed(ratios), initial=0.0))[::-1]
    return [(1 + paths) / sums[-1] for paths in above]


def _telescoped(signals: Sequence[float], alpha: float) -> list[float]:
    """Return the exact q_l = 1 / (1 + s_1 + ... + s_l) for signals s_1 ... s_L."""
    return [1 / variance for variance in accumulate(signals, initial=1.0)][1:]


def _skip_only(signals: Sequence[float], alpha: float) -> list[float]:
    """Return q_l of DeepNet's theorems: 1 / alpha^2, the same for every sublayer."""
    return [alpha**-2] * len(signals)


@dataclass(frozen=True)
class Family:
    """Formula of a bound. Placements with norms in the same slots share it.

    Attributes:
        name: Short name.
        source: Source of the derivation.
        step: Function that returns t_l, the effect of updating a sublayer's two matrices by one SGD
            step. Arguments: v_l, w_l.
        signal: Function that returns s_l, a sublayer's contribution to the residual stream.
            Arguments: v_l, w_l, alpha.
        backward: For each form of the formula, a function that returns q_1 ... q_L. q_l is the
            share of t_l that reaches the output. Arguments: s_1 ... s_L, alpha.
        skip: "one" if the derivation assumes a skip connection with weight 1, "alpha" if it allows
            other weights.
        note: Caveat for readers.
    """

    name: str
    source: str
    step: Callable[[float, float], float]
    signal: Callable[[float, float, float], float]
    backward: Mapping[Form, Callable[[Sequence[float], float], list[float]]]
    skip: Literal["one", "alpha"] = "one"
    note: str = ""

    def q(self, scales: Scales, form: Form) -> list[float]:
        """Return q_l of every sublayer.

        Raises:
            ValueError: If the formula has no such form, or does not allow this alpha.
        """
        if form not in self.backward:
            known = ", ".join(self.backward)
            raise ValueError(f"unknown form {form!r} of the {self.name} bound. Known: {known}")
        if self.skip == "one" and scales.alpha != 1:
            raise ValueError(f"alpha must be 1 for the {self.name} bound, not {scales.alpha}")
        return self.backward[form](self.signals(scales), scales.alpha)

    def signals(self, scales: Scales) -> list[float]:
        return [self.signal(v, w, scales.alpha) for v, w in zip(scales.v, scales.w, strict=True)]


_EXPANDED: dict[Form, Callable[[Sequence[float], float], list[float]]] = {
    "paper": _printed,
    "first_order": _first_order,
    "telescoped": _telescoped,
}
_PRE = Family(
    "pre",
    "Foundation Transformers (arXiv 2210.06423), theorem 3.1 and appendices A.1, B.1",
    step=lambda v, w: v * v + w * w,
    signal=lambda v, w, alpha: v * v * w * w,
    backward=_EXPANDED,
)
_SUB = Family(
    "sub",
    "Foundation Transformers (arXiv 2210.06423), theorems 3.2 and 3.3, appendices A.2, B.2",
    step=lambda v, w: 1 + (v * v) / (w * w),
    signal=lambda v, w, alpha: v * v,
    backward=_EXPANDED,
)
# Post-LN is alpha = 1. An SGD step moves a sublayer by sqrt(v^2 + w^2) / alpha, hence the square.
_DEEPNET = Family(
    "deepnet",
    "DeepNet (arXiv 2203.00555), theorems 4.2 and 4.3, for an SGD step",
    step=lambda v, w: v * v + w * w,
    signal=lambda v, w, alpha: v * w * alpha,
    backward={"paper": _skip_only},
    skip="alpha",
    note="this is only the order of growth, not comparable with the bounds of Pre-LN and Sub-LN",
)

Layout = tuple[tuple[Slot, ...], tuple[Slot, ...], str]
FAMILIES: dict[Layout, Family] = {
    (("before",), ("before",), "norm"): _PRE,
    (("before", "inside"), ("before", "inside"), "norm"): _SUB,
    (("after",), ("after",), "none"): _DEEPNET,
}
"""The bound's formula for each layout of norms. A layout has three parts: the norms of
self-attention, the norms of the feed-forward network, and the norm on top of the stack. Norms of
queries and keys do not change the bound, since queries and keys do not scale the output of
attention. Norms of cross-attention do not change the bound, since theorem 3.3 always assumes one
norm in cross-attention, before the output projection. A placement with head scales, a value norm,
gates or a different first layer has no bound."""


def find_family(placement: str | Placement) -> Family:
    """Return the formula of a placement's bound.

    Raises:
        ValueError: If the placement has no formula. The message names all placements that have a
            formula.
    """
    row = find_placement(placement)
    if family := _family(row):
        return family
    known = ", ".join(bounded_placements())
    raise ValueError(f"no bound is derived for {row.title} ({row.name}), only for {known}")


def bounded_placements() -> list[str]:
    return [row.name for row in PLACEMENTS.values() if _family(row) is not None]


def _family(row: Placement) -> Family | None:
    more = (row.head_scale != "none", row.value_norm != "none", row.gated, row.first)
    layout = (row.self_attention, row.feed_forward, row.final)
    return None if any(more) else FAMILIES.get(layout)


def bound(placement: str | Placement, scales: Scales, *, form: Form = "paper") -> float:
    """Return the bound on the model update of one stack, divided by eta d.

    Args:
        placement: Placement of the stack.
        scales: Scales of every sublayer. A layer has 2 sublayers, or 3 in the decoder of an
            encoder-decoder.
        form: "paper" is the formula as printed in theorems 3.1 and 3.2. In "first_order", as in
            appendix A, the sum in q_l covers only the sublayers above l. "telescoped" drops no
            terms, and includes the variance of the embedding.

    Returns:
        For Pre-LN and Sub-LN, an upper bound. For Post-LN and DeepNorm, only the order of growth.

    Raises:
        ValueError: If the placement has no bound, or has none in this form or with this alpha.
    """
    family = find_family(placement)
    steps = (family.step(v, w) for v, w in zip(scales.v, scales.w, strict=True))
    return fsum(c * q for c, q in zip(steps, family.q(scales, form), strict=True))


CROSS_ATTENTION: dict[str, int] = {"second": 2, "paper": 1}
"""Number l of the decoder's first sublayer with cross-attention. From there on, every third
sublayer is cross-attention. With "second", sublayers 2, 5, 8, ... are cross-attention, as in
the model and in DeepNet. With "paper", sublayers 1, 4, 7, ... are cross-attention, by the printed
condition of theorem 3.3 (l % 3 == 1)."""


@dataclass(frozen=True)
class EncoderDecoderBound:
    """Terms of the bound in theorem 3.3, each divided by the learning rate eta and the width d.

    Attributes:
        decoder: Update of the output by the decoder's own weights.
        encoder: Update of the encoder's output.
        passed_on: Share C of `encoder` that reaches the decoder's output.
    """

    decoder: float
    encoder: float
    passed_on: float

    @property
    def total(self) -> float:
        return self.decoder + self.passed_on * self.encoder


def encoder_decoder_bound(
    placement: str | Placement,
    encoder: Scales,
    decoder: Scales,
    *,
    cross: str = "second",
    form: Form = "paper",
) -> EncoderDecoderBound:
    """Return the bound of an encoder-decoder (theorem 3.3; appendix B.1 for Pre-LN).

    Args:
        placement: Placement of both stacks.
        encoder: Scales of 2 sublayers per layer.
        decoder: Scales of 3 sublayers per layer.
        cross: Positions of cross-attention in the decoder, a key of `CROSS_ATTENTION`.
        form: As in `bound`.

    Raises:
        ValueError: If the placement has no bound, or has none in this form or with this alpha.
    """
    family = find_family(placement)
    q, signals = family.q(decoder, form), family.signals(decoder)
    first = CROSS_ATTENTION[cross] - 1
    return EncoderDecoderBound(
        decoder=bound(placement, decoder, form=form),
        encoder=bound(placement, encoder, form=form),
        passed_on=fsum(s * share for s, share in zip(signals[first::3], q[first::3], strict=True)),
    )


def growth_exponent(layers: Sequence[int], bounds: Sequence[float]) -> float:
    """Return the slope of log bound against log layers: bound ~ layers ** slope."""
    return linear_regression([log(n) for n in layers], [log(b) for b in bounds]).slope
