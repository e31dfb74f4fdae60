"""Four ways from a joiner's features to the gradients of the transducer loss, for comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from magneto.functional.transducer import joiner_transducer_loss, transducer_loss
from magneto.functional.transducer_lattice import (
    Lattice,
    build_lattice,
    forward_scores,
    log_likelihood,
    posteriors,
)

PLAIN, SPLIT, GATHERED = "plain", "sub-batches", "gathered"


@dataclass(frozen=True)
class Shape:
    """Sizes of a batch; all utterances are of full length."""

    batch: int
    time: int
    labels: int
    vocabulary: int
    joint: int


SHAPES = {"librispeech": Shape(16, 400, 60, 5000, 640), "tiny": Shape(16, 40, 6, 300, 32)}


class LatticeLoss(torch.autograd.Function):
    """The summed loss of (batch, time, labels + 1) log-probabilities of blank and label."""

    @staticmethod
    def forward(ctx: Any, blank: Tensor, label: Tensor, frames: Tensor, labels: Tensor) -> Tensor:
        """Return the sum."""
        lattice = build_lattice(blank, label, frames, labels)
        scores = forward_scores(lattice)
        ctx.save_for_backward(lattice.blank, lattice.label, frames, labels, scores)
        return -log_likelihood(lattice, scores).sum().float()

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return minus the posteriors."""
        *lattice, scores = ctx.saved_tensors
        by_blank, by_label = posteriors(Lattice(*lattice), scores)
        return -grad * by_blank.float(), -grad * by_label.float(), None, None


def joined(encoder: Tensor, predictor: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return all logits."""
    hidden = torch.tanh(encoder[:, :, None] + predictor[:, None])
    return torch.nn.functional.linear(hidden, weight, bias)


def plain(given: list[Tensor], targets: Tensor, frames: Tensor, labels: Tensor) -> Tensor:
    """Take a log-softmax of all logits, and differentiate it."""
    log_probabilities = joined(*given).log_softmax(-1)
    answers = torch.nn.functional.pad(targets, (0, 1))[:, None, :, None]
    index = answers.expand(*log_probabilities.shape[:3], 1)
    picked = (log_probabilities[..., 0], log_probabilities.gather(-1, index)[..., 0])
    loss = LatticeLoss.apply(*picked, frames, labels)
    del log_probabilities, picked
    loss.backward()
    return loss.detach()


def sub_batches(given: list[Tensor], *rest: Tensor) -> Tensor:
    """Do the same for a quarter of the batch, at least one utterance, after the other."""
    quarter = max(1, len(rest[0]) // 4)
    total = torch.zeros(())
    for start in range(0, len(rest[0]), quarter):
        part = slice(start, start + quarter)
        features = [tensor[part] for tensor in given[:2]]
        total += plain([*features, *given[2:]], *(tensor[part] for tensor in rest))
    return total


def gathered(given: list[Tensor], *rest: Tensor) -> Tensor:
    """Keep log-probabilities of blank and labels only; logits and their gradient exist."""
    loss = transducer_loss(joined(*given), *rest).sum()
    loss.backward()
    return loss.detach()


def tiled(tile: int) -> Callable[..., Tensor]:
    """Return the way by tiles of so many cells."""

    def way(given: list[Tensor], *rest: Tensor) -> Tensor:
        loss = joiner_transducer_loss(*given, *rest, tile=tile).sum()
        loss.backward()
        return loss.detach()

    return way


def way_of(name: str) -> Callable[..., Tensor]:
    """Return a way by its name; that of tiles is their size."""
    known = {PLAIN: plain, SPLIT: sub_batches, GATHERED: gathered}
    return known[name] if name in known else tiled(int(name))


def inputs(shape: Shape) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Return features and output layer, and what is to be said."""
    generator = torch.Generator().manual_seed(1)
    batch, joint = shape.batch, shape.joint
    sizes = [(batch, shape.time, joint), (batch, shape.labels + 1, joint)]
    sizes += [(shape.vocabulary, joint), (shape.vocabulary,)]
    drawn = [torch.randn(size, generator=generator) for size in sizes]
    drawn[2] *= joint**-0.5
    targets = torch.randint(1, shape.vocabulary, (batch, shape.labels), generator=generator)
    lengths = [torch.full((batch,), length) for length in (shape.time, shape.labels)]
    return [tensor.requires_grad_() for tensor in drawn], (targets, *lengths)
