"""The placement table: where each Transformer puts its norms, and what it derives from depth.

A sublayer computes `x <- after(alpha * x + branch(W_out inside(f(before(x)))))`, where f is
attention or the first half of the feed-forward network. A placement says which of the four slots
hold a norm, for each kind of sublayer; an empty slot is the identity. Nothing else in the library
asks for a placement by name: a new placement is one more row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Literal, get_args

from magneto.theory.depth import Depth
from magneto.theory.gains import deepnorm_alpha, deepnorm_beta, one, sub_gain

Slot = Literal["before", "inside", "branch", "after"]
Sublayer = Literal["self_attention", "cross_attention", "feed_forward"]
SLOTS: tuple[Slot, ...] = get_args(Slot)
SUBLAYERS: tuple[Sublayer, ...] = get_args(Sublayer)


@dataclass(frozen=True)
class Placement:
    """One row of the table.

    Attributes:
        name: What a recipe calls it.
        title: What a table or a figure calls it.
        source: Where it comes from.
        self_attention: Slots that hold a norm in self-attention.
        cross_attention: The same in cross-attention.
        feed_forward: The same in the feed-forward network (`inside` is as wide as its inner layer).
        final: "norm" for one more norm on top of the stack.
        head_scale: Where a learned scalar per attention head multiplies ("none", before the output
            projection, or after it).
        query_key_norm: "norm" to normalise each head's queries and keys.
        scaled: Kinds of sublayer whose v, out, fc1 and fc2 weights get the derived gain.
        gain: Gain of those weights at initialisation.
        alpha: Weight of the skip connection.
    """

    name: str
    title: str
    source: str
    self_attention: tuple[Slot, ...] = ()
    cross_attention: tuple[Slot, ...] = ()
    feed_forward: tuple[Slot, ...] = ()
    final: Literal["none", "norm"] = "none"
    head_scale: Literal["none", "before_out", "after_out"] = "none"
    query_key_norm: Literal["none", "norm"] = "none"
    scaled: tuple[Sublayer, ...] = ()
    gain: Callable[[Depth], float] = field(default=one)
    alpha: Callable[[Depth], float] = field(default=one)

    def __post_init__(self) -> None:
        for sublayer in SUBLAYERS:
            unknown = set(self.slots(sublayer)) - set(SLOTS)
            if unknown:
                raise ValueError(f"placement {self.name!r}: unknown slot {unknown.pop()!r}")

    def slots(self, sublayer: Sublayer) -> tuple[Slot, ...]:
        """Return the slots that hold a norm in one kind of sublayer."""
        return getattr(self, sublayer)

    def sublayer_gain(self, sublayer: Sublayer, depth: Depth) -> float:
        """Return the gain at initialisation of v, out, fc1 and fc2 in one kind of sublayer."""
        return self.gain(depth) if sublayer in self.scaled else 1.0


_ROWS = (
    Placement(
        name="post",
        title="Post-LN",
        source="Vaswani et al. 2017, arXiv 1706.03762",
        self_attention=("after",),
        cross_attention=("after",),
        feed_forward=("after",),
    ),
    Placement(
        name="pre",
        title="Pre-LN",
        source="Radford et al. 2019 (GPT-2); Xiong et al. 2020, arXiv 2002.04745",
        self_attention=("before",),
        cross_attention=("before",),
        feed_forward=("before",),
        final="norm",
    ),
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
    Placement(
        name="deepnorm",
        title="DeepNorm",
        source="Wang et al. 2022 (DeepNet), arXiv 2203.00555",
        self_attention=("after",),
        cross_attention=("after",),
        feed_forward=("after",),
        scaled=("self_attention", "cross_attention", "feed_forward"),
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
        source="Kim et al. 2025, arXiv 2502.02732; as in Gemma 2 and 3",
        self_attention=("before", "branch"),
        cross_attention=("before", "branch"),
        feed_forward=("before", "branch"),
        final="norm",
    ),
    Placement(
        name="pre-qk",
        title="Pre-LN + QK-norm",
        source="Dehghani et al. 2023 (ViT-22B), arXiv 2302.05442",
        self_attention=("before",),
        cross_attention=("before",),
        feed_forward=("before",),
        final="norm",
        query_key_norm="norm",
    ),
)

PLACEMENTS: dict[str, Placement] = {row.name: row for row in _ROWS}
"""The placements that are compared with one another, by name."""

VARIANTS: dict[str, Placement] = {
    row.name: row
    for row in (
        # fairseq's code scales the mixed vector after the projection, for speed; the paper doesn't.
        replace(
            PLACEMENTS["normformer"],
            name="normformer-fairseq",
            title="NormFormer (fairseq)",
            head_scale="after_out",
        ),
        # The paper's appendix B puts cross-attention's one norm before the output projection,
        # its text and the authors' code on the query.
        replace(
            PLACEMENTS["sub"],
            name="sub-cross-inside",
            title="Sub-LN (cross-attention as in theorem 3)",
            cross_attention=("inside",),
        ),
    )
}
"""Other readings of a row; a recipe may name them too."""


def find_placement(name: str | Placement) -> Placement:
    """Return the row of that name; a `Placement` is returned as it is: users can bring their own.

    Raises:
        ValueError: If no row has that name; the message names the nearest one and all others.
    """
    if isinstance(name, Placement):
        return name
    rows = PLACEMENTS | VARIANTS
    if name in rows:
        return rows[name]
    called = {row.title.lower(): row.name for row in rows.values()} | {key: key for key in rows}
    near = get_close_matches(str(name).lower(), called, n=1, cutoff=0.4)
    hint = f"did you mean {called[near[0]]!r}? " if near else ""
    raise ValueError(f"no placement {name!r}: {hint}there are {', '.join(rows)}")
