"""Configuration of the Transformer stacks.

This module does not import torch, so commands can check configurations quickly.
"""

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
# Larger sizes are typing errors: one matrix of the largest width needs a petabyte.
Width = Annotated[int, Interval(ge=1, le=1 << 24)]
Layers = Annotated[int, Interval(ge=1, le=100_000)]
Beams = Annotated[int, Interval(ge=1, le=1_000)]
"""Number of hypotheses of a beam search."""
BEAMS = 5
"""Default number of beams, as for translation in the paper and in fairseq."""


@dataclass(frozen=True)
class Grid:
    """Layout of a two-dimensional sequence. Prefix vectors come first, then the grid row by row.

    Attributes:
        rows: Height of the grid, in patches for an image.
        columns: Width of the grid, in patches for an image.
        prefix: Number of vectors before the grid, such as 1 for a class token.
    """

    rows: int
    columns: int
    prefix: int = 0

    @property
    def length(self) -> int:
        return self.prefix + self.rows * self.columns


@configuration
class TransformerConfig:
    """Shape of an encoder, a decoder or an encoder-decoder."""

    width: Width = 768
    """Width of the residual stream (the paper's hidden size d)."""
    layers: Layers = 12
    """Number of layers of an encoder-only or decoder-only model."""
    heads: Width = 12
    """Number of attention heads, which must divide `width`."""
    ffn_width: Width = 3072
    """Inner width of the feed-forward network."""
    placement: str | Placement = "sub"
    """Norm placement: a name in the table of `magneto.theory.placement`, or `module:NAME` of
    your own `Placement`."""
    activation: Activation = "gelu"
    """Activation of the feed-forward network. "relu2" is the square of ReLU. Names with "glu"
    are gated units: an activated gate multiplies a second linear map of the input."""
    encoder_layers: Layers | None = None
    """Number of encoder layers of an encoder-decoder (default: null, a single stack). An
    encoder-decoder ignores `layers`."""
    decoder_layers: Layers | None = None
    """Number of decoder layers of an encoder-decoder (default: null, a single stack)."""
    key_value_heads: Width | None = None
    """Number of key/value heads in grouped-query attention, which must divide `heads` (default:
    null, as many as `heads`)."""
    head_dim: Width | None = None
    """Width of a head (default: null, `width / heads`)."""
    windows: tuple[PositiveInt | None, ...] = ()
    """Sliding window of each layer's self-attention, from the bottom layer up (default: no
    windows). If the model has more layers than the list has windows, the list is repeated. In a
    decoder, a window is the number of positions that a position attends to, itself included. In an
    encoder, a window of w also covers the next w - 1 positions. null means all positions. Mistral
    has (4096,), and Gemma 2 has (4096, null)."""
    norm: NormKind = "layernorm"
    """Kind of norm in the layers and on top of the stack."""
    norm_eps: PositiveFloat = 1e-5
    """Epsilon of the norms (1e-5 in the authors' code)."""
    bias: bool = True
    """Use biases in linear layers and layer norms."""
    unbiased: tuple[Biased, ...] = ()
    """Projections that have no bias even if `bias` is true. BEiT's keys have no bias."""
    dropout: Free[Dropout] = 0.0
    """Dropout rate of embeddings and of the output of each branch."""
    embedding_dropout: Free[Dropout | None] = None
    """Dropout rate of embeddings (default: null, the rate of `dropout`)."""
    attention_dropout: Free[Dropout] = 0.0
    """Dropout rate of attention probabilities."""
    activation_dropout: Free[Dropout] = 0.0
    """Dropout rate of the feed-forward network's inner layer."""
    layer_scale: float | None = None
    """Initial value of LayerScale (arXiv 2103.17239), a learned factor for each channel of each
    branch (default: null, off)."""
    drop_path: Free[Dropout] = 0.0
    """Stochastic depth: probability that a branch of the top layer is dropped. From the bottom
    layer to the top layer, the probability grows linearly from 0."""
    positions: Positions = "none"
    """Position encoding. "learned" and "sinusoidal" are added to the embeddings. "rotary"
    rotates queries and keys. "t5" adds a learned bias to attention's logits, per head and
    distance. "alibi" adds a fixed bias that decreases with distance. "transformer_xl" adds
    products of queries with projected sinusoids of the distance."""
    max_length: Width = 512
    """Largest input length. Only learned positions have this limit."""
    rotary_base: PositiveFloat = 10000.0
    """Base of rotary wavelengths (arXiv 2104.09864)."""
    grid_positions: GridPositions = "none"
    """Position encoding on an image's grid, in addition to `positions`. "relative_bias" is
    BEiT's relative bias with a table per layer. "shared_relative_bias" is BEiT's relative bias
    with one table for all layers. "rotary" rotates queries and keys by row and column, as in
    EVA-02."""
    reference_grid: Width | None = None
    """For images: number of patches along each side of the pre-training grid. Rotary positions of
    another grid are rescaled to the pre-training grid (default: null, not rescaled)."""
    input_norm: Literal["none", "layernorm", "rmsnorm"] = "none"
    """Norm after embeddings and positions, as in BERT and BART."""
    init: Free[BaseInit] = "xavier_normal"
    """Distribution of initial weights, before the gain of the norm placement."""
    parametrization: Free[Literal["standard", "mup"]] = "standard"
    """"mup" is the maximal update parametrisation (arXiv 2203.03466), which scales initial
    weights and learning rates by width. With "mup", the best learning rate of a narrow model
    should fit a wide model with the same head width."""
    base_width: Free[Width | None] = None
    """Width of the model whose learning rate was tuned (default: null). If `width` equals
    `base_width`, "mup" changes nothing. A recipe with "mup" must set `base_width`."""
    checkpoint_activations: Free[bool] = False
    """Activation checkpointing. To save memory, the backward pass recomputes each layer."""

    @rule
    def _stacks_are_two(self) -> Iterator[str]:
        if (self.encoder_layers is None) != (self.decoder_layers is None):
            yield "encoder_layers and decoder_layers belong together: set both or neither"

    @rule
    def _heads_divide(self) -> Iterator[str]:
        row = find_placement(self.placement)
        if self.head_dim is None and self.width % self.heads:
            yield f"heads ({self.heads}) must divide width ({self.width})"
        elif row.head_scale == "after_out" and self.width % self.heads:
            yield (f"heads ({self.heads}) must divide width ({self.width}), because placement "
                   f"{row.name!r} scales heads after the output projection")  # fmt: skip

    @rule
    def _key_value_heads_divide(self) -> Iterator[str]:
        if self.heads % (self.key_value_heads or self.heads):
            yield f"key_value_heads ({self.key_value_heads}) must divide heads ({self.heads})"

    @rule
    def _heads_can_turn(self) -> Iterator[str]:
        if self.positions == "rotary" and self.head_width % 2:
            yield f"positions 'rotary' needs an even head width, not {self.head_width}"
        if self.grid_positions == "rotary" and self.head_width % 4:
            yield ("grid_positions 'rotary' needs a head width divisible by 4, "
                   f"not {self.head_width}")  # fmt: skip

    @rule
    def _grid_has_places(self) -> Iterator[str]:
        if self.grid_positions != "none" and self.grid is None:
            yield (f"grid_positions must be 'none', not {self.grid_positions!r}: "
                   "only images have a grid")  # fmt: skip
        if self.grid_positions != "none" and self.positions not in ADDED_POSITIONS:
            added = ", ".join(ADDED_POSITIONS)
            yield f"with grid_positions, positions must be one of {added}, not {self.positions!r}"

    @rule
    def _mup_has_a_base(self) -> Iterator[str]:
        if self.parametrization == "standard":
            return
        if self.base_width is None:
            yield ("base_width is missing: parametrization 'mup' needs the width of the model "
                   "whose learning rate was tuned")  # fmt: skip
        elif any(size * self.base_width % self.width for size in self._sizes_of_width().values()):
            sizes = ", ".join(f"{name} {size}" for name, size in self._sizes_of_width().items())
            yield (f"base_width ({self.base_width}) does not fit width ({self.width}): these "
                   f"sizes, times {self.base_width}/{self.width}, must be whole numbers: "
                   f"{sizes}")  # fmt: skip
        if getattr(self, "tie_embeddings", False):
            yield ("tie_embeddings must be false: 'mup' scales the output matrix and the embedding "
                   "differently")  # fmt: skip

    def _sizes_of_width(self) -> dict[str, int]:
        sizes = {"heads": self.heads, "ffn_width": self.ffn_width}
        return sizes if self.key_value_heads is None else {
            **sizes, "key_value_heads": self.key_value_heads,
        }  # fmt: skip

    def at_width(self, width: int) -> Self:
        """Return a copy of the configuration with another width, but the same head width.

        Raises:
            ValueError: If a size that grows with the width would not be a whole number.
        """
        sizes = {name: size * width / self.width for name, size in self._sizes_of_width().items()}
        if broken := {name: size for name, size in sizes.items() if size % 1}:
            sizes = ", ".join(f"{name} would be {size:g}" for name, size in broken.items())
            raise ValueError(f"width {width} does not fit the other sizes: {sizes}")
        return replace(self, width=width, **{name: int(size) for name, size in sizes.items()})

    def at_base_width(self) -> Self:
        """Return the configuration at its base width, with the standard parametrisation."""
        base = self.at_width(self.base_width or self.width)
        return replace(base, parametrization="standard", base_width=None)

    @property
    def input_dropout(self) -> float:
        return self.dropout if self.embedding_dropout is None else self.embedding_dropout

    @property
    def head_width(self) -> int:
        return self.head_dim or self.width // self.heads

    @property
    def attention_width(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_width

    @property
    def key_value_width(self) -> int:
        """Total width of the key heads, which is also the total width of the value heads."""
        return (self.key_value_heads or self.heads) * self.head_width

    def window(self, layer: int) -> int | None:
        """Return the window of a layer's self-attention, or None for all positions."""
        return self.windows[layer % len(self.windows)] if self.windows else None

    def biased(self, projection: Biased) -> bool:
        return self.bias and projection not in self.unbiased

    @property
    def grid(self) -> Grid | None:
        """Grid of the input's patches, or None. Image models override this value."""
        return None

    @property
    def row(self) -> Placement:
        """The `Placement` that the field `placement` names."""
        return find_placement(self.placement)

    def at(self, layer: int) -> Self:
        """Return the configuration of one layer, with that layer's placement."""
        row = self.row.at(layer)
        return self if row is self.row else replace(self, placement=row)

    def depth(self, stack: Stack) -> Depth:
        """Return the depth of a stack, and of the other stack in an encoder-decoder."""
        if self.encoder_layers is None or self.decoder_layers is None:
            return Depth(stack, self.layers)
        sizes = {"encoder": self.encoder_layers, "decoder": self.decoder_layers}
        other = "decoder" if stack == "encoder" else "encoder"
        return Depth(stack, sizes[stack], sizes[other])


@configuration
class MultiwayConfig(TransformerConfig):
    """Encoder with vision and language experts (BEiT-3, arXiv 2208.10442)."""

    experts: Experts = "decoupled"
    """"decoupled" has separate weights for vision and language in every module, as in the
    authors' code. "shared_attention" separates only feed-forward networks and their norms, as
    in the paper."""
    vision_language_layers: NonNegativeInt = 0
    """Number of top layers with a third feed-forward network, for tokens of image-text pairs
    (default: 0). BEiT-3 has 3 such layers. A value above 0 needs `experts` to be
    "shared_attention"."""

    @rule
    def _top_layers_are_of_pairs(self) -> Iterator[str]:
        top = self.vision_language_layers
        if top > self.layers:
            yield (f"vision_language_layers must be at most the number of layers ({self.layers}), "
                       f"not {top}")  # fmt: skip
        if top and self.experts == "decoupled":
            yield "if vision_language_layers is above 0, experts must be 'shared_attention'"

    @rule
    def _encoder_is_plain(self) -> Iterator[str]:
        if self.positions != "none" or self.grid_positions != "none":
            yield ("positions and grid_positions must be 'none' in a multiway encoder, because its "
                   "embeddings already add positions")  # fmt: skip
        if self.windows:
            yield "windows must be empty in a multiway encoder: sliding windows are not for images"
        if self.encoder_layers is not None:
            yield "encoder_layers must be null in a multiway encoder: set layers instead"
