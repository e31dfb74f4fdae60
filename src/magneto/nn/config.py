"""The one configuration of every stack. No torch here: a recipe is checked in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from magneto.config import ConfigError
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
# Sizes beyond these are slips of the keyboard: of layers, of what a search keeps, and of widths, of
# which one matrix of the widest needs a petabyte.
MOST = {
    "layers": 100_000, "encoder_layers": 100_000, "decoder_layers": 100_000,
    "beams": 1_000, "count": 10_000,
}  # fmt: skip
MOST_WIDTH = 1 << 24


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
        activation: Of the feed-forward network. "relu2" is the square of ReLU; "swiglu" and the
            others with "glu" gate it: half of the inner layer, activated, times the other half.
        encoder_layers: Encoder layers of an encoder-decoder (`layers` is then not used).
        decoder_layers: Decoder layers of an encoder-decoder.
        key_value_heads: Heads of keys and values, if fewer than `heads`; they divide `heads`.
        head_dim: Width of a head where it is not `width / heads`.
        windows: Of self-attention, layer by layer, in turn: how many of the nearest positions one
            sees, itself among them, or None for all. (4096,) as in Mistral, (4096, None) as in
            Gemma 2; none by default.
        norm: Kind of every norm.
        norm_eps: Its epsilon (1e-5 as in the authors' code).
        bias: Whether linear layers and layer norms have biases.
        unbiased: Projections that have none all the same; BEiT's keys have none.
        dropout: Of embeddings and of each branch before it joins the residual stream.
        embedding_dropout: Of embeddings where it is not `dropout`.
        attention_dropout: Of attention probabilities.
        activation_dropout: Of the feed-forward network's inner layer.
        layer_scale: LayerScale (arXiv 2103.17239): the initial value of a learned factor per
            channel on each branch; None for none.
        drop_path: Chance that a sample skips a branch, growing linearly from 0 to this in depth.
        positions: How order is told: "learned" and "sinusoidal" are added to the embeddings,
            "rotary" turns queries and keys, "t5" adds a learned bias per head and distance,
            "transformer_xl" products of queries with projected sinusoids of the distance, "alibi"
            a fixed bias that falls with the distance.
        max_length: Longest input of learned positions.
        rotary_base: Base of rotary wavelengths (arXiv 2104.09864).
        grid_positions: How places on a grid are told in attention, beside added `positions`:
            BEiT's "relative_bias", a table per layer; "shared_relative_bias", one for all layers;
            "rotary", by row and column, as in EVA-02. Of images' encoders.
        reference_grid: Rows and columns of the grid that rotary positions of a grid are stretched
            to: that of pre-training. By default they are not stretched.
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
    head_dim: int | None = None
    windows: tuple[int | None, ...] = ()
    norm: NormKind = "layernorm"
    norm_eps: float = 1e-5
    bias: bool = True
    unbiased: tuple[Biased, ...] = ()
    dropout: float = 0.0
    embedding_dropout: float | None = None
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    layer_scale: float | None = None
    drop_path: float = 0.0
    positions: Positions = "none"
    max_length: int = 512
    rotary_base: float = 10000.0
    grid_positions: GridPositions = "none"
    reference_grid: int | None = None
    input_norm: Literal["none", "layernorm", "rmsnorm"] = "none"
    init: BaseInit = "xavier_normal"
    residual_dtype: Literal["input", "float32", "bfloat16"] = "input"
    checkpoint_activations: bool = False

    def __post_init__(self) -> None:
        for name in ("unbiased", "windows"):  # JSON gives lists
            object.__setattr__(self, name, tuple(getattr(self, name)))
        sizes = self._wrong_sizes()
        wrong = [*sizes, *self._wrong_rates(), *self._wrong_biases()]
        if not sizes:
            wrong += self._wrong_positions()
        try:
            row = find_placement(self.placement)
            if row.head_scale == "after_out" and not sizes and self.width % self.heads:
                wrong.append(f"{row.name!r} scales heads after the output projection: heads "
                             f"({self.heads}) must divide width ({self.width})")  # fmt: skip
        except ValueError as error:
            wrong.append(str(error))
        if wrong:
            raise ConfigError(wrong)

    def _wrong_sizes(self) -> list[str]:
        sizes = ("width", "layers", "heads", "ffn_width", "max_length")
        maybe = ("encoder_layers", "decoder_layers", "key_value_heads", "head_dim",
                 "reference_grid")  # fmt: skip
        given = [name for name in maybe if getattr(self, name) is not None]
        wrong = wrong_sizes({name: getattr(self, name) for name in (*sizes, *given)})
        wrong += [f"windows must be 1 or more, not {window}" for window in self.windows
                  if window is not None and window < 1]  # fmt: skip
        if wrong:
            return wrong
        if (self.encoder_layers is None) != (self.decoder_layers is None):
            wrong.append("encoder_layers and decoder_layers go together: give both or neither")
        if self.head_dim is None and self.width % self.heads:
            wrong.append(f"heads ({self.heads}) must divide width ({self.width})")
        if self.heads % (self.key_value_heads or self.heads):
            wrong.append(
                f"key_value_heads ({self.key_value_heads}) must divide heads ({self.heads})"
            )
        return wrong

    def _wrong_positions(self) -> list[str]:
        wrong = []
        if self.positions == "rotary" and self.head_width % 2:
            wrong.append(f"rotary positions need an even head width, not {self.head_width}")
        if self.grid_positions == "none":
            return wrong
        if self.grid is None:
            wrong.append(f"grid_positions {self.grid_positions!r}: only images have a grid")
        if self.positions not in ADDED_POSITIONS:
            added = ", ".join(ADDED_POSITIONS)
            wrong.append(f"beside grid_positions, positions is {added}; not {self.positions!r}")
        if self.grid_positions == "rotary" and self.head_width % 4:
            wrong.append(f"rotary positions of a grid need a head width that 4 divides, "
                         f"not {self.head_width}")  # fmt: skip
        return wrong

    def _wrong_biases(self) -> list[str]:
        known = get_args(Biased)
        return [
            f"unbiased: there is no projection {name!r}, only {', '.join(known)}"
            for name in self.unbiased
            if name not in known
        ]

    def _wrong_rates(self) -> list[str]:
        rates = ("dropout", "embedding_dropout", "attention_dropout", "activation_dropout",
                 "drop_path")  # fmt: skip
        return [
            f"{name} must be at least 0 and below 1, not {getattr(self, name)}"
            for name in rates
            if not 0 <= (getattr(self, name) or 0) < 1
        ]

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


@dataclass(frozen=True, kw_only=True)
class MultiwayConfig(TransformerConfig):
    """An encoder with experts for vision and for language (BEiT-3, arXiv 2208.10442).

    Attributes:
        experts: "decoupled", as in the authors' code: every module has one set of weights for each
            modality. "shared_attention", as in the paper: only feed-forward networks, with their
            norms, have.
        vision_language_layers: Top layers with a third feed-forward network, which reads the tokens
            of pairs; of "shared_attention" (3 in BEiT-3).

    Raises:
        ValueError: For values that fit together in no model. `positions` is "none": what embeds a
            modality adds its positions.
    """

    experts: Experts = "decoupled"
    vision_language_layers: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong, top = [], self.vision_language_layers
        if self.experts not in get_args(Experts):
            wrong.append(f"experts must be one of {', '.join(get_args(Experts))}, "
                         f"not {self.experts!r}")  # fmt: skip
        if not 0 <= top <= self.layers:
            wrong.append(f"vision_language_layers must be 0 to layers ({self.layers}), not {top}")
        if top and self.experts == "decoupled":
            wrong.append("vision_language_layers: only experts 'shared_attention' have them")
        if self.positions != "none" or self.grid_positions != "none":
            wrong.append("a multiway encoder has no positions of its own: "
                         "each modality's embedding adds them")  # fmt: skip
        if self.windows:
            wrong.append("a multiway encoder has no windows: its tokens stand in two dimensions")
        if self.encoder_layers is not None:
            wrong.append("a multiway encoder has layers, not encoder_layers and decoder_layers")
        if wrong:
            raise ConfigError(wrong)


def wrong_sizes(sizes: Mapping[str, int]) -> list[str]:
    """Return a line for each size, by its name, that no model or search has."""
    lines = []
    for name, size in sizes.items():
        most = MOST.get(name, MOST_WIDTH)
        if size < 1:
            lines.append(f"{name} must be 1 or more, not {size}")
        elif size > most:
            square = f" (one matrix of such queries needs {4 * size**2 / 1e12:,.0f} TB)"
            memory = square if name == "width" else ""
            lines.append(f"{name} must be at most {most:,}, not {size:,}{memory}")
    return lines
