"""What the transducer loss does with a tile of logits, and a joiner's logits tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from magneto.functional.transducer_lattice import is_fake

TILE = 1024
"""Cells whose logits exist at once, unless told."""
# One step of four utterances, 400 frames, 60 labels, vocabulary 500, joint width 640, on one thread
# (a single measurement each):
#   cells                256  1024  4096
#   processor seconds    5.6   4.6   4.6
#   MB                    19    30    66


def log_probabilities(logits: Tensor, labels: Tensor, blank: int) -> Tensor:
    """Return log p(blank), log p(label) and the log of the sum of exponentials, (3, cells).

    Args:
        logits: (cells, vocabulary); they are overwritten.
        labels: (cells,), the label that each cell may emit.
        blank: The blank's index.
    """
    picked = torch.stack((logits[:, blank], logits.gather(1, labels[:, None])[:, 0]))
    largest = logits.amax(1)
    torch.softmax(logits, 1, out=logits)
    # The likeliest token's probability is exp(largest) over the sum of exponentials.
    total = largest - logits.amax(1).log()
    return torch.cat((picked - total, total[None]))


def to_gradient(
    logits: Tensor, total: Tensor, labels: Tensor, blank: int, by_blank: Tensor, by_label: Tensor
) -> Tensor:
    """Turn logits into the gradient of the negative log-likelihood, in place.

    Args:
        logits: (cells, vocabulary), finite where no path passes.
        total: (cells,), the log of the sum of exponentials.
        labels: (cells,).
        blank: The blank's index.
        by_blank: (cells,), probability that a path leaves the cell by a blank.
        by_label: (cells,), that it leaves by the label.
    """
    passed = by_blank + by_label
    # exp(logits - total) is the softmax; here it is scaled by `passed` at once.
    shift = (total - passed.log()).masked_fill(passed == 0, torch.inf)
    logits.sub_(shift[:, None]).exp_()
    logits[:, blank] -= by_blank
    return logits.scatter_add_(1, labels[:, None], -by_label[:, None])


def parts(count: int, size: int) -> Iterator[slice]:
    """Yield slices of `size` that cover `count`."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


@dataclass(frozen=True)
class Tile:
    """Some frames of some utterances.

    Attributes:
        utterances: Which of the batch.
        frames: Which of the time.
        hidden: (utterances, frames, labels + 1, joint), after the tanh, in the features' type or
            float32 if that is wider.
        logits: (cells, vocabulary), in the same type; the next tile overwrites them.
    """

    utterances: slice
    frames: slice
    hidden: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Joiner:
    """A joiner's features and output layer.

    Attributes:
        encoder: (batch, time, joint).
        predictor: (batch, labels + 1, joint).
        weight: (vocabulary, joint).
        bias: (vocabulary,).
        operand: The type in which matrices are multiplied.
    """

    encoder: Tensor
    predictor: Tensor
    weight: Tensor
    bias: Tensor | None
    operand: torch.dtype

    @property
    def dtype(self) -> torch.dtype:
        """The type of everything but matrix products: float32 or wider."""
        return torch.promote_types(
            torch.promote_types(self.encoder.dtype, self.predictor.dtype), torch.float32
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """The lattice's: batch, time, labels + 1."""
        return len(self.encoder), self.encoder.shape[1], self.predictor.shape[1]

    def tiles(self, cells: int) -> Iterator[Tile]:
        """Return all tiles of about so many cells: whole utterances, or whole frames of one."""
        # To follow how much is alive at once, two are as good as all.
        return islice(self._tiles(cells), 2 if is_fake(self.weight) else None)

    def _tiles(self, cells: int) -> Iterator[Tile]:
        batch, time, width = self.shape
        utterances = max(1, cells // max(1, time * width))
        frames = time if utterances > 1 else max(1, min(time, cells // width))
        weight = self.weight.to(self.operand)
        bias = None if self.bias is None else self.bias.to(self.operand)
        # One buffer for all tiles: a large one that is new is slow to touch.
        rows = min(utterances, batch) * frames * width
        buffer = torch.empty(rows, len(weight), dtype=self.dtype, device=weight.device)
        for rows in parts(batch, utterances):
            predictor = self.predictor[rows, None].to(self.dtype)
            for columns in parts(time, frames):
                encoder = self.encoder[rows, columns, None].to(self.dtype)
                hidden = (encoder + predictor).tanh_()
                flat = hidden.flatten(0, 2).to(self.operand)
                yield Tile(rows, columns, hidden, _project(flat, weight, bias, buffer[: len(flat)]))

    def log_probabilities(self, labels: Tensor, blank: int, cells: int) -> Tensor:
        """Return `log_probabilities` of all cells, (3, batch, time, labels + 1).

        Args:
            labels: (batch, labels + 1), the label that each position may emit.
            blank: The blank's index.
            cells: Of a tile.
        """
        found = torch.empty(3, *self.shape, dtype=self.dtype, device=labels.device)
        for tile in self.tiles(cells):
            shape = tile.hidden.shape[:3]
            answers = labels_by_cell(labels[tile.utterances], shape[1])
            values = log_probabilities(tile.logits, answers, blank)
            found[:, tile.utterances, tile.frames] = values.view(3, *shape)
        return found

    def gradients(
        self,
        labels: Tensor,
        blank: int,
        cells: int,
        total: Tensor,
        chances: tuple[Tensor, Tensor],
        factor: Tensor,
        wanted: tuple[bool, ...],
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of encoder, predictor, weight and bias, as wanted.

        Args:
            labels: (batch, labels + 1).
            blank: The blank's index.
            cells: Of a tile.
            total: (batch, time, labels + 1), the log of each cell's sum of exponentials.
            chances: Probabilities of leaving a cell by the blank and by the label, shaped so.
            factor: (batch,), the gradient of each utterance's loss.
            wanted: Whether each of the four is.
        """
        weight = self.weight.to(self.operand)
        grad_encoder = torch.empty_like(self.encoder)
        grad_predictor = torch.zeros_like(self.predictor, dtype=self.dtype)
        grad_weight = grad_bias = None
        for tile in self._finite(chances[0] + chances[1]).tiles(cells):
            at = (tile.utterances, tile.frames)
            hidden, scale = tile.hidden, factor[tile.utterances, None, None, None]
            answers = labels_by_cell(labels[tile.utterances], hidden.shape[1])
            sums, *both = (x[at].flatten() for x in (total, *chances))
            grad = to_gradient(tile.logits, sums, answers, blank, *both).to(self.operand)
            if wanted[2]:
                scaled = (hidden * scale).flatten(0, 2).to(self.operand)
                grad_weight = _accumulate(grad_weight, grad.t(), scaled, self.weight.dtype)
            if wanted[3] and self.bias is not None:
                each = scale.expand(*hidden.shape[:3], 1).reshape(1, -1).to(self.operand)
                grad_bias = _accumulate(grad_bias, each, grad, self.bias.dtype)
            if wanted[0] or wanted[1]:
                inner = torch.mm(grad, weight).to(self.dtype).view_as(hidden)
                inner.mul_(hidden.square_().neg_().add_(1)).mul_(scale)
                grad_encoder[at] = inner.sum(2).to(grad_encoder.dtype)
                grad_predictor[tile.utterances] += inner.sum(1)
        return (
            grad_encoder if wanted[0] else None,
            grad_predictor.to(self.predictor.dtype) if wanted[1] else None,
            grad_weight,
            None if grad_bias is None else grad_bias[0],
        )

    def _finite(self, passed: Tensor) -> Joiner:
        """Return this with zeros in the padding and in utterances that have no finite loss.

        Args:
            passed: (batch, time, labels + 1), the probability that a path goes through a cell.
                Every frame and every position of an utterance is passed somewhere.
        """
        encoder = self.encoder.masked_fill(~passed.any(2)[..., None], 0)
        predictor = self.predictor.masked_fill(~passed.any(1)[..., None], 0)
        return replace(self, encoder=encoder, predictor=predictor)


def labels_by_cell(labels: Tensor, time: int) -> Tensor:
    """Repeat (batch, labels + 1) for every frame, flat: (batch * time * (labels + 1),)."""
    return labels[:, None].expand(-1, time, -1).flatten()


def _project(rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """Write the logits of (cells, joint) into `out`."""
    if out.dtype != rows.dtype:
        return out.copy_(F.linear(rows, weight, bias))
    if bias is None:
        return torch.mm(rows, weight.t(), out=out)
    return torch.addmm(bias, rows, weight.t(), out=out)


def _accumulate(total: Tensor | None, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Add `left @ right` to the total in place; the first product is the first total."""
    if total is None:
        return torch.mm(left, right).to(dtype)
    if total.dtype == left.dtype:
        # `addmm_` does the same, and torch's FlopCounterMode does not count it.
        return torch.addmm(total, left, right, out=total)
    return total.add_(torch.mm(left, right))
