"""The lattice of a transducer: sums over all paths, the best path, and its cells tile by tile.

A path begins in cell (0, 0). In cell (t, u), frame t is looked at and u labels are out. A blank
leads to (t + 1, u), the next label to (t, u + 1); the path ends with the blank of the last frame
after the last label (arXiv 1211.3711, section 2.4). Any number of labels may come out in one frame.

Cell (t, u) lies on anti-diagonal t + u. All cells of one diagonal depend on the next one or the one
before only, so a batch takes time + labels steps. Sums are in float64: it is two numbers per cell,
and a log-probability in the thousands has no digits to lose in float32.

A cell's logits are as many as the vocabulary. They exist for a tile of cells at once, in which they
become log-probabilities or, in place, their own gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from magneto.functional.cross_entropy import accumulate, project

TILE = 1024
"""Cells whose logits exist at once, unless told."""
# One step of four utterances, 400 frames, 60 labels, vocabulary 500, joint width 640, on one thread
# (a single measurement each):
#   cells                256  1024  4096
#   processor seconds    5.6   4.6   4.6
#   MB                    19    30    66


@dataclass(frozen=True)
class Lattice:
    """Log-probabilities of the two ways out of each cell, by anti-diagonals.

    Attributes:
        blank: (time + labels, batch, labels + 1), float64, -inf where there is no cell.
        label: The same of the next label, -inf also after an utterance's last label.
        frames: (batch,), frames of each utterance.
        labels: (batch,), labels of each utterance.
    """

    blank: Tensor
    label: Tensor
    frames: Tensor
    labels: Tensor

    def at_end(self, diagonals: Tensor) -> Tensor:
        """Return the (batch,) values of the cells from which the last blank is emitted."""
        utterance = torch.arange(len(self.frames), device=self.frames.device)
        last = (self.frames - 1 + self.labels).clamp(min=0)
        return diagonals[last, utterance, self.labels]


def build_lattice(blank: Tensor, label: Tensor, frames: Tensor, labels: Tensor) -> Lattice:
    """Store (batch, time, labels + 1) log-probabilities by diagonals, without the padding."""
    batch, time, width = blank.shape
    frame, position = (torch.arange(size, device=blank.device) for size in (time, width))
    inside = frame[:, None] < frames[:, None, None]
    shape = (time + width - 1, batch, width)
    lattice = Lattice(_nothing(shape, blank), _nothing(shape, blank), frames, labels)
    last = labels[:, None, None]
    cells(lattice.blank).copy_(blank.masked_fill(~(inside & (position <= last)), -torch.inf))
    cells(lattice.label).copy_(label.masked_fill(~(inside & (position < last)), -torch.inf))
    return lattice


def cells(diagonals: Tensor) -> Tensor:
    """View (time + labels, batch, labels + 1) as (batch, time, labels + 1)."""
    steps, batch, width = diagonals.shape
    row = batch * width
    return diagonals.as_strided((batch, steps - width + 1, width), (width, row, row + 1))


def _nothing(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.full(shape, -torch.inf, dtype=torch.float64, device=like.device)


def forward_scores(lattice: Lattice) -> Tensor:
    """Return the log-probability of all ways from the start to each cell, by diagonals."""
    blank, label = lattice.blank, lattice.label
    scores = _nothing(blank.shape, blank)
    scores[0, :, 0].zero_()
    if without_values(blank):  # of the operations that are counted these are hardly any
        return scores
    for n in range(len(blank) - 1):
        stay, move = scores[n] + blank[n], scores[n] + label[n]
        scores[n + 1, :, 0] = stay[:, 0]
        torch.logaddexp(stay[:, 1:], move[:, :-1], out=scores[n + 1, :, 1:])
    return scores


def without_values(tensor: Tensor) -> bool:
    """Return whether a tensor has only a shape: on the meta device, or a fake of a plan's."""
    return tensor.is_meta or is_fake(tensor)


def is_fake(tensor: Tensor) -> bool:
    """Return whether a tensor stands for one on its device: such ones belong to a fake mode."""
    return hasattr(tensor, "fake_mode")


def log_likelihood(lattice: Lattice, scores: Tensor) -> Tensor:
    """Return the (batch,) log-probability of all paths; -inf if there is none."""
    return lattice.at_end(scores + lattice.blank)


def backward_scores(lattice: Lattice) -> Tensor:
    """Return the log-probability of all ways from each cell to the end, by diagonals.

    There is one more diagonal than in the lattice: the end is beyond the last frame.
    """
    blank, label = lattice.blank, lattice.label
    steps, batch, width = blank.shape
    scores = _nothing((steps + 1, batch, width), blank)
    if without_values(blank):
        return scores
    utterance = torch.arange(batch, device=blank.device)
    end = (lattice.frames + lattice.labels, utterance, lattice.labels)
    scores.index_put_(end, scores.new_zeros(()))  # a plain 0 would be copied from the host
    for n in range(steps - 1, -1, -1):
        found = scores[n + 1] + blank[n]
        move = scores[n + 1, :, 1:] + label[n, :, :-1]
        torch.logaddexp(found[:, :-1], move, out=found[:, :-1])
        torch.maximum(scores[n], found, out=scores[n])  # keeps the end, which is found nowhere
    return scores


def posteriors(lattice: Lattice, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities that a path leaves a cell by a blank, and by a label.

    These are minus the gradients of the negative log-likelihood for the lattice's two numbers.

    Args:
        lattice: Of the batch.
        scores: What `forward_scores` returned.

    Returns:
        Two of (batch, time, labels + 1), float64; zero for an utterance whose log-likelihood is
        not finite.
    """
    total = log_likelihood(lattice, scores)[:, None]
    onward = backward_scores(lattice)[1:]
    by_blank = scores + lattice.blank + onward - total
    by_label = _nothing(scores.shape, scores)
    by_label[..., :-1] = (scores + lattice.label - total)[..., :-1] + onward[..., 1:]
    lost = ~total.isfinite()
    by_blank, by_label = (x.exp().masked_fill(lost, 0) for x in (by_blank, by_label))
    return cells(by_blank), cells(by_label)


def best_path(lattice: Lattice) -> tuple[Tensor, Tensor]:
    """Return the likeliest single path.

    Returns:
        The (batch, labels) frame at which each label is emitted, -1 for padding and where there is
        no path; and the path's log-probability, (batch,). Of equal paths it is one.
    """
    blank, label = lattice.blank, lattice.label
    steps, batch, width = blank.shape
    scores = _nothing(blank.shape, blank)
    scores[0, :, 0].zero_()
    moved = torch.zeros(blank.shape, dtype=torch.bool, device=blank.device)
    for n in range(steps - 1):
        stay, move = scores[n] + blank[n], scores[n] + label[n]
        scores[n + 1, :, 0] = stay[:, 0]
        torch.maximum(stay[:, 1:], move[:, :-1], out=scores[n + 1, :, 1:])
        torch.gt(move[:, :-1], stay[:, 1:], out=moved[n + 1, :, 1:])
    total = log_likelihood(lattice, scores)
    position = lattice.labels.masked_fill(~total.isfinite(), 0)
    last = lattice.frames - 1 + position
    utterance = torch.arange(batch, device=blank.device)
    # One column too many, which takes what is no label.
    frames = torch.full((batch, width), -1, device=blank.device)
    for n in range(steps - 1, 0, -1):
        emitted = moved[n, utterance, position] & (last >= n)
        column = torch.where(emitted, position - 1, width - 1)
        frames[utterance, column] = n - position
        position = position - emitted.long()
    return frames[:, :-1], total


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
                yield Tile(rows, columns, hidden, project(flat, weight, bias, buffer[: len(flat)]))

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
                grad_weight = accumulate(grad_weight, grad.t(), scaled, self.weight.dtype)
            if wanted[3] and self.bias is not None:
                each = scale.expand(*hidden.shape[:3], 1).reshape(1, -1).to(self.operand)
                grad_bias = accumulate(grad_bias, each, grad, self.bias.dtype)
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
