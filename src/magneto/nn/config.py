"""The one configuration of every stack. No torch here: a recipe is checked in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from annotated_types import Interval

from magneto.fields import (
    Dropout,
    Free,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    configuration,
    rule,
)
from magneto.theory.placement import Depth, Placement, Stack, find_placement

Activation = Literal[
    "gelu", "gelu_tanh", "relu", "relu2", "silu",
    "geglu", "geglu_tanh", "reglu", "relu2_glu", "swiglu",
]  # fmt: skip
Biased = Literal["q", "k", "v", "gate", "out", "fc1", "fc2"]
NormKind = Literal["layernorm", "rmsnorm"]
Positions = Literal["none", "learned", "sinusoidal", "rotary", "t5", "transformer_xl", "alibi"]
GridPositions = Literal["none", "relative_bias", "shared_relative_bias", "rotary"]
ADDED_POSITIONS = ("none", "learned", "sinusoidal")
RELATIVE_POSITIONS = ("t5", "transformer_xl", "alibi")
Experts = Literal["decoupled", "shared_attention"]
BaseInit = Literal["xavier_normal", "xavier_uniform", "normal", "truncated_normal"]
# Sizes beyond these are slips of the keyboard: one matrix of the widest needs a petabyte.
Width = Annotated[int, Interval(ge=1, le=1 << 24)]
Layers = Annotated[int, Interval(ge=1, le=100_000)]
Beams = Annotated[int, Interval(ge=1, le=1_000)]
"""What a search keeps at each step."""


@dataclass(frozen=True)
class Grid:
    """How a sequence lies in two dimensions: row by row, after vectors that have no place in it.

    Attributes:
        rows: Of the grid; for an image, its height in patches.
        columns: Of the grid.
        prefix: Vectors before it, for example 1 class token.
    """

    rows: int
    columns: int
    prefix: int = 0

    @property
    def length(self) -> int:
        """Length of the whole sequence."""
        return self.prefix + self.rows * self.columns


@configuration
class TransformerConfig:
    """Shape of an encoder, a decoder or an encoder-decoder."""

    width: Width = 768
    """Width of the residual stream (the paper's hidden size d)."""
    layers: Layers = 12
    """Layers of an encoder-only or decoder-only model."""
    heads: Width = 12
    """Attention heads; they divide `width`."""
    ffn_width: Width = 3072
    """Inner width of the feed-forward network."""
    placement: str | Placement = "sub"
    """Name of a row of `magneto.theory.placement`, or a row of your own."""
    activation: Activation = "gelu"
    """Of the feed-forward network. "relu2" is the square of ReLU; "swiglu" and the others with
    "glu" gate it: half of the inner layer, activated, times the other half."""
    encoder_layers: Layers | None = None
    """Encoder layers of an encoder-decoder (`layers` is then not used)."""
    decoder_layers: Layers | None = None
    """Decoder layers of an encoder-decoder."""
    key_value_heads: Width | None = None
    """Heads of keys and values, if fewer than `heads`; they divide `heads`."""
    head_dim: Width | None = None
    """Width of a head where it is not `width / heads`."""
    windows: tuple[PositiveInt | None, ...] = ()
    """Of self-attention, layer by layer, in turn: how many of the nearest positions one sees,
    itself among them, or None for all. (4096,) as in Mistral, (4096, None) as in Gemma 2; none by
    default."""
    norm: NormKind = "layernorm"
    """Kind of every norm."""
    norm_eps: PositiveFloat = 1e-5
    """Its epsilon (1e-5 as in the authors' code)."""
    bias: bool = True
    """Whether linear layers and layer norms have biases."""
    unbiased: tuple[Biased, ...] = ()
    """Projections that have none all the same; BEiT's keys have none."""
    dropout: Free[Dropout] = 0.0
    """Of embeddings and of each branch before it joins the residual stream."""
    embedding_dropout: Free[Dropout | None] = None
    """Of embeddings where it is not `dropout`."""
    attention_dropout: Free[Dropout] = 0.0
    """Of attention probabilities."""
    activation_dropout: Free[Dropout] = 0.0
    """Of the feed-forward network's inner layer."""
    layer_scale: float | None = None
    """LayerScale (arXiv 2103.17239): the initial value of a learned factor per channel on each
    branch; None for none."""
    drop_path: Free[Dropout] = 0.0
    """Chance that a sample skips a branch, growing linearly from 0 to this in depth."""
    positions: Positions = "none"
    """How order is told: "learned" and "sinusoidal" are added to the embeddings, "rotary" turns
    queries and keys, "t5" adds a learned bias per head and distance, "transformer_xl" products of
    queries with projected sinusoids of the distance, "alibi" a fixed bias that falls with the
    distance."""
    max_length: Width = 512
    """Longest input of learned positions."""
    rotary_base: PositiveFloat = 10000.0
    """Base of rotary wavelengths (arXiv 2104.09864)."""
    grid_positions: GridPositions = "none"
    """How places on a grid are told in attention, beside added `positions`: BEiT's "relative_bias",
    a table per layer; "shared_relative_bias", one for all layers; "rotary", by row and column, as
    in EVA-02. Of images' encoders."""
    reference_grid: Width | None = None
    """Rows and columns of the grid that rotary positions of a grid are stretched to: that of
    pre-training. By default they are not stretched."""
    input_norm: Literal["none", "layernorm", "rmsnorm"] = "none"
    """Norm of the embeddings after positions are added (BERT and BART have one)."""
    init: Free[BaseInit] = "xavier_normal"
    """Base initialisation, before the placement's gain."""
    parametrization: Free[Literal["standard", "mup"]] = "standard"
    """"mup" is the maximal update parametrisation (arXiv 2203.03466): initial values and learning
    rates by width, so that the best rate of a narrow model is that of a wide one. Heads must keep
    their width."""
    base_width: Free[Width | None] = None
    """Width at which "mup" is the standard parametrisation; that of the model whose rate is
    known."""
    checkpoint_activations: Free[bool] = False
    """Recompute each layer in the backward pass instead of storing it."""

    @rule
    def _stacks_are_two(self) -> Iterator[str]:
        if (self.encoder_layers is None) != (self.decoder_layers is None):
            yield "encoder_layers and decoder_layers go together: give both or neither"

    @rule
    def _heads_divide(self) -> Iterator[str]:
        row = find_placement(self.placement)
        if self.head_dim is None and self.width % self.heads:
            yield f"heads ({self.heads}) must divide width ({self.width})"
        elif row.head_scale == "after_out" and self.width % self.heads:
            yield (f"placement {row.name!r} scales heads after the output projection: heads "
                   f"({self.heads}) must divide width ({self.width})")  # fmt: skip

    @rule
    def _key_value_heads_divide(self) -> Iterator[str]:
        if self.heads % (self.key_value_heads or self.heads):
            yield f"key_value_heads ({self.key_value_heads}) must divide heads ({self.heads})"

    @rule
    def _heads_can_turn(self) -> Iterator[str]:
        if self.positions == "rotary" and self.head_width % 2:
            yield f"positions: rotary ones need an even head width, not {self.head_width}"
        if self.grid_positions == "rotary" and self.head_width % 4:
            yield ("grid_positions: rotary ones need a head width that 4 divides, "
                   f"not {self.head_width}")  # fmt: skip

    @rule
    def _grid_has_places(self) -> Iterator[str]:
        if self.grid_positions != "none" and self.grid is None:
            yield f"grid_positions {self.grid_positions!r}: only images have a grid"
        if self.grid_positions != "none" and self.positions not in ADDED_POSITIONS:
            added = ", ".join(ADDED_POSITIONS)
            yield f"positions is one of {added} beside grid_positions; not {self.positions!r}"

    @rule
    def _mup_has_a_base(self) -> Iterator[str]:
        if self.parametrization == "standard":
            return
        if self.base_width is None:
            yield "base_width: 'mup' needs the width at which it is the standard parametrization"
        elif any(size * self.base_width % self.width for size in self._sizes_of_width().values()):
            sizes = ", ".join(f"{name} {size}" for name, size in self._sizes_of_width().items())
            yield (f"base_width ({self.base_width}) / width ({self.width}) must divide the other "
                   f"sizes into whole numbers: {sizes}")  # fmt: skip
        if getattr(self, "tie_embeddings", False):
            yield ("tie_embeddings: 'mup' scales the output matrix and the embedding differently; "
                   "give false")  # fmt: skip

    def _sizes_of_width(self) -> dict[str, int]:
        """Return the sizes that grow with the width, so that heads keep theirs."""
        sizes = {"heads": self.heads, "ffn_width": self.ffn_width}
        return sizes if self.key_value_heads is None else {
            **sizes, "key_value_heads": self.key_value_heads,
        }  # fmt: skip

    def at_width(self, width: int) -> Self:
        """Return the configuration at another width, with heads as wide as here.

        Raises:
            ValueError: If another size would not be a whole number.
        """
        sizes = {name: size * width / self.width for name, size in self._sizes_of_width().items()}
        if broken := {name: size for name, size in sizes.items() if size % 1}:
            said = ", ".join(f"{name} would be {size:g}" for name, size in broken.items())
            raise ValueError(f"width {width} does not go with the other sizes: {said}")
        return replace(self, width=width, **{name: int(size) for name, size in sizes.items()})

    def at_base_width(self) -> Self:
        """Return the configuration at its base width, where the parametrisation is standard."""
        there = self.at_width(self.base_width or self.width)
        return replace(there, parametrization="standard", base_width=None)

    @property
    def input_dropout(self) -> float:
        """Dropout of embeddings."""
        return self.dropout if self.embedding_dropout is None else self.embedding_dropout

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.head_dim or self.width // self.heads

    @property
    def attention_width(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_width

    @property
    def key_value_width(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return (self.key_value_heads or self.heads) * self.head_width

    def window(self, layer: int) -> int | None:
        """Return how many positions a layer's self-attention sees, counted from 0; None: all."""
        return self.windows[layer % len(self.windows)] if self.windows else None

    def biased(self, projection: Biased) -> bool:
        """Whether a projection has a bias."""
        return self.bias and projection not in self.unbiased

    @property
    def grid(self) -> Grid | None:
        """How the input lies in two dimensions, as images' configurations say; None: a sequence."""
        return None

    @property
    def row(self) -> Placement:
        """The row of the placement table."""
        return find_placement(self.placement)

    def at(self, layer: int) -> Self:
        """Return the configuration of one layer, counted from 0: its placement is the layer's."""
        row = self.row.at(layer)
        return self if row is self.row else replace(self, placement=row)

    def depth(self, stack: Stack) -> Depth:
        """Return the depth of one stack, with that of its partner if there is one."""
        if self.encoder_layers is None or self.decoder_layers is None:
            return Depth(stack, self.layers)
        sizes = {"encoder": self.encoder_layers, "decoder": self.decoder_layers}
        other = "decoder" if stack == "encoder" else "encoder"
        return Depth(stack, sizes[stack], sizes[other])


@configuration
class MultiwayConfig(TransformerConfig):
    """An encoder with experts for vision and for language (BEiT-3, arXiv 2208.10442)."""

    experts: Experts = "decoupled"
    """"decoupled", as in the authors' code: every module has one set of weights for each modality.
    "shared_attention", as in the paper: only feed-forward networks, with their norms, have."""
    vision_language_layers: NonNegativeInt = 0
    """Top layers with a third feed-forward network, which reads the tokens of pairs; of
    "shared_attention" (3 in BEiT-3)."""

    @rule
    def _top_layers_are_of_pairs(self) -> Iterator[str]:
        top = self.vision_language_layers
        if top > self.layers:
            yield f"vision_language_layers must be 0 to layers ({self.layers}), not {top}"
        if top and self.experts == "decoupled":
            yield "vision_language_layers: only experts 'shared_attention' have them"

    @rule
    def _encoder_is_plain(self) -> Iterator[str]:
        if self.positions != "none" or self.grid_positions != "none":
            yield ("positions: a multiway encoder has none of its own, each modality's embedding "
                   "adds them")  # fmt: skip
        if self.windows:
            yield "windows: a multiway encoder has none, its tokens stand in two dimensions"
        if self.encoder_layers is not None:
            yield "encoder_layers: a multiway encoder has layers"
