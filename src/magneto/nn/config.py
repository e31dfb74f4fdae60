"""The one configuration of every stack. No torch here: a recipe is checked in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

from magneto.config import ConfigError
from magneto.theory.depth import Depth, Stack
from magneto.theory.placement import Placement, find_placement

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "swiglu"]
NormKind = Literal["layernorm", "rmsnorm"]
Positions = Literal["none", "learned", "sinusoidal", "rotary", "t5"]
BaseInit = Literal["xavier_normal", "xavier_uniform", "normal", "truncated_normal"]


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


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Shape of an encoder, a decoder or an encoder-decoder.

    Attributes:
        width: Width of the residual stream (the paper's hidden size d).
        layers: Layers of an encoder-only or decoder-only model.
        heads: Attention heads; they divide `width`.
        ffn_width: Inner width of the feed-forward network.
        placement: Name of a row of `magneto.theory.placement`, or a row of your own.
        activation: Of the feed-forward network; "swiglu" gates it.
        encoder_layers: Encoder layers of an encoder-decoder (`layers` is then not used).
        decoder_layers: Decoder layers of an encoder-decoder.
        key_value_heads: Heads of keys and values, if fewer than `heads`; they divide `heads`.
        norm: Kind of every norm.
        norm_eps: Its epsilon (1e-5 as in the authors' code).
        bias: Whether linear layers and layer norms have biases.
        dropout: Of embeddings and of each branch before it joins the residual stream.
        attention_dropout: Of attention probabilities.
        activation_dropout: Of the feed-forward network's inner layer.
        drop_path: Chance that a sample skips a branch, growing linearly from 0 to this in depth.
        positions: How order is told: "learned" and "sinusoidal" are added to the embeddings,
            "rotary" turns queries and keys, "t5" adds a learned bias per head and distance.
        max_length: Longest input of learned positions.
        rotary_base: Base of rotary wavelengths (arXiv 2104.09864).
        input_norm: Norm of the embeddings after positions are added (BERT and BART have one).
        init: Base initialisation, before the placement's gain.
        residual_dtype: Storage of the residual stream: as the input, or forced.
        checkpoint_activations: Recompute each layer in the backward pass instead of storing it.

    Raises:
        ValueError: For values that fit together in no model; all of them in one message.
    """

    width: int = 768
    layers: int = 12
    heads: int = 12
    ffn_width: int = 3072
    placement: str | Placement = "sub"
    activation: Activation = "gelu"
    encoder_layers: int | None = None
    decoder_layers: int | None = None
    key_value_heads: int | None = None
    norm: NormKind = "layernorm"
    norm_eps: float = 1e-5
    bias: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    drop_path: float = 0.0
    positions: Positions = "none"
    max_length: int = 512
    rotary_base: float = 10000.0
    input_norm: Literal["none", "layernorm", "rmsnorm"] = "none"
    init: BaseInit = "xavier_normal"
    residual_dtype: Literal["input", "float32", "bfloat16"] = "input"
    checkpoint_activations: bool = False

    def __post_init__(self) -> None:
        wrong = [*self._wrong_sizes(), *self._wrong_rates()]
        if self.positions == "rotary" and self.heads > 0 and self.head_width % 2:
            wrong.append(f"rotary positions need an even head width, not {self.head_width}")
        try:
            find_placement(self.placement)
        except ValueError as error:
            wrong.append(str(error))
        if wrong:
            raise ConfigError(wrong)

    def _wrong_sizes(self) -> list[str]:
        sizes = ("width", "layers", "heads", "ffn_width", "max_length")
        stacks = ("encoder_layers", "decoder_layers", "key_value_heads")
        given = [name for name in stacks if getattr(self, name) is not None]
        wrong = [
            f"{name} must be 1 or more, not {getattr(self, name)}"
            for name in (*sizes, *given)
            if getattr(self, name) < 1
        ]
        if wrong:
            return wrong
        if (self.encoder_layers is None) != (self.decoder_layers is None):
            wrong.append("encoder_layers and decoder_layers go together: give both or neither")
        if self.width % self.heads:
            wrong.append(f"heads ({self.heads}) must divide width ({self.width})")
        if self.heads % (self.key_value_heads or self.heads):
            wrong.append(
                f"key_value_heads ({self.key_value_heads}) must divide heads ({self.heads})"
            )
        return wrong

    def _wrong_rates(self) -> list[str]:
        rates = ("dropout", "attention_dropout", "activation_dropout", "drop_path")
        return [
            f"{name} must be at least 0 and below 1, not {getattr(self, name)}"
            for name in rates
            if not 0 <= getattr(self, name) < 1
        ]

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    @property
    def key_value_width(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return (self.key_value_heads or self.heads) * self.head_width

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
