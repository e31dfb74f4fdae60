"""The stacks: encoder, decoder, encoder-decoder. They take embeddings and give features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from magneto.nn.cache import self_attention_cache
from magneto.nn.config import TransformerConfig
from magneto.nn.grid_position import build_grid_positions
from magneto.nn.init import initialize
from magneto.nn.layer import CrossLayer, Layer
from magneto.nn.mask import Mask, build_mask, build_memory_mask, position_index
from magneto.nn.norm import Nothing, build_norm, optional_norm
from magneto.nn.position import build_positions
from magneto.nn.stack import ProbedStack
from magneto.theory.depth import Stack


class LayerStack(ProbedStack):
    """What encoder and decoder share: the way in, the layers, the norm on top."""

    def __init__(self, config: TransformerConfig, stack: Stack, layer: type[nn.Module]) -> None:
        super().__init__()
        depth = config.depth(stack)
        self.config = config
        self.causal = stack == "decoder"
        self.position_embedding = build_positions(config, bidirectional=not self.causal)
        self.grid_positions = build_grid_positions(config, bidirectional=not self.causal)
        self.input_norm = (
            Nothing()
            if config.input_norm == "none"
            else build_norm(config.input_norm, config.width, config)
        )
        self.dropout = nn.Dropout(config.input_dropout)
        self.layers = nn.ModuleList(layer(config, depth, index) for index in range(depth.layers))
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
        shared = self.grid_positions(x, shared)
        x = self.dropout(self.input_norm(x))
        if self.config.residual_dtype != "input":
            x = x.to(getattr(torch, self.config.residual_dtype))
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
        super().__init__(config, "encoder", Layer)

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


def check_layers(layers: Sequence[int], count: int) -> None:
    """Raise ValueError if one of these numbers is not of `count` layers."""
    outside = [number for number in layers if not 0 <= number < count]
    if outside:
        raise ValueError(f"no layer {outside[0]}: there are 0 to {count - 1}")


class Decoder(LayerStack):
    """A causal stack. With `encoder_layers` in its configuration it also attends to a memory."""

    def __init__(self, config: TransformerConfig) -> None:
        self.crosses = not config.depth("decoder").alone
        super().__init__(config, "decoder", CrossLayer if self.crosses else Layer)

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
