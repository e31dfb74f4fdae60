"""The Multiway Transformer (BEiT-3, arXiv 2208.10442): experts by modality, one attention over all.

Vision and language tokens are two packed tensors, (tokens, width); each goes through its own
experts, and they meet in attention alone (`magneto.nn.packing`). An expert is an ordinary sublayer:
a placement's norms, gains and constants are those of `magneto.nn.transformer`.

| experts            | attention        | feed-forward network                             |
|--------------------|------------------|--------------------------------------------------|
| "decoupled"        | vision, language | vision, language                                 |
| "shared_attention" | one for both     | vision, language; at the top one more, for pairs |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from magneto.nn.config import Experts, MultiwayConfig
from magneto.nn.init import initialize
from magneto.nn.layer import FeedForwardSublayer, SelfAttentionSublayer
from magneto.nn.mask import Mask
from magneto.nn.norm import Nothing, build_norm, optional_norm
from magneto.nn.packing import Packing, from_rows, to_rows
from magneto.nn.residual import DropPath
from magneto.nn.stack import ProbedStack
from magneto.nn.transformer import check_layers
from magneto.theory.depth import Depth

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


class NoDropPath(nn.Module):
    """What stands where no sample skips a branch."""

    def packed(self, streams: Streams, packing: Packing) -> Streams:
        """Return the streams."""
        return streams


def build_drop_path(rate: float) -> PackedDropPath | NoDropPath:
    """Build stochastic depth of packed samples, or nothing where the rate is 0."""
    return PackedDropPath(rate) if rate else NoDropPath()


class MultiwaySelfAttention(nn.Module):
    """Self-attention of all tokens of a sample, with projections and norms by `ROUTES`."""

    def __init__(self, config: MultiwayConfig, depth: Depth, layer: int, drop: float) -> None:
        super().__init__()
        self.routes = ROUTES[config.experts]
        names = dict.fromkeys(self.routes)
        self.experts = nn.ModuleDict(
            {name: SelfAttentionSublayer(config, depth, layer, 0.0) for name in names}
        )
        self.drop_path = build_drop_path(drop)

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
        self.drop_path = build_drop_path(drop)

    def forward(self, streams: Streams, packing: Packing) -> Streams:
        """Both streams to the same shapes."""
        vision, language = streams
        added = self.route(FeedForwardSublayer.compute, packing, (vision,), (language,))
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
        config = config.at(layer)
        drop = config.drop_path * layer / max(depth.layers - 1, 1)
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
        if self.config.residual_dtype != "input":
            streams = [x.to(getattr(torch, self.config.residual_dtype)) for x in streams]
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
