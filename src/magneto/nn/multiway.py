"""The Multiway Transformer (BEiT-3, arXiv 2208.10442): experts by modality, one attention over all.

Vision and language tokens are two packed tensors, (tokens, width); each goes through its own
experts, and they meet in attention alone. An expert is an ordinary sublayer of `magneto.nn.block`.

| experts            | attention        | feed-forward network                             |
|--------------------|------------------|--------------------------------------------------|
| "decoupled"        | vision, language | vision, language                                 |
| "shared_attention" | one for both     | vision, language; at the top one more, for pairs |

No network reads padding. Only attention needs samples: it reads rows, (samples, longest, ...),
padded, a sample's vision tokens before its language tokens. The loader says on the CPU where each
token goes (`pack`); on the device nothing depends on values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from magneto.nn.attention import Mask, build_memory_mask, recorded_weights
from magneto.nn.block import DropPath, FeedForwardSublayer, SelfAttentionSublayer, drop_path_rate
from magneto.nn.config import Experts, MultiwayConfig
from magneto.nn.init import Nothing, build_norm, initialize, optional_norm
from magneto.nn.transformer import ProbedStack, check_layers
from magneto.theory.placement import Depth

Streams = tuple[Tensor, Tensor]
"""Packed tokens of vision and of language, (tokens, width) each."""

MODALITIES = ("vision", "language")
ROUTES: dict[Experts, tuple[str, str]] = {
    "decoupled": MODALITIES,
    "shared_attention": ("shared", "shared"),
}
"""Which expert of attention, and which norm on top, reads vision, and which language."""


class PackedDropPath(DropPath):
    """Drops a branch for some samples, in both modalities; in training only."""

    def packed(self, streams: Streams, packing: Packing) -> Streams:
        """Zero both streams' tokens for a share `rate` of the samples; scale the rest up."""
        if not self.training:
            return streams
        factors = self.factors(packing.rows, streams[0])
        places = (packing.vision_place, packing.language_place)
        rows = [packing.row_of(place) for place in places]
        vision, language = (y * factors[row, None] for y, row in zip(streams, rows, strict=True))
        return vision, language


class MultiwaySelfAttention(nn.Module):
    """Self-attention of all tokens of a sample, with projections and norms by `ROUTES`."""

    def __init__(self, config: MultiwayConfig, depth: Depth, layer: int, drop: float) -> None:
        super().__init__()
        self.routes = ROUTES[config.experts]
        names = dict.fromkeys(self.routes)
        self.experts = nn.ModuleDict(
            {name: SelfAttentionSublayer(config, depth, layer, 0.0) for name in names}
        )
        self.drop_path = PackedDropPath(drop) if drop else None

    def forward(self, streams: Streams, packing: Packing, mask: Mask) -> Streams:
        """Both streams to the same shapes."""
        experts: list[Any] = [self.experts[name] for name in self.routes]
        read = [one.before(x) for one, x in zip(experts, streams, strict=True)]
        parts = [one.attention.project(x) for one, x in zip(experts, read, strict=True)]
        query, key, value = (
            to_rows(*both, packing) for both in zip(parts[0], parts[1], strict=True)
        )
        # It has no weights: either expert's does.
        joined = experts[0].attention.attend(query, key, value, mask, None, None)
        heads = from_rows(joined, packing)
        added = [
            one.scale(one.attention.output(part, x))
            for one, part, x in zip(experts, heads, read, strict=True)
        ]
        if self.drop_path is not None:
            added = self.drop_path.packed((added[0], added[1]), packing)
        vision, language = (
            one.join(x, y) for one, x, y in zip(experts, streams, added, strict=True)
        )
        return vision, language


class MultiwayFeedForward(nn.Module):
    """A feed-forward network for each modality."""

    names = MODALITIES

    def __init__(self, config: MultiwayConfig, depth: Depth, drop: float) -> None:
        super().__init__()
        self.experts = nn.ModuleDict(
            {name: FeedForwardSublayer(config, depth, 0.0) for name in self.names}
        )
        self.drop_path = PackedDropPath(drop) if drop else None

    def forward(self, streams: Streams, packing: Packing) -> Streams:
        """Both streams to the same shapes."""
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
        """Call a method of the expert of each token with what that token has."""
        return call(self.experts["vision"], *vision), call(self.experts["language"], *language)


class FusionFeedForward(MultiwayFeedForward):
    """With a third network, which reads the tokens of pairs in place of both others."""

    names = (*MODALITIES, "vision_language")

    def route(
        self,
        call: Callable[..., Tensor],
        packing: Packing,
        vision: tuple[Tensor, ...],
        language: tuple[Tensor, ...],
    ) -> Streams:
        """Call a method of the expert of each token with what that token has."""
        first, second = packing.vision_alone, packing.language_paired
        image, text, pair = (self.experts[name] for name in self.names)
        return (
            torch.cat((call(image, *(x[:first] for x in vision)),
                       call(pair, *(x[first:] for x in vision)))),
            torch.cat((call(pair, *(x[:second] for x in language)),
                       call(text, *(x[second:] for x in language)))),
        )  # fmt: skip


class MultiwayLayer(nn.Module):
    """Self-attention, then the feed-forward networks."""

    def __init__(self, config: MultiwayConfig, depth: Depth, layer: int) -> None:
        super().__init__()
        config, drop = config.at(layer), drop_path_rate(config, depth, layer)
        fuses = layer >= depth.layers - config.vision_language_layers
        self.self_attention = MultiwaySelfAttention(config, depth, layer, drop)
        self.feed_forward = (FusionFeedForward if fuses else MultiwayFeedForward)(
            config, depth, drop
        )

    def forward(self, streams: Streams, packing: Packing, mask: Mask) -> Streams:
        """Both streams to the same shapes."""
        return self.feed_forward(self.self_attention(streams, packing, mask), packing)


class MultiwayEncoder(ProbedStack):
    """An encoder of images, texts and pairs, in which all tokens of a sample see each other."""

    def __init__(self, config: MultiwayConfig) -> None:
        super().__init__()
        depth = config.depth("encoder")
        self.config = config
        self.causal = False
        kind = config.input_norm
        self.input_norm = nn.ModuleDict(
            {
                name: Nothing() if kind == "none" else build_norm(kind, config.width, config)
                for name in MODALITIES
            }
        )
        self.dropout = nn.Dropout(config.input_dropout)
        self.layers = nn.ModuleList(
            MultiwayLayer(config, depth, index) for index in range(depth.layers)
        )
        top = config.row.final == "norm"
        self.routes = ROUTES[config.experts]
        self.final_norm = nn.ModuleDict(
            {name: optional_norm(top, config.width, config) for name in dict.fromkeys(self.routes)}
        )
        initialize(self, config.row, depth, config.init)

    def forward(self, vision: Tensor, language: Tensor, packing: Packing) -> Streams:
        """Encode embeddings, positions added, of a batch's samples one after another.

        A modality that no sample has is a tensor of no tokens, (0, width): its experts compute
        nothing, and their gradients are zeros, not None.

        Args:
            vision: (vision tokens, width).
            language: (language tokens, width), without padding.
            packing: Of these samples, on the same device.

        Returns:
            Features of both, in the same order and shapes.

        Raises:
            ValueError: If the packing is of other numbers of tokens.
        """
        streams, mask = self.enter(vision, language, packing)
        for layer in self.layers:
            streams = self.step(layer, streams, packing, mask)
        first, second = (self.final_norm[name] for name in self.routes)
        return first(streams[0]), second(streams[1])

    def features(
        self, vision: Tensor, language: Tensor, packing: Packing, layers: Sequence[int]
    ) -> list[Streams]:
        """Return what chosen layers give, without the norm on top; see `Encoder.features`.

        Args:
            vision: As in `forward`.
            language: As in `forward`.
            packing: As in `forward`.
            layers: Numbers of layers from 0 at the bottom, in any order.

        Raises:
            ValueError: If there is no such layer.
        """
        check_layers(layers, len(self.layers))
        streams, mask = self.enter(vision, language, packing)
        found = {}
        for number in range(max(layers, default=-1) + 1):
            streams = self.step(self.layers[number], streams, packing, mask)
            if number in layers:
                found[number] = streams
        return [found[number] for number in layers]

    def attention_weights(
        self, vision: Tensor, language: Tensor, packing: Packing, layer: int
    ) -> Tensor:
        """Return what `Encoder.attention_weights` does; arguments and errors as for `features`.

        Returns:
            (samples, heads, length, length): queries by keys, a sample's vision tokens first. Keys
            that are padding get 0.
        """
        check_layers([layer], len(self.layers))
        return recorded_weights(
            self.layers[layer], lambda: self.features(vision, language, packing, [layer])
        )

    def enter(self, vision: Tensor, language: Tensor, packing: Packing) -> tuple[Streams, Mask]:
        """Return what the lowest layer reads, and the mask."""
        given = (len(vision), len(language))
        expected = (len(packing.vision_place), len(packing.language_place))
        if given != expected:
            raise ValueError(f"{given[0]} vision and {given[1]} language tokens, but a packing of "
                             f"{expected[0]} and {expected[1]}")  # fmt: skip
        streams = [
            self.dropout(self.input_norm[name](x))
            for name, x in zip(MODALITIES, (vision, language), strict=True)
        ]
        return (streams[0], streams[1]), packing.mask()

    def step(self, layer: nn.Module, streams: Streams, packing: Packing, mask: Mask) -> Streams:
        """Run one layer; store nothing inside it, in training, where the configuration says so."""
        if self.config.checkpoint_activations and self.training:
            return checkpoint(layer, streams, packing, mask, use_reentrant=False)  # type: ignore[return-value]
        return layer(streams, packing, mask)

    def tokens(self, output: Streams) -> Tensor:
        """Return the tokens of both modalities, vision's first, (tokens, width)."""
        return torch.cat(output)

    def position_means(self, tokens: Tensor, inputs: tuple[Any, ...]) -> Tensor:
        """Return the mean over each sample's tokens of one modality, for each token.

        Over both modalities it would hide that a modality's tokens have become the same: their
        experts give each modality another vector.
        """
        streams, packing, _ = inputs
        vision, language = tokens.split([len(each) for each in streams])
        return torch.cat(packing.means(vision, language))

    def attention_samples(self, count: int, inputs: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        """Choose images alone, pairs and texts alone, where a batch has them; without padding."""
        packing: Packing = inputs[1]
        chosen = packing.first_of_each_kind(count)
        return chosen, packing.real().index_select(0, chosen)


@dataclass(frozen=True)
class Packing:
    """Where the packed tokens of a batch stand in its rows. `pack` makes it.

    Samples are in this order: images alone, pairs, texts alone.

    Attributes:
        vision_place: (vision tokens,) row * length + column of each.
        language_place: (language tokens,).
        rows: Samples.
        length: Of a row.
        vision_alone: Vision tokens of images alone: they stand first.
        language_paired: Language tokens of pairs: they stand first.
        attention_mask: Boolean, True = may attend, (rows, length), or (rows, length, length) where
            not every token sees every other; None: rows are full.
    """

    vision_place: Tensor
    language_place: Tensor
    rows: int
    length: int
    vision_alone: int
    language_paired: int
    attention_mask: Tensor | None

    def mask(self) -> Mask:
        """Return attention's mask."""
        return build_memory_mask(self.attention_mask)

    def means(self, vision: Tensor, language: Tensor) -> tuple[Tensor, Tensor]:
        """Return of each token the mean over its sample's tokens of the same modality.

        Args:
            vision: (vision tokens, width).
            language: (language tokens, width).
        """
        return self._means(vision, self.vision_place), self._means(language, self.language_place)

    def _means(self, tokens: Tensor, place: Tensor) -> Tensor:
        # Tokens are put in rows and added there: sums by index are added in any order on a GPU.
        rows = tokens.new_zeros((self.rows * self.length, tokens.shape[-1]))
        sums = rows.index_copy(0, place, tokens).unflatten(0, (self.rows, self.length)).sum(1)
        one = rows[:, :1].index_fill(0, place, 1.0).unflatten(0, (self.rows, self.length)).sum(1)
        return (sums / one.clamp(min=1)).index_select(0, self.row_of(place))

    def row_of(self, place: Tensor) -> Tensor:
        """Return the rows of places."""
        return place.div(self.length, rounding_mode="floor")

    def real(self) -> Tensor:
        """Return which places of the rows have a token, (rows, length), boolean."""
        held = torch.zeros(self.rows * self.length, dtype=torch.bool,
                           device=self.vision_place.device)  # fmt: skip
        for place in (self.vision_place, self.language_place):
            held = held.index_fill(0, place, True)
        return held.unflatten(0, (self.rows, self.length))

    def first_of_each_kind(self, count: int) -> Tensor:
        """Return the rows of the first images alone, pairs and texts alone; nothing waits for it.

        Args:
            count: Of each kind. Where there are fewer, what follows them comes in their place.
        """
        alone, paired = self.vision_alone, self.language_paired
        first = torch.cat((self.vision_place[:alone][:1], self.language_place[:paired][:1],
                           self.language_place[paired:][:1]))  # fmt: skip
        further = torch.arange(count, device=first.device)
        return (self.row_of(first)[:, None] + further).flatten().clamp(max=self.rows - 1)


def pack(
    vision_lengths: Sequence[int], language_lengths: Sequence[int], length: int | None = None
) -> Packing:
    """Say where each token of a batch goes, on the CPU.

    Args:
        vision_lengths: Vision tokens of each sample; 0 of a text alone.
        language_lengths: Language tokens of each sample, without padding; 0 of an image alone.
        length: Of a row; by default that of the longest sample. A fixed one gives tensors of the
            same shape in each batch.

    Raises:
        ValueError: If the samples are not in the order of images alone, pairs, texts alone, or one
            has no tokens, or more than fit.
    """
    sizes = list(zip(vision_lengths, language_lengths, strict=True))
    check_order(sizes)
    longest = max((sum(size) for size in sizes), default=0)
    length = longest if length is None else length
    if longest > length:
        raise ValueError(f"a sample of {longest} tokens is longer than a row of {length}")
    vision, language = (torch.tensor(of, dtype=torch.long) for of in (vision_lengths,
                                                                    language_lengths))  # fmt: skip
    totals = vision + language
    padded = bool((totals < length).any())
    return Packing(
        vision_place=places(vision, torch.zeros_like(vision), length),
        language_place=places(language, vision, length),
        rows=len(sizes),
        length=length,
        vision_alone=sum(image for image, text in sizes if not text),
        language_paired=sum(text for image, text in sizes if image),
        attention_mask=torch.arange(length) < totals[:, None] if padded else None,
    )


def check_order(sizes: Sequence[tuple[int, int]]) -> None:
    """Raise ValueError unless images alone come first, then pairs, then texts alone."""
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
    """Return row * length + column of each token; each row has `counts` of them from `starts`."""
    rows = torch.arange(len(counts)).repeat_interleave(counts)
    before = (counts.cumsum(0) - counts)[rows]
    return rows * length + starts[rows] + torch.arange(len(rows)) - before


def to_rows(vision: Tensor, language: Tensor, packing: Packing) -> Tensor:
    """Join (vision tokens, ...) and (language tokens, ...) to (rows, length, ...); padding is 0."""
    places = (packing.vision_place, packing.language_place)
    joined: Any = ToRows.apply(vision, language, *places, packing.rows * packing.length)
    return joined.unflatten(0, (packing.rows, packing.length))


def from_rows(rows: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
    """Take (rows, length, ...) apart: (vision tokens, ...) and (language tokens, ...)."""
    parts: Any = FromRows.apply(rows.flatten(0, 1), packing.vision_place, packing.language_place)
    return parts


class ToRows(torch.autograd.Function):
    """Each token goes to its own place. Both ways copy; torch's own backward adds into zeros."""

    @staticmethod
    def forward(
        ctx: Any, vision: Tensor, language: Tensor, first: Tensor, second: Tensor, count: int
    ) -> Tensor:
        """Return (count, ...)."""
        ctx.save_for_backward(first, second)
        return scatter(vision, language, first, second, count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gather."""
        first, second = ctx.saved_tensors
        return (
            gradients[0].index_select(0, first),
            gradients[0].index_select(0, second),
            *[None] * 3,
        )


class FromRows(torch.autograd.Function):
    """The way back: each token is read from its own place."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens of both modalities."""
        ctx.save_for_backward(first, second)
        ctx.count = len(rows)
        return rows.index_select(0, first), rows.index_select(0, second)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Scatter; padding gets none."""
        vision, language = gradients
        first, second = ctx.saved_tensors
        return scatter(vision, language, first, second, ctx.count), None, None


def scatter(vision: Tensor, language: Tensor, first: Tensor, second: Tensor, count: int) -> Tensor:
    """Return (count, ...) with each token in its place, and zeros elsewhere."""
    full = len(first) + len(second) == count
    make = vision.new_empty if full else vision.new_zeros
    rows = make((count, *vision.shape[1:]))
    return rows.index_copy_(0, first, vision).index_copy_(0, second, language)
