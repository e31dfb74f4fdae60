"""Bounds on the model update: how far one SGD step at initialisation moves the label's logit.

Paper, section 3.2 and appendices A and B; DeepNet, arXiv 2203.00555, for Post-LN and DeepNorm. All
values are divided by the learning rate and the width (eta d). They are estimates of order, under
the paper's assumptions; `docs/theory.md` says what they leave out.

Sublayers are counted l = 1..L. v_l scales the second matrix of a sublayer (out_proj, fc2), w_l the
first (v_proj, fc1): entries have variance v_l^2 / fan_in. Every bound is a sum over sublayers of
`step` (what a step on the sublayer's own two matrices is worth) times q_l (how much of it comes
through to the output), and what a decoder passes on to its encoder a sum of `signal` times q_l over
the cross-attentions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum, isfinite, log, sqrt
from statistics import linear_regression
from typing import Literal, get_args

from magneto.theory.placement import PLACEMENTS, Depth, Placement, Slot, Sublayer, find_placement

Form = Literal["paper", "first_order", "telescoped"]
FORMS: tuple[Form, ...] = get_args(Form)
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


def _printed(signals: Sequence[float], alpha: float) -> list[float]:
    """q_l of theorems 1 to 3 as printed: the inner sum runs over k = 2..L for every l."""
    sums = list(accumulate(signals))
    paths = 1 + fsum(s / before for s, before in zip(signals[1:], sums[:-1], strict=True))
    return [paths / sums[-1]] * len(signals)


def _first_order(signals: Sequence[float], alpha: float) -> list[float]:
    """q_l of appendix A: the inner sum runs over the sublayers above, k = l+1..L."""
    sums = list(accumulate(signals))
    ratios = [s / before for s, before in zip(signals[1:], sums[:-1], strict=True)]
    above = list(accumulate(reversed(ratios), initial=0.0))[::-1]
    return [(1 + paths) / sums[-1] for paths in above]


def _telescoped(signals: Sequence[float], alpha: float) -> list[float]:
    """q_l without truncation: each sublayer above multiplies by P_k / P_(k-1), P_l from 1 up."""
    return [1 / variance for variance in accumulate(signals, initial=1.0)][1:]


def _skip_only(signals: Sequence[float], alpha: float) -> list[float]:
    """q_l of DeepNet's theorems: every sublayer's step counts alike, whatever lies above."""
    return [alpha**-2] * len(signals)


@dataclass(frozen=True)
class Family:
    """One formula; placements of the same layout share it.

    Attributes:
        name: Short name.
        source: Where it is derived.
        step: (v, w) to what one SGD step on the sublayer's two matrices is worth.
        signal: (v, w, alpha) to what the sublayer adds to the residual stream; its product with
            q_l is what a cross-attention passes on to the encoder.
        backward: For each form, (signals, alpha) to q_l.
        skip: "one" where the derivation has no weight on the skip connection.
        note: What a reader of the number has to know.
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
            ValueError: If the family has no such form, or no weight on the skip connection.
        """
        if form not in self.backward:
            has = ", ".join(self.backward)
            raise ValueError(f"the {self.name} bound has no form {form!r}: it has {has}")
        if self.skip == "one" and scales.alpha != 1:
            raise ValueError(f"the {self.name} bound has no alpha; this one is {scales.alpha}")
        return self.backward[form](self.signals(scales), scales.alpha)

    def signals(self, scales: Scales) -> list[float]:
        """Return what each sublayer adds."""
        return [self.signal(v, w, scales.alpha) for v, w in zip(scales.v, scales.w, strict=True)]


_EXPANDED: dict[Form, Callable[[Sequence[float], float], list[float]]] = {
    "paper": _printed,
    "first_order": _first_order,
    "telescoped": _telescoped,
}
_PRE = Family(
    "pre",
    "Foundation Transformers (arXiv 2210.06423), theorem 1 and appendices A.1, B.1",
    step=lambda v, w: v * v + w * w,
    signal=lambda v, w, alpha: v * v * w * w,
    backward=_EXPANDED,
)
_SUB = Family(
    "sub",
    "Foundation Transformers (arXiv 2210.06423), theorems 2 and 3, appendices A.2, B.2",
    step=lambda v, w: 1 + (v * v) / (w * w),
    signal=lambda v, w, alpha: v * v,
    backward=_EXPANDED,
)
# Post-LN is alpha = 1. An SGD step moves a sublayer by sqrt(v^2 + w^2) / alpha, hence the square.
_DEEPNET = Family(
    "deepnet",
    "DeepNet (arXiv 2203.00555), theorems 4.2 and 4.4, with SGD's step put in",
    step=lambda v, w: v * v + w * w,
    signal=lambda v, w, alpha: v * w * alpha,
    backward={"paper": _skip_only},
    skip="alpha",
    note="an order of growth: its constant cannot be compared with those of Pre-LN and Sub-LN",
)

Layout = tuple[tuple[Slot, ...], tuple[Slot, ...], str]
FAMILIES: dict[Layout, Family] = {
    (("before",), ("before",), "norm"): _PRE,
    (("before", "inside"), ("before", "inside"), "norm"): _SUB,
    (("after",), ("after",), "none"): _DEEPNET,
}
"""Which formula is derived for a layout: norms of self-attention, of the feed-forward network, and
on top. Norms of queries and keys are not asked for: queries and keys change no magnitude, so they
are in none of the derivations. Nor are cross-attention's: theorem 3 models it its own way (one
norm, before the output projection), whatever the code does. What else a row may have (head scales,
a norm of values, gates, a first layer of its own) is in no derivation: such a row has no bound."""


def find_family(placement: str | Placement) -> Family:
    """Return the formula of a placement.

    Raises:
        ValueError: If none is derived for it; the message names the placements that have one.
    """
    row = find_placement(placement)
    family = _family(row)
    if family is None:
        raise ValueError(
            f"no bound is derived for {row.title} ({row.name}): there is one for "
            + ", ".join(bounded_placements())
        )
    return family


def bounded_placements() -> list[str]:
    """Return the names of the placements a bound is derived for."""
    return [row.name for row in PLACEMENTS.values() if _family(row) is not None]


def _family(row: Placement) -> Family | None:
    more = (row.head_scale != "none", row.value_norm != "none", row.gated, row.first)
    layout = (row.self_attention, row.feed_forward, row.final)
    return None if any(more) else FAMILIES.get(layout)


def bound(placement: str | Placement, scales: Scales, *, form: Form = "paper") -> float:
    """Return the bound of the model update of one stack, divided by eta d.

    Args:
        placement: Whose formula.
        scales: Of every sublayer: 2 per layer; 3 for the decoder of an encoder-decoder.
        form: "paper": as printed in theorems 1 and 2. "first_order": with the index range of the
            appendix they are derived in. "telescoped": all orders, the embedding's variance kept.

    Returns:
        For Pre-LN and Sub-LN the bound; for Post-LN and DeepNorm its order.

    Raises:
        ValueError: If no such bound is derived.
    """
    family = find_family(placement)
    steps = (family.step(v, w) for v, w in zip(scales.v, scales.w, strict=True))
    return fsum(c * q for c, q in zip(steps, family.q(scales, form), strict=True))


CROSS_ATTENTION: dict[str, int] = {"second": 2, "paper": 1}
"""Which sublayer of a decoder layer is cross-attention: the second, l = 3j - 1, as it is computed
and as DeepNet has it; or the one with l % 3 == 1, as theorem 3 prints it."""


def cross_attentions(layers: int, which: str = "second") -> range:
    """Return the indices l, counted from 1, of the cross-attentions of a decoder.

    Raises:
        ValueError: If `which` is not a key of `CROSS_ATTENTION`.
    """
    if which not in CROSS_ATTENTION:
        names = ", ".join(CROSS_ATTENTION)
        raise ValueError(f"no cross-attention indices {which!r}: there are {names}")
    return range(CROSS_ATTENTION[which], 3 * layers + 1, 3)


@dataclass(frozen=True)
class EncoderDecoderBound:
    """Theorem 3, term by term, divided by eta d.

    Attributes:
        decoder: Update of the decoder's own weights.
        encoder: Update of the encoder's output.
        passed_on: How much of the encoder's update reaches the decoder's output.
    """

    decoder: float
    encoder: float
    passed_on: float

    @property
    def total(self) -> float:
        """The whole: decoder + passed_on * encoder."""
        return self.decoder + self.passed_on * self.encoder


def encoder_decoder_bound(
    placement: str | Placement,
    encoder: Scales,
    decoder: Scales,
    *,
    cross: Iterable[int] | None = None,
    form: Form = "paper",
) -> EncoderDecoderBound:
    """Return the bound of an encoder-decoder (theorem 3; appendix B.1 for Pre-LN).

    Args:
        placement: Whose formula.
        encoder: 2 sublayers per layer.
        decoder: 3 sublayers per layer.
        cross: Indices of the decoder's cross-attentions, counted from 1; default 3j - 1.
        form: As in `bound`.

    Raises:
        ValueError: If no such bound is derived, or an index is not one of a decoder's sublayer.
    """
    family = find_family(placement)
    chosen = set(cross_attentions(len(decoder.v) // 3) if cross is None else cross)
    outside = sorted(chosen - set(range(1, len(decoder.v) + 1)))
    if outside or not chosen:
        raise ValueError(
            f"cross-attention indices are from 1 to {len(decoder.v)}, not {outside or 'none'}"
        )
    q, signals = family.q(decoder, form), family.signals(decoder)
    return EncoderDecoderBound(
        decoder=bound(placement, decoder, form=form),
        encoder=bound(placement, encoder, form=form),
        passed_on=fsum(signals[index - 1] * q[index - 1] for index in chosen),
    )


def deepnet_update(scales: Scales, changes: Sequence[float]) -> float:
    """Return DeepNet's bound for given changes of the weights (arXiv 2203.00555, theorem 4.2).

    Args:
        scales: Of every sublayer.
        changes: Norm of each sublayer's change, in the same order. SGD's is sqrt(v^2 + w^2) / alpha
            times eta, which gives `bound` of DeepNorm.
    """
    parts = zip(scales.v, scales.w, changes, strict=True)
    return fsum(sqrt(v * v + w * w) / scales.alpha * change for v, w, change in parts)


def growth_exponent(layers: Sequence[int], bounds: Sequence[float]) -> float:
    """Return the slope of log bound against log layers: bound ~ layers ** slope.

    Raises:
        ValueError: For fewer than two depths.
    """
    if len(set(layers)) < 2:
        raise ValueError(f"growth needs at least two depths, not {list(layers)}")
    return linear_regression([log(n) for n in layers], [log(b) for b in bounds]).slope
