"""Multiway Transformer (BEiT-3, arXiv 2208.10442): experts by modality with joint attention.

Vision and language tokens are two packed tensors, (tokens, width). Each modality has its own
experts, which are ordinary sublayers of `magneto.nn.block`. Each token attends to all tokens of its
sample, in both modalities. The table lists the experts of each sublayer.

| experts            | attention        | feed-forward network                             |
|--------------------|------------------|--------------------------------------------------|
| "decoupled"        | vision, language | vision, language                                 |
| "shared_attention" | shared           | vision, language; in top layers one for pairs    |

Linear layers do not process padding. Only attention needs padded rows, (samples, length, ...). The
length is that of the longest sample. In each padded row, vision tokens come before language tokens.
The data loader computes the place of each token in the padded rows on the CPU (`pack`). Thus the
forward pass does not wait for values from a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from magneto.nn.attention import (
    Mask,
    build_memory_mask,
    check_mask,
    record_attention_weights,
)
from magneto.nn.block import DropPath, FeedForwardSublayer, SelfAttentionSublayer, drop_path_rate
from magneto.nn.config import Experts, MultiwayConfig
from magneto.nn.init import build_norm, final_norm, initialize
from magneto.nn.transformer import ProbedStack
from magneto.theory.placement import Depth

Streams = tuple[Tensor, Tensor]
"""Packed vision tokens and packed language tokens, (tokens, width) each."""

MODALITIES = ("vision", "language")
ROUTES: dict[Experts, tuple[str, str]] = {
    "decoupled": MODALITIES,
    "shared_attention": ("shared", "shared"),
}
"""Expert of vision tokens, and expert of language tokens, in attention and in the final norm."""


class PackedDropPath(DropPath):
    """Stochastic depth of packed tokens: drops a branch for random samples in training."""

    def packed(self, streams: Streams, packing: Packing) -> Streams:
        if not self.training:
            return streams
        factors = self.factors(packing.rows, streams[0])
        places = (packing.vision_place, packing.language_place)
        rows = [packing.row_of(place) for place in places]
        vision, language = (y * factors[row, None] for y, row in zip(streams, rows, strict=True))
        return vision, language


class MultiwaySelfAttention(nn.Module):
    """Self-attention over all tokens of a sample. `ROUTES` names the experts."""

    def __init__(self, config: MultiwayConfig, depth: Depth, layer: int, drop: float) -> None:
        super().__init__()
        self.routes = ROUTES[config.experts]
        names = dict.fromkeys(self.routes)
        self.experts = nn.ModuleDict(
            {name: SelfAttentionSublayer(config, depth, layer, 0.0) for name in names}
        )
        self.drop_path = PackedDropPath(drop) if drop else None

    def forward(self, streams: Streams, packing: Packing, mask: Mask) -> Streams:
        experts: list[Any] = [self.experts[name] for name in self.routes]
        read = [one.before(x) for one, x in zip(experts, streams, strict=True)]
        vision_heads, language_heads = (
            one.attention.project(x) for one, x in zip(experts, read, strict=True)
        )
        heads = to_rows(vision_heads, language_heads, packing)
        # Dot-product attention has no weights, so either expert's serves.
        joined = experts[0].attention.attend(heads, mask, None, None)
        attended = from_rows(joined, packing)
        added = [
            one.scale(one.attention.output(part, x))
            for one, part, x in zip(experts, attended, read, strict=True)
        ]
        if self.drop_path is not None:
            added = self.drop_path.packed((added[0], added[1]), packing)
        vision, language = (
            one.join(x, y) for one, x, y in zip(experts, streams, added, strict=True)
        )
        return vision, language


class MultiwayFeedForward(nn.Module):
    """Feed-forward networks, one for each modality."""

    names = MODALITIES

    def __init__(self, config: MultiwayConfig, depth: Depth, drop: float) -> None:
        super().__init__()
        self.experts = nn.ModuleDict(
            {name: FeedForwardSublayer(config, depth, 0.0) for name in self.names}
        )
        self.drop_path = PackedDropPath(drop) if drop else None

    def forward(self, streams: Streams, packing: Packing) -> Streams:
        vision, language = streams
        added = self.route(FeedForwardSublayer.compute, packing, (vision,), (language,))
        if self.drop_path is not None:
            added = self.drop_path.packed(added, packing)
        return self.route(
            FeedForwardSublayer.join, packing, (vision, added[0]), (language, added[1])
        )

    def route(
        self,
        call: Callable[..., Tensor],
        packing: Packing,
        vision: tuple[Tensor, ...],
        language: tuple[Tensor, ...],
    ) -> Streams:
        return call(self.experts["vision"], *vision), call(self.experts["language"], *language)


class FusionFeedForward(MultiwayFeedForward):
    """Feed-forward networks for images alone, texts alone, and image-text pairs."""

    names = (*MODALITIES, "vision_language")

    def route(
        self,
        call: Callable[..., Tensor],
        packing: Packing,
        vision: tuple[Tensor, ...],
        language: tuple[Tensor, ...],
    ) -> Streams:
        first, second = packing.vision_alone, packing.language_paired
        image, text, pair = (self.experts[name] for name in self.names)
        return (
            torch.cat((call(image, *(x[:first] for x in vision)),
                       call(pair, *(x[first:] for x in vision)))),
            torch.cat((call(pair, *(x[:second] for x in language)),
                       call(text, *(x[second:] for x in language)))),
        )  # fmt: skip


class MultiwayLayer(nn.Module):
    """Layer of multiway self-attention and feed-forward networks."""

    def __init__(self, config: MultiwayConfig, depth: Depth, layer: int) -> None:
        super().__init__()
        config, drop = config.at(layer), drop_path_rate(config, depth, layer)
        fuses = layer >= depth.layers - config.vision_language_layers
        self.self_attention = MultiwaySelfAttention(config, depth, layer, drop)
        self.feed_forward = (FusionFeedForward if fuses else MultiwayFeedForward)(
            config, depth, drop
        )

    def forward(self, streams: Streams, packing: Packing, mask: Mask) -> Streams:
        return self.feed_forward(self.self_attention(streams, packing, mask), packing)


class MultiwayEncoder(ProbedStack):
    """Encoder of images, texts and pairs. All tokens of a sample attend to each other."""

    def __init__(self, config: MultiwayConfig) -> None:
        super().__init__()
        depth = config.depth("encoder")
        self.config = config
        self.causal = False
        self.input_norm = nn.ModuleDict(
            {name: build_norm(config.input_norm, config.width, config) for name in MODALITIES}
        )
        self.dropout = nn.Dropout(config.input_dropout)
        self.layers = nn.ModuleList(
            MultiwayLayer(config, depth, index) for index in range(depth.layers)
        )
        self.routes = ROUTES[config.experts]
        self.final_norm = nn.ModuleDict(
            {name: final_norm(config) for name in dict.fromkeys(self.routes)}
        )
        initialize(self, config.row, depth, config.init)

    def forward(self, vision: Tensor, language: Tensor, packing: Packing) -> Streams:
        """Encode embeddings, to which positions have been added.

        The tensor of a missing modality has the shape (0, width). Experts of a missing modality
        compute nothing and have zero gradients.

        Args:
            vision: Embeddings of vision tokens, (vision tokens, width).
            language: Embeddings of language tokens without padding, (language tokens, width).
            packing: Places of the tokens in padded rows. All tensors are on the same device.

        Returns:
            Features of both modalities, in the order and shapes of the embeddings.

        Raises:
            ValueError: If the numbers of tokens differ from the numbers in `packing`.
        """
        streams, mask = self.enter(vision, language, packing)
        for layer in self.layers:
            streams = self.step(layer, streams, packing, mask)
        first, second = (self.final_norm[name] for name in self.routes)
        return first(streams[0]), second(streams[1])

    def features(
        self, vision: Tensor, language: Tensor, packing: Packing, layers: Sequence[int]
    ) -> list[Streams]:
        """Return the outputs of chosen layers without the final norm; see `Encoder.features`.

        `layers` has indices in any order, where 0 is the bottom layer. The arguments `vision`,
        `language` and `packing` are as in `forward`.

        Raises:
            ValueError: If a layer does not exist.
        """
        streams, mask = self.enter(vision, language, packing)
        return self.outputs(layers, streams, [(packing, mask)] * len(self.layers))

    def attention_weights(
        self, vision: Tensor, language: Tensor, packing: Packing, layer: int
    ) -> Tensor:
        """Return one layer's attention weights, (samples, heads, length, length).

        The third dimension indexes queries, and the fourth dimension indexes keys. Vision tokens
        come before language tokens. Keys that are padding have weight 0. Arguments and errors are
        as in `features`.
        """
        self.check_layers([layer])
        return record_attention_weights(
            self.layers[layer], lambda: self.features(vision, language, packing, [layer])
        )

    def enter(self, vision: Tensor, language: Tensor, packing: Packing) -> tuple[Streams, Mask]:
        given = (len(vision), len(language))
        expected = (len(packing.vision_place), len(packing.language_place))
        if given != expected:
            raise ValueError(f"the packing expects {expected[0]} vision and {expected[1]} language "
                             f"tokens, not {given[0]} and {given[1]}")  # fmt: skip
        streams = [
            self.dropout(self.input_norm[name](x))
            for name, x in zip(MODALITIES, (vision, language), strict=True)
        ]
        return (streams[0], streams[1]), packing.mask()

    def tokens(self, output: Streams) -> Tensor:
        return torch.cat(output)

    def position_means(self, tokens: Tensor, inputs: tuple[Any, ...]) -> Tensor:
        """For each token, return the mean over all tokens of the same sample and modality.

        Different experts process the two modalities. A mean over both modalities would hide a rank
        collapse within one modality.
        """
        streams, packing, _ = inputs
        parts = tokens.split([len(each) for each in streams])
        places = (packing.vision_place, packing.language_place)
        return torch.cat([packing.means(*each) for each in zip(parts, places, strict=True)])

    def attention_samples(self, count: int, inputs: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        packing: Packing = inputs[1]
        chosen = packing.first_of_each_kind(count)
        return chosen, packing.real().index_select(0, chosen)


@dataclass(frozen=True)
class Packing:
    """Places of a batch's packed tokens in padded rows.

    The function `pack` computes the places. A batch has images without text first, then image-text
    pairs, then texts without image.

    Attributes:
        vision_place: Place of each vision token as `row * length + column`, (vision tokens,).
        language_place: Place of each language token, (language tokens,).
        token: Index of the token at each place, (rows * length,). The indices of language tokens
            follow those of vision tokens. Padding has the index after the last token.
        rows: Number of samples.
        length: Length of a padded row.
        vision_alone: Number of vision tokens in images without text.
        language_paired: Number of language tokens in image-text pairs.
        attention_mask: Boolean mask, True where attention is allowed. None if no row has padding.
            The shape is (rows, length), or (rows, length, length) if the mask differs between
            queries. A mask with a first dimension of 1 applies to all samples.
    """

    vision_place: Tensor
    language_place: Tensor
    token: Tensor
    rows: int
    length: int
    vision_alone: int
    language_paired: int
    attention_mask: Tensor | None

    def mask(self) -> Mask:
        given = self.attention_mask
        shared = given is not None and len(given) == 1
        check_mask(given, 1 if shared else self.rows, self.length, self.length)
        return build_memory_mask(given)

    def means(self, tokens: Tensor, place: Tensor) -> Tensor:
        """For each token, return the mean over all tokens of the same sample and modality.

        `tokens` has all tokens of one modality, (tokens, width). `place` has the place of each
        token, (tokens,).
        """
        # Sums in rows are deterministic; a GPU's sums by index are not.
        rows = tokens.new_zeros((self.rows * self.length, tokens.shape[-1]))
        sums = rows.index_copy(0, place, tokens).unflatten(0, (self.rows, self.length)).sum(1)
        one = rows[:, :1].index_fill(0, place, 1.0).unflatten(0, (self.rows, self.length)).sum(1)
        return (sums / one.clamp(min=1)).index_select(0, self.row_of(place))

    def row_of(self, place: Tensor) -> Tensor:
        return place.div(self.length, rounding_mode="floor")

    def real(self) -> Tensor:
        """Return a mask of the places with tokens, boolean (rows, length). False marks padding."""
        held = torch.zeros(self.rows * self.length, dtype=torch.bool,
                           device=self.vision_place.device)  # fmt: skip
        for place in (self.vision_place, self.language_place):
            held = held.index_fill(0, place, True)
        return held.unflatten(0, (self.rows, self.length))

    def first_of_each_kind(self, count: int) -> Tensor:
        """Return the row numbers of the first `count` samples of each kind.

        The kinds are images without text, image-text pairs, and texts without image. If a kind has
        fewer samples, the result also contains rows of the next kind, or repeats the last row. The
        method does not wait for the device.
        """
        alone, paired = self.vision_alone, self.language_paired
        first = torch.cat((self.vision_place[:alone][:1], self.language_place[:paired][:1],
                           self.language_place[paired:][:1]))  # fmt: skip
        further = torch.arange(count, device=first.device)
        return (self.row_of(first)[:, None] + further).flatten().clamp(max=self.rows - 1)


def pack(vision_lengths: Sequence[int], language_lengths: Sequence[int]) -> Packing:
    """Compute the places of a batch's tokens, on the CPU.

    Padded rows are as long as the longest sample.

    Args:
        vision_lengths: Number of vision tokens in each sample. A text without image has 0 vision
            tokens.
        language_lengths: Number of language tokens in each sample. An image without text has 0
            language tokens.

    Raises:
        ValueError: If a sample has no tokens.
        ValueError: If samples are out of order. Images without text come first, then image-text
            pairs, then texts without image.
    """
    sizes = list(zip(vision_lengths, language_lengths, strict=True))
    check_order(sizes)
    length = max((sum(size) for size in sizes), default=0)
    vision, language = (torch.tensor(of, dtype=torch.long) for of in (vision_lengths,
                                                                    language_lengths))  # fmt: skip
    totals = vision + language
    padded = any(image + text < length for image, text in sizes)
    vision_place = places(vision, torch.zeros_like(vision), length)
    language_place = places(language, vision, length)
    return Packing(
        vision_place=vision_place,
        language_place=language_place,
        token=token_numbers(vision_place, language_place, len(sizes) * length),
        rows=len(sizes),
        length=length,
        vision_alone=sum(image for image, text in sizes if not text),
        language_paired=sum(text for image, text in sizes if image),
        attention_mask=torch.arange(length) < totals[:, None] if padded else None,
    )


def check_order(sizes: Sequence[tuple[int, int]]) -> None:
    last = 0
    for number, (image, text) in enumerate(sizes):
        if image < 0 or text < 0 or image + text == 0:
            raise ValueError(f"sample {number} has {image} vision and {text} language tokens")
        kind = 0 if not text else 1 if image else 2
        if kind < last:
            raise ValueError(f"sample {number} is out of order: images alone come first, then "
                             "pairs, then texts alone")  # fmt: skip
        last = kind


def places(counts: Tensor, starts: Tensor, length: int) -> Tensor:
    """Return each token's place: row * length + column.

    Row i has `counts[i]` tokens from column `starts[i]` on.
    """
    rows = torch.arange(len(counts)).repeat_interleave(counts)
    before = (counts.cumsum(0) - counts)[rows]
    return rows * length + starts[rows] + torch.arange(len(rows)) - before


def token_numbers(vision_place: Tensor, language_place: Tensor, count: int) -> Tensor:
    """Return the index of the token at each of `count` places; see `Packing.token`."""
    place = torch.cat((vision_place, language_place))
    numbers = torch.full((count,), len(place), device=place.device)
    numbers[place] = torch.arange(len(place), device=place.device)
    return numbers


def to_rows(vision: Tensor, language: Tensor, packing: Packing) -> Tensor:
    """Copy tokens of both modalities (tokens, ...) to padded rows (rows, length, ...)."""
    places = (packing.vision_place, packing.language_place)
    joined: Any = ToRows.apply(vision, language, *places, packing.token)
    return joined.unflatten(0, (packing.rows, packing.length))


def from_rows(rows: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
    """Copy tokens of both modalities (tokens, ...) from padded rows (rows, length, ...)."""
    places = (packing.vision_place, packing.language_place)
    parts: Any = FromRows.apply(rows.flatten(0, 1), *places, packing.token)
    return parts


class ToRows(torch.autograd.Function):
    """Operation that copies tokens to padded rows, with a faster backward pass than autograd's."""

    @staticmethod
    def forward(
        ctx: Any, vision: Tensor, language: Tensor, first: Tensor, second: Tensor, token: Tensor
    ) -> Tensor:
        ctx.save_for_backward(first, second)
        return arrange(vision, language, token)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        first, second = ctx.saved_tensors
        return (
            gradients[0].index_select(0, first),
            gradients[0].index_select(0, second),
            *[None] * 3,
        )


class FromRows(torch.autograd.Function):
    """Operation that copies tokens out of padded rows, the inverse of `ToRows`."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, first: Tensor, second: Tensor, token: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(token)
        return rows.index_select(0, first), rows.index_select(0, second)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        vision, language = gradients
        (token,) = ctx.saved_tensors
        return arrange(vision, language, token), *[None] * 3


def arrange(vision: Tensor, language: Tensor, token: Tensor) -> Tensor:
    """Return padded rows (rows * length, ...) with zeros as padding."""
    padding = vision.new_zeros((1, *vision.shape[1:]))
    return torch.cat((vision, language, padding)).index_select(0, token)
