"""The lattice of a transducer: sums over all paths, and the best path.

A path begins in cell (0, 0). In cell (t, u), frame t is looked at and u labels are out. A blank
leads to (t + 1, u), the next label to (t, u + 1); the path ends with the blank of the last frame
after the last label (arXiv 1211.3711, section 2.4). Any number of labels may come out in one frame.

Cell (t, u) lies on anti-diagonal t + u. All cells of one diagonal depend on the next one or the one
before only, so a batch takes time + labels steps. Everything here is in float64: it is two numbers
per cell, and a log-probability in the thousands has no digits to lose in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
