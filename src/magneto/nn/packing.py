"""Vision and language tokens of a batch, each packed without padding, and joined for attention.

A modality's tokens stand one sample after another in one tensor, (tokens, width), so that no
network reads padding. Only attention needs samples: it reads rows, (samples, longest, ...), padded,
with a sample's vision tokens before its language tokens. The loader says on the CPU where each
token goes (`pack`); on the device nothing depends on values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from magneto.nn.mask import Mask, build_memory_mask


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
