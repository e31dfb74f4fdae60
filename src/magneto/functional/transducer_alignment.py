"""Where a transducer emits each label: the best path, and the probability of each cell."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from magneto.functional.transducer import joiner_lattice
from magneto.functional.transducer_lattice import (
    best_path,
    forward_scores,
    log_likelihood,
    posteriors,
)
from magneto.functional.transducer_tiles import TILE


@dataclass(frozen=True)
class TransducerAlignment:
    """How frames and labels of each utterance go together.

    Attributes:
        frames: (batch, labels), the frame at which the best path emits each label; -1 for padding,
            and for all labels of an utterance without a path.
        score: (batch,), the best path's log-probability, in nats.
        log_likelihood: (batch,), that of all paths together: minus the loss.
        occupancy: (batch, time, labels + 1), the probability that a path passes a cell; 0 in
            padding. A path passes cell (t, u) if it looks at frame t when u labels are out.
        emission: (batch, time, labels + 1), the probability that label u is emitted at frame t.
    """

    frames: Tensor
    score: Tensor
    log_likelihood: Tensor
    occupancy: Tensor
    emission: Tensor


@torch.no_grad()
def transducer_alignment(
    encoder_features: Tensor,
    predictor_features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    encoder_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    *,
    tile: int = TILE,
) -> TransducerAlignment:
    """Align targets with frames, given what `joiner_transducer_loss` is given.

    Memory is a tile's and some numbers per cell of the lattice. All results are in float64.

    Raises:
        ValueError: As `joiner_transducer_loss`.
    """
    lattice = joiner_lattice(
        encoder_features, predictor_features, weight, bias, targets, encoder_lengths,
        target_lengths, blank, tile=tile,
    )  # fmt: skip
    scores = forward_scores(lattice)
    by_blank, by_label = posteriors(lattice, scores)
    frames, score = best_path(lattice)
    total = log_likelihood(lattice, scores)
    return TransducerAlignment(frames, score, total, by_blank + by_label, by_label.contiguous())
