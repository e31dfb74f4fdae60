"""Encoder, decoder and encoder-decoder stacks, from embeddings to features."""

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
    check_mask,
    position_index,
    record_attention_weights,
    self_attention_cache,
)
from magneto.nn.block import Layer
from magneto.nn.config import TransformerConfig
from magneto.nn.init import build_norm, final_norm, initialize
from magneto.nn.position import build_grid_positions, build_positions
from magneto.theory.placement import Stack


class ProbedStack(nn.Module, ABC):
    """Base class of stacks, for layers with any types of inputs.

    The probe (`magneto.lab.probe`) reads inputs and outputs of layers through the abstract methods.

    Attributes:
        config: Shape of the stack.
        causal: True for causal attention: no position attends to a later position.
        layers: Layers from bottom to top.
        final_norm: Norm after the top layer, or a dictionary of norms by modality.
    """

    config: TransformerConfig
    causal: bool
    layers: nn.ModuleList
    final_norm: Any

    def step(self, layer: nn.Module, *inputs: Any) -> Any:
        if self.config.checkpoint_activations and self.training:
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)

    def outputs(
        self, numbers: Sequence[int], x: Any, inputs: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Return the outputs of chosen layers. Layers above the highest chosen layer do not run.

        `x` is the first layer's input. `inputs` has a tuple for each layer: the layer's arguments
        after `x`.
        """
        self.check_layers(numbers)
        found = {}
        for number in range(max(numbers, default=-1) + 1):
            x = self.step(self.layers[number], x, *inputs[number])
            if number in numbers:
                found[number] = x
        return [found[number] for number in numbers]

    def check_layers(self, numbers: Sequence[int]) -> None:
        outside = [number for number in numbers if not 0 <= number < len(self.layers)]
        if outside:
            raise ValueError(f"no layer {outside[0]}: layers are 0 to {len(self.layers) - 1}")

    @abstractmethod
    def tokens(self, output: Any) -> Tensor:
        """Return the output of a layer or of the whole stack as one tensor, (..., width)."""

    @abstractmethod
    def position_means(self, tokens: Tensor, inputs: tuple[Any, ...]) -> Tensor:
        """Return for every token the mean vector of its sample.

        The probe (`magneto.lab.probe`) subtracts this mean from the token's vector.

        Args:
            tokens: Output of a layer, as returned by the method `tokens`.
            inputs: Inputs of the same layer.

        Returns:
            Means, in a shape that broadcasts against `tokens`.
        """

    @abstractmethod
    def attention_samples(
        self, count: int, inputs: tuple[Any, ...]
    ) -> tuple[slice | Tensor, Tensor | None]:
        """Choose samples for measurements of attention.

        Args:
            count: Number of samples. A Multiway Transformer chooses `count` images, `count` pairs
                and `count` texts.
            inputs: Inputs of a layer.

        Returns:
            Index of the samples in the batch dimension, and a boolean mask (samples, length) in
            which False = padding. If the mask is None, measurements include all positions.
        """


class LayerStack(ProbedStack):
    """Base class of encoder and decoder: positions, input norm, layers, and final norm."""

    def __init__(self, config: TransformerConfig, stack: Stack) -> None:
        super().__init__()
        depth = config.depth(stack)
        self.config = config
        self.causal = stack == "decoder"
        self.crosses = self.causal and not depth.alone
        self.position_embedding = build_positions(config, bidirectional=not self.causal)
        self.grid_positions = build_grid_positions(config, bidirectional=not self.causal)
        self.input_norm = build_norm(config.input_norm, config.width, config)
        self.dropout = nn.Dropout(config.input_dropout)
        self.layers = nn.ModuleList(
            Layer(config, depth, index, self.crosses) for index in range(depth.layers)
        )
        self.windows = [config.window(layer) for layer in range(depth.layers)]
        self.final_norm = final_norm(config)
        initialize(self, config.row, depth, config.init)

    def run(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        cache: Any,
        *rest: Any,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Run the stack on embeddings x, (batch, length, width)."""
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
        """Return the first layer's input, a mask per layer, and a position tensor.

        All layers get the same position tensor, such as a bias of attention scores, or None.
        """
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

    def step(self, layer: nn.Module, *inputs: Any) -> Any:
        # A recomputed layer would append to its cache twice.
        cache = inputs[3]
        return super().step(layer, *inputs) if cache is None else layer(*inputs)

    def tokens(self, output: Tensor) -> Tensor:
        return output

    def position_means(self, tokens: Tensor, inputs: tuple[Any, ...]) -> Tensor:
        """Return each sample's mean over all positions, padding included, (batch, 1, width)."""
        return tokens.mean(1, keepdim=True)

    def attention_samples(self, count: int, inputs: tuple[Any, ...]) -> tuple[slice, None]:
        return slice(count), None


class Encoder(LayerStack):
    """Encoder stack, in which every position attends to every position."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, "encoder")

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode embeddings.

        Args:
            x: Embeddings, (batch, length, width).
            attention_mask: Mask in which True = may attend. The shape is (batch, length) for
                padding, or (batch, length, length) for packed documents. Positions count from 0 in
                each document. The output of attention is 0 for a query without allowed keys.

        Returns:
            Features, (batch, length, width).
        """
        return self.run(x, attention_mask, None)

    def features(
        self, x: Tensor, layers: Sequence[int], attention_mask: Tensor | None = None
    ) -> list[Tensor]:
        """Return the outputs of chosen layers, for feature pyramids or linear probes.

        The final norm is not applied, unlike in `forward`. Layers above the highest chosen layer do
        not run.

        Args:
            x: Embeddings, (batch, length, width).
            layers: Indices of layers, in any order. The bottom layer is 0.
            attention_mask: As in `forward`.

        Returns:
            The residual stream (batch, length, width) after each chosen layer, in the order of
            `layers`.

        Raises:
            ValueError: If a layer does not exist.
        """
        x, masks, shared = self.enter(x, attention_mask, None)
        return self.outputs(layers, x, [(mask, shared, None) for mask in masks])

    def attention_weights(
        self, x: Tensor, layer: int, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return one layer's attention weights, in fp32 and without dropout.

        Args:
            x: Embeddings, (batch, length, width).
            layer: Index of the layer. The bottom layer is 0.
            attention_mask: As in `forward`.

        Returns:
            Weights, (batch, heads, length, length). The third dimension indexes queries, and the
            fourth dimension indexes keys. Each row sums to 1, but rows without allowed keys are 0.

        Raises:
            ValueError: If the layer does not exist.
        """
        self.check_layers([layer])
        return record_attention_weights(
            self.layers[layer], lambda: self.features(x, [layer], attention_mask)
        )


class Decoder(LayerStack):
    """Causal decoder stack, with cross-attention if the configuration has `encoder_layers`."""

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
            x: Embeddings, (batch, length, width). With a cache, `x` starts after the positions in
                the cache.
            attention_mask: Mask in which True = may attend. The shape is (batch, cached + length)
                for padding, or (batch, length, cached + length) for packed documents. Positions
                count from 0 in each document. The decoder forbids attention to later positions,
                even if the mask allows them.
            memory: Features of the encoder, (batch, source length, width).
            memory_mask: Mask of the source in which True = may attend, (batch, source length).
            cache: Cache of keys and values: a `KeyValueCache`, or with `memory` an
                `EncoderDecoderCache`. Caches of Hugging Face work too.
            positions: Positions of the tokens, (batch or 1, length). By default, the positions are
                computed from the mask. Relative encodings ignore `positions`.

        Returns:
            Features, (batch, length, width).

        Raises:
            ValueError: If a decoder with cross-attention lacks `memory`.
            ValueError: If a decoder without cross-attention gets `memory`.
            ValueError: If a mask is not boolean or has a wrong shape.
        """
        if (memory is not None) != self.crosses:
            raise ValueError(
                "this decoder has cross-attention and needs memory, the encoder's features"
                if self.crosses
                else "this decoder has no cross-attention: set encoder_layers and decoder_layers"
            )
        if memory is None:
            return self.run(x, attention_mask, cache, positions=positions)
        check_mask(memory_mask, x.shape[0], x.shape[1], memory.shape[1])
        source = build_memory_mask(memory_mask)
        return self.run(x, attention_mask, cache, memory, source, positions=positions)


class EncoderDecoder(nn.Module):
    """Encoder of `encoder_layers` layers, and decoder of `decoder_layers` layers."""

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
        """Encode source embeddings, and decode target embeddings.

        Args:
            source: Embeddings of the source, (batch, source length, width).
            target: Embeddings of the target, (batch, target length, width).
            source_mask: Mask of the source in which False = padding, (batch, source length).
            target_mask: Mask of the target in which False = padding, (batch, target length).

        Returns:
            Features of the target, (batch, target length, width).
        """
        memory = self.encoder(source, source_mask)
        return self.decoder(target, target_mask, memory, source_mask)
