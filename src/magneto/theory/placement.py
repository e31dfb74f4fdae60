"""The table of placements: where each has norms, and which constants it derives from depth.

A sublayer computes `x <- after(alpha * x + branch(W_out @ inside(f(before(x)))))`. f is attention
or the first half of the feed-forward network, and W_out is the last matrix of the sublayer. A
placement lists which of the four slots hold a norm in each kind of sublayer; an empty slot is the
identity. A placement also lists operations on queries, keys, values and heads. The lowest layer may
have a placement of its own. A new placement is one more row of the table and needs no other change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib import import_module
from math import log, sqrt
from typing import Literal, get_args

Stack = Literal["encoder", "decoder"]


@dataclass(frozen=True)
class Depth:
    """Depth of a stack, and of the other stack in an encoder-decoder.

    Attributes:
        stack: Kind of the stack.
        layers: Layers in this stack (N of an encoder, M of a decoder).
        other_layers: Layers in the other stack of an encoder-decoder; 0 for none.

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
            raise ValueError(f"layers must be 1 or more, not {self.layers}")
        if self.other_layers < 0:
            raise ValueError(f"other_layers must be 0 or more, not {self.other_layers}")

    @property
    def alone(self) -> bool:
        """Whether the model is encoder-only or decoder-only."""
        return self.other_layers == 0

    @property
    def sublayers(self) -> int:
        """Number L of sublayers: 2 per layer, or 3 per layer in a decoder with cross-attention."""
        return self.layers * (3 if self.stack == "decoder" and not self.alone else 2)


# Constants derived from depth. N is the number of encoder layers and M that of decoder layers, as
# in the paper; log is natural.


def one(depth: Depth) -> float:
    return 1.0


def sub_gain(depth: Depth) -> float:
    """Return gamma of Sub-LN (paper, section 3.2 and figure 2, top right).

    A single stack has the gamma sqrt(log 2N). In an encoder-decoder, the encoder has the gamma
    sqrt(log(3M) log(2N) / 3), and the decoder has the gamma sqrt(log 3M). N and M are the layers of
    encoder and decoder; a single decoder has M in place of N. Gamma is not clamped, and
    can be below 1, for example for a single stack with N = 1.
    """
    if depth.alone:
        return sqrt(log(2 * depth.layers))
    if depth.stack == "encoder":
        return sqrt(log(3 * depth.other_layers) * log(2 * depth.layers) / 3)
    return sqrt(log(3 * depth.layers))


def deepnorm_alpha(depth: Depth) -> float:
    """Return alpha of DeepNorm, the weight of the skip connection (arXiv 2203.00555, figure 2)."""
    if depth.alone:
        return (2 * depth.layers) ** 0.25
    if depth.stack == "encoder":
        return 0.81 * (depth.layers**4 * depth.other_layers) ** (1 / 16)
    return (3 * depth.layers) ** 0.25


def deepnorm_beta(depth: Depth) -> float:
    """Return beta of DeepNorm, the gain of v, out, fc1, fc2 (arXiv 2203.00555, figure 2)."""
    if depth.alone:
        return (8 * depth.layers) ** -0.25
    if depth.stack == "encoder":
        return 0.87 * (depth.layers**4 * depth.other_layers) ** (-1 / 16)
    return (12 * depth.layers) ** -0.25


def keel_alpha(depth: Depth) -> float:
    """Return the number of sublayers, which is Keel's alpha (arXiv 2601.19895, section 3).

    The paper has decoder-only models with two sublayers per layer. We count three sublayers per
    layer for a decoder with cross-attention.
    """
    return float(depth.sublayers)


Slot = Literal["before", "inside", "branch", "after"]
Sublayer = Literal["self_attention", "cross_attention", "feed_forward"]
SLOTS: tuple[Slot, ...] = get_args(Slot)
SUBLAYERS: tuple[Sublayer, ...] = get_args(Sublayer)
AttentionSublayer = Literal["self_attention", "cross_attention"]
Final = Literal["none", "norm"]
HeadScalePosition = Literal["none", "before_out", "after_out"]
QueryKeyNorm = Literal["none", "head", "width"]
ValueNorm = Literal["none", "head"]
_WORDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(SUBLAYERS, SLOTS),
    "final": get_args(Final),
    "head_scale": get_args(HeadScalePosition),
    "query_key_norm": get_args(QueryKeyNorm),
    "value_norm": get_args(ValueNorm),
    "gated": get_args(AttentionSublayer),
    "scaled": SUBLAYERS,
}


@dataclass(frozen=True)
class Placement:
    """Norm placement, such as Pre-LN or Sub-LN.

    Attributes:
        name: Name in recipes.
        title: Name in tables and figures.
        source: Publication.
        self_attention: Slots with a norm in self-attention.
        cross_attention: Slots with a norm in cross-attention.
        feed_forward: Slots with a norm in the feed-forward network (the norm `inside` has the
            inner width).
        final: "norm" for a norm on top of the stack.
        head_scale: Place of a learned scalar per attention head. "before_out" and "after_out" mean
            before and after the output projection.
        query_key_norm: "head" normalises the queries and keys of each head separately, and "width"
            normalises the queries and keys of all heads together.
        value_norm: "head" normalises each head's values.
        gated: Kinds of attention with a gate. The gate is the sigmoid of a linear layer with the
            same input as the query projection. The gate multiplies the joined heads elementwise.
            The slot `inside` and the output projection follow the gate.
        scaled: Kinds of sublayer whose v, out, fc1 and fc2 weights are multiplied by `gain`.
        gain: Function that derives the initial gain from the depth.
        alpha: Function that derives the weight of the skip connection from the depth.
        first: Separate placement for the lowest layer, or None. Its fields `final`, `scaled` and
            `gain` are ignored.
    """

    name: str
    title: str
    source: str
    self_attention: tuple[Slot, ...] = ()
    cross_attention: tuple[Slot, ...] = ()
    feed_forward: tuple[Slot, ...] = ()
    final: Final = "none"
    head_scale: HeadScalePosition = "none"
    query_key_norm: QueryKeyNorm = "none"
    value_norm: ValueNorm = "none"
    gated: tuple[AttentionSublayer, ...] = ()
    scaled: tuple[Sublayer, ...] = ()
    gain: Callable[[Depth], float] = field(default=one)
    alpha: Callable[[Depth], float] = field(default=one)
    first: Placement | None = None

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            value, several = getattr(self, name), isinstance(getattr(Placement, name), tuple)
            if several and not isinstance(value, tuple):
                raise ValueError(f"placement {self.name!r}: {name} must be a tuple such as "
                                 f"{words[:1]}, not {value!r}")  # fmt: skip
            if wrong := {*value} - {*words} if several else {value} - {*words}:
                raise ValueError(
                    f"placement {self.name!r}: {name} "
                    f"{'may only contain' if several else 'must be one of'} "
                    f"{', '.join(words)}, not {wrong.pop()!r}"
                )
        for name in ("gain", "alpha"):
            if not callable(value := getattr(self, name)):
                raise ValueError(f"placement {self.name!r}: {name} must be a function of the "
                                 f"depth, not {value!r}")  # fmt: skip

    def slots(self, sublayer: Sublayer) -> tuple[Slot, ...]:
        """Return the slots that hold a norm in sublayers of this kind."""
        return getattr(self, sublayer)

    def at(self, layer: int) -> Placement:
        """Return the placement of a layer. The bottom layer has the number 0."""
        return self.first if layer == 0 and self.first is not None else self

    def sublayer_gain(self, sublayer: Sublayer, depth: Depth) -> float:
        """Return the initial gain of v, out, fc1 and fc2 in sublayers of this kind."""
        return self.gain(depth) if sublayer in self.scaled else 1.0


_POST = Placement(
    name="post",
    title="Post-LN",
    source="Vaswani et al. 2017, arXiv 1706.03762",
    self_attention=("after",),
    cross_attention=("after",),
    feed_forward=("after",),
)
_PRE = Placement(
    name="pre",
    title="Pre-LN",
    source="Radford et al. 2019 (GPT-2); Xiong et al. 2020, arXiv 2002.04745",
    self_attention=("before",),
    cross_attention=("before",),
    feed_forward=("before",),
    final="norm",
)
_ROWS = (
    _POST,
    _PRE,
    Placement(
        name="normformer",
        title="NormFormer",
        source="Shleifer et al. 2021, arXiv 2110.09456",
        self_attention=("before", "branch"),
        cross_attention=("before",),
        feed_forward=("before", "inside"),
        final="norm",
        head_scale="before_out",
    ),
    replace(
        _POST,
        name="deepnorm",
        title="DeepNorm",
        source="Wang et al. 2022 (DeepNet), arXiv 2203.00555",
        scaled=SUBLAYERS,
        gain=deepnorm_beta,
        alpha=deepnorm_alpha,
    ),
    Placement(
        name="sub",
        title="Sub-LN",
        source="Wang et al. 2022 (Foundation Transformers), arXiv 2210.06423",
        self_attention=("before", "inside"),
        cross_attention=("before",),
        feed_forward=("before", "inside"),
        final="norm",
        scaled=("self_attention", "feed_forward"),
        gain=sub_gain,
    ),
    Placement(
        name="peri",
        title="Peri-LN",
        source="Kim et al. 2025, arXiv 2502.02732; as in Gemma 2",
        self_attention=("before", "branch"),
        cross_attention=("before", "branch"),
        feed_forward=("before", "branch"),
        final="norm",
    ),
    replace(
        _PRE,
        name="pre-qk",
        title="Pre-LN + QK-norm",
        source="Dehghani et al. 2023 (ViT-22B), arXiv 2302.05442",
        query_key_norm="head",
    ),
    # Query and key norms are over all heads together.
    Placement(
        name="olmo2",
        title="OLMo 2",
        source="OLMo team 2024 (2 OLMo 2 Furious), arXiv 2501.00656",
        self_attention=("branch",),
        cross_attention=("branch",),
        feed_forward=("branch",),
        final="norm",
        query_key_norm="width",
    ),
    # The first attention has no norm after it, and the first layer no alpha (section 3.1 of the
    # paper's second version).
    Placement(
        name="keel",
        title="Keel",
        source="Chen and Wei 2026 (Post-LayerNorm Is Back), arXiv 2601.19895",
        self_attention=("before", "after"),
        cross_attention=("before", "after"),
        feed_forward=("before", "after"),
        alpha=keel_alpha,
        first=Placement(
            name="keel-first",
            title="Keel, first layer",
            source="arXiv 2601.19895, section 3.1",
            self_attention=("before",),
            cross_attention=("before", "after"),
            feed_forward=("before", "after"),
        ),
    ),
    # The norm of both the feed-forward input and its skip is attention's `after` (equation 6). The
    # final norm is that of OLMo, whose code the authors train with.
    Placement(
        name="hybrid",
        title="HybridNorm",
        source="Zhuo et al. 2025, arXiv 2503.04598",
        self_attention=("after",),
        cross_attention=("after",),
        final="norm",
        query_key_norm="head",
        value_norm="head",
    ),
    replace(
        _PRE,
        name="gated",
        title="Gated attention",
        source="Qiu et al. 2025, arXiv 2505.06708 (gate G1, elementwise, head-specific)",
        gated=("self_attention", "cross_attention"),
    ),
)

PLACEMENTS: dict[str, Placement] = {row.name: row for row in _ROWS}
"""Placements to compare, by name."""

VARIANTS: dict[str, Placement] = {
    row.name: row
    for row in (
        # For speed, fairseq's code scales after the projection; the paper scales before it.
        replace(
            PLACEMENTS["normformer"],
            name="normformer-fairseq",
            title="NormFormer (fairseq)",
            head_scale="after_out",
        ),
        # The paper's appendix B puts cross-attention's norm before the output projection; its text
        # does not say where the norm is, and the authors' code puts it on the query.
        replace(
            PLACEMENTS["sub"],
            name="sub-cross-inside",
            title="Sub-LN (norm of cross-attention as in theorem 3.3)",
            cross_attention=("inside",),
        ),
        # The paper's second method: its first layer is Pre-LN (equation 7).
        replace(
            PLACEMENTS["hybrid"],
            name="hybrid-star",
            title="HybridNorm*",
            first=replace(
                _PRE,
                name="hybrid-star-first",
                query_key_norm="head",
                value_norm="head",
            ),
        ),
        # The base and large models, with a norm after the gate of the feed-forward network. The
        # CLIP models have another norm in attention, as "sub" has.
        replace(
            _PRE,
            name="eva02",
            title="EVA-02",
            source="Fang et al. 2023 (EVA-02), arXiv 2303.11331",
            feed_forward=("before", "inside"),
        ),
    )
}
"""Variants of the placements in `PLACEMENTS`. Recipes may use the variants too."""


def find_placement(name: str | Placement) -> Placement:
    """Return a placement by its name or by its import path "module:NAME".

    The field `name` of an imported placement becomes the import path. A `Placement` is returned
    unchanged.

    Raises:
        ValueError: If there is no such placement. The message suggests the nearest name and lists
            all names.
    """
    if isinstance(name, Placement):
        return name
    if ":" in name:
        return _import_placement(name)
    rows = PLACEMENTS | VARIANTS
    if name in rows:
        return rows[name]
    called = {row.title.lower(): row.name for row in rows.values()} | {key: key for key in rows}
    near = get_close_matches(str(name).lower(), called, n=1, cutoff=0.4)
    hint = f"did you mean {called[near[0]]!r}? " if near else ""
    raise ValueError(f"unknown placement {name!r}: {hint}Known: {', '.join(rows)}, "
                     "and module:NAME for your own")  # fmt: skip


def _import_placement(path: str) -> Placement:
    module, _, attribute = path.partition(":")
    try:
        row = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        missing = isinstance(error, ModuleNotFoundError)
        hint = ". Add the module's folder to PYTHONPATH." if missing else ""
        raise ValueError(f"can't import placement {path!r}: {error}{hint}") from error
    if not isinstance(row, Placement):
        raise ValueError(f"{path!r} is a {type(row).__name__}, not a Placement")
    return replace(row, name=path)
