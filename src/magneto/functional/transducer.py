"""The transducer loss, of logits and of a joiner whose logits never exist all at once.

And where a transducer emits each label: the best path, and the probability of each cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from magneto.functional.transducer_lattice import (
    TILE,
    Joiner,
    Lattice,
    best_path,
    build_lattice,
    forward_scores,
    labels_by_cell,
    log_likelihood,
    log_probabilities,
    parts,
    posteriors,
    to_gradient,
)


def transducer_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    *,
    tile: int = TILE,
) -> Tensor:
    """Return each utterance's negative log-likelihood under a transducer (arXiv 1211.3711).

    Logits are normalised here; log-probabilities may be given too, as that changes nothing of them.
    The softmax is in float32, of float64 logits in float64, and sums over paths are in float64.
    Beyond the logits and their gradient, memory is a tile's. It can be differentiated once.

    An utterance without a path of positive probability has an infinite loss, as has one without
    frames, and one with NaN has a NaN loss. Such a loss has a gradient of zero, whatever becomes of
    it, and reaches no other utterance. What stands in the padding does not matter, NaN included.
    More labels than frames are fine.

    Args:
        logits: (batch, time, labels + 1, vocabulary).
        targets: (batch, labels), in [0, vocabulary) and never the blank; any padding.
        logit_lengths: (batch,), frames of each utterance.
        target_lengths: (batch,), labels of each utterance, 0 included.
        blank: The blank's index in the vocabulary.
        tile: Cells that are worked on at once, at least 1.

    Returns:
        (batch,), in nats, float32 (of float64 logits float64).

    Raises:
        ValueError: If shapes do not fit, or, on a CPU, lengths or targets are out of their range.
            (On another device reading them would make the host wait.)
    """
    size = logits.shape
    check_logits(size, targets, logit_lengths, target_lengths, blank, tile)
    labels = next_labels(targets, target_lengths)
    return _eager(_LogitsLoss)(logits, labels, logit_lengths, target_lengths, blank, tile)


def joiner_transducer_loss(
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
) -> Tensor:
    """Return the transducer loss of the logits `tanh(encoder + predictor) @ weight.T + bias`.

    Neither the logits nor the hidden layer (batch x time x (labels + 1) x joint) exist at once:
    the forward pass takes them tile by tile and keeps three numbers per cell; the backward pass
    computes each tile again and turns it into its share of the gradients.

    Under autocast, matrices are multiplied in its type; everything else is in float32 (float64, if
    the features are), the weight's gradient is added up in the weight's type. For the rest it is as
    `transducer_loss`, which gives the same numbers.

    Args:
        encoder_features: (batch, time, joint), projected to the joiner's width.
        predictor_features: (batch, labels + 1, joint), projected too.
        weight: (vocabulary, joint), of the output layer.
        bias: (vocabulary,).
        targets: (batch, labels), in [0, vocabulary) and never the blank; any padding.
        encoder_lengths: (batch,), frames of each utterance.
        target_lengths: (batch,), labels of each utterance, 0 included.
        blank: The blank's index in the vocabulary.
        tile: Cells whose logits exist at once. A tile is whole utterances, or whole frames of one.

    Returns:
        (batch,), in nats.

    Raises:
        ValueError: As `transducer_loss`.
    """
    given = (encoder_features, predictor_features, weight)
    check_joiner(*given, targets, encoder_lengths, target_lengths, blank, tile)
    labels, lengths = next_labels(targets, target_lengths), (encoder_lengths, target_lengths)
    return _eager(_JoinerLoss)(*given, bias, labels, *lengths, blank, tile)


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
    given = (encoder_features, predictor_features, weight)
    check_joiner(*given, targets, encoder_lengths, target_lengths, blank, tile)
    joiner = Joiner(*given, bias, _operand(weight))
    found = joiner.log_probabilities(next_labels(targets, target_lengths), blank, tile)
    lattice = build_lattice(found[0], found[1], encoder_lengths, target_lengths)
    scores = forward_scores(lattice)
    by_blank, by_label = posteriors(lattice, scores)
    frames, score = best_path(lattice)
    total = log_likelihood(lattice, scores)
    return TransducerAlignment(frames, score, total, by_blank + by_label, by_label.contiguous())


def _eager(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return the function; a compiled model breaks its graph here.

    Otherwise every tile and every diagonal would be unrolled into the graph, anew for each shape.
    """
    if torch.compiler.is_compiling():
        return torch.compiler.disable(function.apply)
    return function.apply


class _LogitsLoss(torch.autograd.Function):
    """The loss of logits that exist."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        frames: Tensor,
        lengths: Tensor,
        blank: int,
        tile: int,
    ) -> Tensor:
        """Return the losses; keep two numbers per cell to go back."""
        rows, answers = logits.flatten(0, 2), labels_by_cell(labels, logits.shape[1])
        wide = torch.promote_types(logits.dtype, torch.float32)
        found = torch.empty(3, len(rows), dtype=wide, device=rows.device)
        buffer = torch.empty_like(rows[:tile], dtype=wide)
        for part in parts(len(rows), tile):
            given = buffer[: part.stop - part.start].copy_(rows[part])
            found[:, part] = log_probabilities(given, answers[part], blank)
        found = found.view(3, *logits.shape[:3])
        loss = _keep(ctx, found, frames, lengths, logits, labels)
        ctx.blank, ctx.tile = blank, tile
        return loss

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_loss: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Turn each tile of logits into its gradient."""
        (by_blank, by_label), total, lost, (logits, labels) = _kept(ctx)
        factor = grad_loss.masked_fill(lost, 0)[:, None, None].expand_as(total).flatten()
        rows, answers = logits.flatten(0, 2), labels_by_cell(labels, logits.shape[1])
        unseen = (by_blank + by_label).flatten()[:, None] == 0
        per_cell = (total.flatten(), answers, by_blank.flatten(), by_label.flatten())
        gradient = torch.empty_like(rows)
        buffer = torch.empty_like(rows[: ctx.tile], dtype=total.dtype)
        for part in parts(len(rows), ctx.tile):
            given = buffer[: part.stop - part.start].copy_(rows[part])
            given.masked_fill_(unseen[part], 0)
            sums, answer, *chances = (values[part] for values in per_cell)
            to_gradient(given, sums, answer, ctx.blank, *chances)
            gradient[part] = given.mul_(factor[part, None])
        return gradient.view(logits.shape), None, None, None, None, None


class _JoinerLoss(torch.autograd.Function):
    """The loss of logits that are made tile by tile, twice."""

    @staticmethod
    def forward(
        ctx: Any,
        encoder: Tensor,
        predictor: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        frames: Tensor,
        lengths: Tensor,
        blank: int,
        tile: int,
    ) -> Tensor:
        """Return the losses; keep two numbers per cell to go back."""
        joiner = Joiner(encoder, predictor, weight, bias, _operand(weight))
        found = joiner.log_probabilities(labels, blank, tile)
        loss = _keep(ctx, found, frames, lengths, encoder, predictor, weight, bias, labels)
        ctx.blank, ctx.tile, ctx.operand = blank, tile, joiner.operand
        return loss

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_loss: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Make each tile again, and turn it into its share of the gradients."""
        chances, total, lost, (encoder, predictor, weight, bias, labels) = _kept(ctx)
        joiner = Joiner(encoder, predictor, weight, bias, ctx.operand)
        factor = grad_loss.masked_fill(lost, 0)
        found = joiner.gradients(
            labels, ctx.blank, ctx.tile, total, chances, factor, ctx.needs_input_grad[:4]
        )
        return (*found, None, None, None, None, None)


def _operand(weight: Tensor) -> torch.dtype:
    """Return the type in which matrices are multiplied."""
    device = weight.device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else weight.dtype


def _keep(
    ctx: Any, found: Tensor, frames: Tensor, lengths: Tensor, *given: Tensor | None
) -> Tensor:
    """Return the losses of (3, batch, time, labels + 1) numbers; save what goes back.

    Args:
        ctx: Of the autograd function.
        found: log p(blank), log p(label) and the log of the sum of exponentials.
        frames: (batch,).
        lengths: (batch,), labels.
        given: What else is to be saved.
    """
    lattice = build_lattice(found[0], found[1], frames, lengths)
    scores = forward_scores(lattice)
    loss = -log_likelihood(lattice, scores).to(found.dtype)
    saved = (lattice.blank, lattice.label, frames, lengths, scores)
    ctx.save_for_backward(*saved, found[2].clone(), loss, *given)
    return loss


def _kept(ctx: Any) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor, tuple[Tensor, ...]]:
    """Return posteriors, the sums' logarithms, which losses are not finite, and what was given."""
    blank, label, frames, lengths, scores, total, loss, *given = ctx.saved_tensors
    by_blank, by_label = posteriors(Lattice(blank, label, frames, lengths), scores)
    chances = (by_blank.to(total.dtype), by_label.to(total.dtype))
    return chances, total, ~loss.isfinite(), tuple(given)


def check_joiner(encoder: Tensor, predictor: Tensor, weight: Tensor, *rest: Any) -> None:
    """Raise a ValueError that says what does not fit."""
    shapes = [tuple(tensor.shape) for tensor in (encoder, predictor, weight)]
    if (
        [len(shape) for shape in shapes] != [3, 3, 2]
        or shapes[0][::2] != shapes[1][::2]
        or shapes[0][2] != shapes[2][1]
    ):
        raise ValueError(
            "encoder (batch, time, joint), predictor (batch, labels + 1, joint) and weight "
            f"(vocabulary, joint) do not fit: {shapes[0]}, {shapes[1]}, {shapes[2]}"
        )
    check_logits((*shapes[0][:2], shapes[1][1], shapes[2][0]), *rest)


def check_logits(
    size: tuple[int, ...],
    targets: Tensor,
    frames: Tensor,
    labels: Tensor,
    blank: int,
    tile: int,
) -> None:
    """Raise a ValueError that says what does not fit."""
    if len(size) != 4 or 0 in size:
        raise ValueError(f"logits must be (batch, time, labels + 1, vocabulary), not {tuple(size)}")
    if targets.shape != (size[0], size[2] - 1):
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit (batch, time, labels + 1, "
            f"vocabulary) {tuple(size)}: they must be (batch, labels), {(size[0], size[2] - 1)}"
        )
    if frames.shape != size[:1] or labels.shape != size[:1]:
        raise ValueError(f"there must be two lengths for each of the {size[0]} utterances")
    if not 0 <= blank < size[3] or tile < 1:
        raise ValueError(f"blank {blank} must be in [0, {size[3]}), and tile {tile} at least 1")
    for name, lengths, most in (("frames", frames, size[1]), ("labels", labels, size[2] - 1)):
        if any_on_a_cpu((lengths < 0) | (lengths > most)):
            raise ValueError(f"lengths in {name} must be in [0, {most}], not {lengths.tolist()}")
    inside = torch.arange(targets.shape[1], device=targets.device) < labels[:, None]
    wrong = inside & ((targets < 0) | (targets >= size[3]) | (targets == blank))
    if any_on_a_cpu(wrong):
        raise ValueError(
            f"targets must be in [0, {size[3]}) and not the blank {blank}; "
            f"{sorted(set(targets[wrong].tolist()))} are not"
        )


def any_on_a_cpu(wrong: Tensor) -> bool:
    """Return whether any is True, on a CPU alone: on another device that would make the host wait.

    torch's own assertion is one operation, which reads nothing into Python.
    """
    if wrong.device.type != "cpu":
        return False
    try:
        torch._assert_async(~wrong.any())  # pyright: ignore[reportPrivateImportUsage]
    except RuntimeError:
        return True
    return False


def next_labels(targets: Tensor, lengths: Tensor) -> Tensor:
    """Return the label that each of the labels + 1 positions emits next, 0 where there is none."""
    position = torch.arange(targets.shape[1], device=targets.device)
    return F.pad(targets.masked_fill(position >= lengths[:, None], 0), (0, 1))
