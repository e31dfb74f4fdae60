"""The stacks: encoder, decoder, encoder-decoder. They take embeddings and give features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from magneto.nn.attention import (
    Mask,
    build_mask,
    build_memory_mask,
    position_index,
    recorded_weights,
    self_attention_cache,
)
from magneto.nn.block import Layer
from magneto.nn.config import TransformerConfig
from magneto.nn.init import Nothing, build_norm, initialize, optional_norm
from magneto.nn.position import build_grid_positions, build_positions
from magneto.theory.placement import Stack


class ProbedStack(nn.Module, ABC):
    """What every stack has, whatever its layers take and give: what the probe asks of one.

    Attributes:
        config: Its shape.
        causal: Whether a position sees only itself and those before it.
        layers: From the bottom up.
        final_norm: On top of them; of a stack with streams, a dictionary of these.
    """

    config: TransformerConfig
    causal: bool
    layers: nn.ModuleList
    final_norm: Any

    @abstractmethod
    def tokens(self, output: Any) -> Tensor:
        """Return what a layer, or the stack, puts out as one tensor, (..., width)."""

    @abstractmethod
    def position_means(self, tokens: Tensor, inputs: tuple[Any, ...]) -> Tensor:
        """Return the mean over the positions that a position is to be told apart from.

        Args:
            tokens: What `tokens` gives of a layer's output.
            inputs: That layer's.

        Returns:
            A tensor that broadcasts against the tokens.
        """

    @abstractmethod
    def attention_samples(
        self, count: int, inputs: tuple[Any, ...]
    ) -> tuple[slice | Tensor, Tensor | None]:
        """Choose samples whose attention is looked at.

        Args:
            count: How many; of each kind of sample, where a batch has several kinds.
            inputs: A layer's.

        Returns:
            Their rows in attention's queries and keys; and which positions of these rows are no
            padding, (samples, length), where padding is to be left out.
        """


class LayerStack(ProbedStack):
    """What encoder and decoder share: the way in, the layers, the norm on top."""

    def __init__(self, config: TransformerConfig, stack: Stack) -> None:
        super().__init__()
        depth = config.depth(stack)
        self.config = config
        self.causal = stack == "decoder"
        self.crosses = self.causal and not depth.alone
        self.position_embedding = build_positions(config, bidirectional=not self.causal)
        self.grid_positions = build_grid_positions(config, bidirectional=not self.causal)
        self.input_norm = (
            Nothing()
            if config.input_norm == "none"
            else build_norm(config.input_norm, config.width, config)
        )
        self.dropout = nn.Dropout(config.input_dropout)
        self.layers = nn.ModuleList(
            Layer(config, depth, index, self.crosses) for index in range(depth.layers)
        )
        self.windows = [config.window(layer) for layer in range(depth.layers)]
        self.final_norm = optional_norm(config.row.final == "norm", config.width, config)
        initialize(self, config.row, depth, config.init)

    def run(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        cache: Any,
        *rest: Any,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Run the stack over embeddings x, (batch, length, width)."""
        x, masks, shared = self.enter(x, attention_mask, cache, positions)
        for layer, mask in zip(self.layers, masks, strict=True):
            x = self.step(layer, x, mask, shared, cache, *rest)
        return self.final_norm(x)

    def enter(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        cache: Any,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, list[Mask], Tensor | None]:
        """Return what the lowest layer reads, each layer's mask, and what they share of places."""
        held = self_attention_cache(cache)
        past = 0 if held is None else held.get_seq_length()
        masks = {
            window: build_mask(attention_mask, x, past, self.causal, window)
            for window in dict.fromkeys(self.windows)
        }
        if positions is None:
            positions = position_index(attention_mask, x, past, self.causal)
        x, shared = self.position_embedding(x, positions, past)
        if self.grid_positions is not None:
            shared = self.grid_positions(x)
        x = self.dropout(self.input_norm(x))
        return x, [masks[window] for window in self.windows], shared

    def step(self, layer: nn.Module, x: Tensor, *rest: Any) -> Tensor:
        """Run one layer; store nothing inside it, in training, where the configuration says so."""
        cache = rest[2]
        if self.config.checkpoint_activations and self.training and cache is None:
            return checkpoint(layer, x, *rest, use_reentrant=False)  # type: ignore[return-value]
        return layer(x, *rest)

    def tokens(self, output: Tensor) -> Tensor:
        """Return the output, (batch, length, width)."""
        return output

    def position_means(self, tokens: Tensor, inputs: tuple[Any, ...]) -> Tensor:
        """Return the mean over each sample's positions, (batch, 1, width); padding counts."""
        return tokens.mean(1, keepdim=True)

    def attention_samples(self, count: int, inputs: tuple[Any, ...]) -> tuple[slice, None]:
        """Choose the first samples of a batch, padding and all."""
        return slice(count), None


class Encoder(LayerStack):
    """A stack in which every position sees every other."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, "encoder")

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode embeddings.

        Args:
            x: (batch, length, width).
            attention_mask: Boolean, True = may attend: (batch, length) for padding, or
                (batch, length, length), for packed documents: positions count from the beginning of
                each. A row that may attend to nothing gets nothing.

        Returns:
            Features, (batch, length, width).
        """
        return self.run(x, attention_mask, None)

    def features(
        self, x: Tensor, layers: Sequence[int], attention_mask: Tensor | None = None
    ) -> list[Tensor]:
        """Return what chosen layers give, for a pyramid of features or for probing.

        No layer above the highest one chosen is run. The norm on top of the stack is not in it:
        `final_norm` of the last layer's features is what `forward` returns.

        Args:
            x: (batch, length, width).
            layers: Numbers of layers from 0 at the bottom, in any order.
            attention_mask: As in `forward`.

        Returns:
            The residual stream after each of these layers, in their order, (batch, length, width).

        Raises:
            ValueError: If there is no such layer.
        """
        check_layers(layers, len(self.layers))
        x, masks, shared = self.enter(x, attention_mask, None)
        found = {}
        for number in range(max(layers, default=-1) + 1):
            x = self.step(self.layers[number], x, masks[number], shared, None)
            if number in layers:
                found[number] = x
        return [found[number] for number in layers]

    def attention_weights(
        self, x: Tensor, layer: int, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return what share each query gives to each key in one layer's attention, for pictures.

        They are computed in fp32 and without dropout.

        Args:
            x: (batch, length, width).
            layer: Its number, from 0 at the bottom.
            attention_mask: As in `forward`.

        Returns:
            (batch, heads, length, length): queries by keys. Rows add up to 1; those that may attend
            to nothing are zeros.

        Raises:
            ValueError: If there is no such layer.
        """
        check_layers([layer], len(self.layers))
        return recorded_weights(
            self.layers[layer], lambda: self.features(x, [layer], attention_mask)
        )


def check_layers(layers: Sequence[int], count: int) -> None:
    """Raise ValueError if one of these numbers is not of `count` layers."""
    outside = [number for number in layers if not 0 <= number < count]
    if outside:
        raise ValueError(f"no layer {outside[0]}: there are 0 to {count - 1}")


class Decoder(LayerStack):
    """A causal stack. With `encoder_layers` in its configuration it also attends to a memory."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, "decoder")

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Any = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Decode embeddings.

        Args:
            x: (batch, length, width); with a cache, only what follows the cached positions.
            attention_mask: Boolean, True = may attend: (batch, cached + length) for padding, or
                (batch, length, cached + length), for packed documents: positions count from the
                beginning of each. Never looks ahead.
            memory: The encoder's features, (batch, source length, width).
            memory_mask: Boolean, (batch, source length).
            cache: A `KeyValueCache`, with a memory an `EncoderDecoderCache`; or Hugging Face's.
            positions: Of x's tokens, (batch or 1, length), where the mask does not tell them. Kinds
                that tell distances count places instead.

        Returns:
            Features, (batch, length, width).

        Raises:
            ValueError: If a memory is missing, or there is no cross-attention to use it.
        """
        if (memory is not None) != self.crosses:
            raise ValueError(
                "this decoder attends to an encoder: give memory"
                if self.crosses
                else "this decoder has no cross-attention: set encoder_layers and decoder_layers"
            )
        if memory is None:
            return self.run(x, attention_mask, cache, positions=positions)
        source = build_memory_mask(memory_mask)
        return self.run(x, attention_mask, cache, memory, source, positions=positions)


class EncoderDecoder(nn.Module):
    """An encoder, and a decoder that attends to it; needs `encoder_layers` and `decoder_layers`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if config.encoder_layers is None:
            raise ValueError("an encoder-decoder needs encoder_layers and decoder_layers")
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Encode source embeddings, decode target embeddings.

        Args:
            source: (batch, source length, width).
            target: (batch, target length, width).
            source_mask: Boolean, (batch, source length), True = real.
            target_mask: Boolean, (batch, target length).

        Returns:
            Features of the target, (batch, target length, width).
        """
        memory = self.encoder(source, source_mask)
        return self.decoder(target, target_mask, memory, source_mask)
