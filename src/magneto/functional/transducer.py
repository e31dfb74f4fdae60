"""Transducer loss of given logits or of a joiner's logits, and alignment of labels and frames.

Cell (t, u) of the lattice is at frame t after u labels. A path starts in cell (0, 0). A blank leads
to cell (t + 1, u), and the next label leads to cell (t, u + 1). The path ends with the last frame's
blank after the last label (arXiv 1211.3711, section 2.4). A frame may emit any number of labels.

Cell (t, u) is on anti-diagonal t + u. Cells of a diagonal depend only on the next or previous
diagonal, so the number of steps for a batch is the number of frames plus the number of labels. Sums
over paths are in float64, since float32 has too few digits for log-probabilities in the thousands.
Float64 costs little memory, since the sums need only two numbers per cell.

Each cell has as many logits as the vocabulary has tokens. Logits exist for one tile of cells at a
time. A tile's logits are converted to log-probabilities, or in place to the gradient of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from magneto.functional.cross_entropy import accumulate, operand_type, project, softmax_

TILE = 1024
"""Default number of cells with logits in memory at once."""
# A step of four utterances, 400 frames, 60 labels, vocabulary 500, joint width 640, on one thread
# (one measurement each):
#   cells                256  1024  4096
#   processor seconds    5.6   4.6   4.6
#   MB                    19    30    66


def transducer_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
) -> Tensor:
    """Return each utterance's negative log-likelihood under a transducer (arXiv 1211.3711).

    Logits are normalised by softmax. Log-probabilities may be given too, since normalising does not
    change them. The softmax is in float32 (float64 for float64 logits), and sums over paths are in
    float64. The forward pass copies the logits once. The loss can be differentiated once.

    The loss is infinite if no path has positive probability or there are no frames, and NaN if a
    logit is NaN. The gradient of an infinite or NaN loss is zero, and other utterances are
    unaffected. Padding may hold any values, including NaN. More labels than frames are allowed.

    Args:
        logits: Logits of each cell, (batch, time, labels + 1, vocabulary).
        targets: Labels in [0, vocabulary) except the blank, (batch, labels); padding may be any
            value.
        logit_lengths: Number of frames of each utterance, (batch,).
        target_lengths: Number of labels of each utterance, possibly 0, (batch,).
        blank: Index of the blank in the vocabulary.

    Returns:
        Losses in nats, (batch,), float32 (float64 for float64 logits).

    Raises:
        ValueError: If shapes do not fit, or, on a CPU, lengths or targets are out of range. On
            other devices the check of values would make the host wait.
    """
    check_logits(logits.shape, targets, logit_lengths, target_lengths, blank)
    labels = next_labels(targets, target_lengths)
    return _eager(_LogitsLoss)(logits, labels, logit_lengths, target_lengths, blank)


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

    The full logits and the full hidden layer (batch x time x (labels + 1) x joint) are never in
    memory. The forward pass computes logits and hidden layer in tiles and stores three numbers per
    cell. The backward pass computes each tile again and adds its share of the gradients.

    Under autocast, matrix products are in autocast's type. All operations except matrix products
    are in float32 (float64 for float64 features), and the weight's gradient is summed in the
    weight's type. Apart from memory and precision, the loss equals `transducer_loss` of these
    logits.

    Args:
        encoder_features: Encoder features projected to the joiner's width, (batch, time, joint).
        predictor_features: Predictor features projected to the joiner's width, (batch, labels + 1,
            joint).
        weight: Weight of the output layer, (vocabulary, joint).
        bias: Bias of the output layer, (vocabulary,).
        targets: Labels in [0, vocabulary) except the blank, (batch, labels); padding may be any
            value.
        encoder_lengths: Number of frames of each utterance, (batch,).
        target_lengths: Number of labels of each utterance, possibly 0, (batch,).
        blank: Index of the blank in the vocabulary.
        tile: Number of cells with logits in memory at once. A tile consists of whole utterances, or
            of whole frames of one utterance.

    Returns:
        Losses in nats, (batch,).

    Raises:
        ValueError: As for `transducer_loss`.
    """
    given = (encoder_features, predictor_features, weight)
    check_joiner(*given, targets, encoder_lengths, target_lengths, blank)
    labels, lengths = next_labels(targets, target_lengths), (encoder_lengths, target_lengths)
    return _eager(_JoinerLoss)(*given, bias, labels, *lengths, blank, tile)


@dataclass(frozen=True)
class TransducerAlignment:
    """Alignment of frames and labels of each utterance.

    Attributes:
        frames: Frame at which the best path emits each label, (batch, labels); -1 for padding and
            utterances without a path.
        score: Log-probability of the best path in nats, (batch,).
        log_likelihood: Log-probability of all paths, which is minus the loss, (batch,).
        occupancy: Probability that a path visits cell (t, u), at frame t after u labels, (batch,
            time, labels + 1); 0 in padding.
    """

    frames: Tensor
    score: Tensor
    log_likelihood: Tensor
    occupancy: Tensor


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
    """Align targets with frames; arguments are those of `joiner_transducer_loss`.

    The function needs the memory of a tile and of a few numbers per cell. Results are in float64.

    Raises:
        ValueError: As for `joiner_transducer_loss`.
    """
    given = (encoder_features, predictor_features, weight)
    check_joiner(*given, targets, encoder_lengths, target_lengths, blank)
    found = Joiner(*given, bias).numbers(next_labels(targets, target_lengths), blank, tile)
    lattice = build_lattice(found[0], found[1], encoder_lengths, target_lengths)
    scores = forward_scores(lattice)
    by_blank, by_label = posteriors(lattice, scores)
    total = log_likelihood(lattice, scores)
    return TransducerAlignment(*best_path(lattice), total, by_blank + by_label)


def _eager(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return the function, with a graph break before each call in compiled models.

    Without a graph break, every tile and diagonal would be unrolled into the compiled graph for
    each shape.
    """
    if torch.compiler.is_compiling():
        return torch.compiler.disable(function.apply)
    return function.apply


class _LogitsLoss(torch.autograd.Function):
    """Transducer loss of given logits."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, frames: Tensor, lengths: Tensor, blank: int
    ) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        copied = logits.to(wide, copy=True).flatten(0, 2)
        found = cell_numbers(copied, labels, logits.shape[:3], blank)
        ctx.blank = blank
        return _save(ctx, found, frames, lengths, logits, labels)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_loss: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Convert a copy of the logits to their gradient."""
        chances, total, factor, (logits, labels) = _saved(ctx, grad_loss)
        # No path visits padding, whose logits may have any values.
        unseen = (chances[0] + chances[1] == 0)[..., None]
        gradient = logits.masked_fill(unseen, 0).to(total.dtype).contiguous()
        to_gradient(gradient.view(-1, logits.shape[3]), total, labels, ctx.blank, *chances)
        gradient.mul_(factor[:, None, None, None])
        return gradient.to(logits.dtype), None, None, None, None


class _JoinerLoss(torch.autograd.Function):
    """Transducer loss of a joiner; forward and backward pass compute the logits in tiles."""

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
        joiner = Joiner(encoder, predictor, weight, bias)
        found = joiner.numbers(labels, blank, tile)
        ctx.blank, ctx.tile, ctx.operand = blank, tile, joiner.operand
        return _save(ctx, found, frames, lengths, encoder, predictor, weight, bias, labels)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_loss: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Compute each tile again, and add its share of the gradients."""
        chances, total, factor, (encoder, predictor, weight, bias, labels) = _saved(ctx, grad_loss)
        operand, wanted = ctx.operand, ctx.needs_input_grad
        # No path visits padding, nor utterances without a finite loss.
        passed = chances[0] + chances[1]
        joiner = Joiner(
            encoder.masked_fill(~passed.any(2)[..., None], 0),
            predictor.masked_fill(~passed.any(1)[..., None], 0), weight, bias, operand,
        )  # fmt: skip
        matrix = weight.to(operand)
        grad_encoder = torch.empty_like(encoder)
        grad_predictor = torch.zeros_like(predictor, dtype=total.dtype)
        grad_weight = grad_bias = None
        for at, hidden, logits in joiner.tiles(ctx.tile):
            tile_chances = (each[at] for each in chances)
            to_gradient(logits, total[at], labels[at[0]], ctx.blank, *tile_chances)
            grad, scale = logits.to(operand), factor[at[0], None, None, None]
            if wanted[2]:
                scaled = (hidden * scale).flatten(0, 2).to(operand)
                grad_weight = accumulate(grad_weight, grad.t(), scaled, weight.dtype)
            if wanted[3] and bias is not None:
                each = scale.expand(*hidden.shape[:3], 1).reshape(1, -1).to(operand)
                grad_bias = accumulate(grad_bias, each, grad, bias.dtype)
            if wanted[0] or wanted[1]:
                inner = torch.mm(grad, matrix).to(total.dtype).view_as(hidden)
                inner.mul_(hidden.square_().neg_().add_(1)).mul_(scale)
                grad_encoder[at] = inner.sum(2).to(encoder.dtype)
                grad_predictor[at[0]] += inner.sum(1)
        return (
            grad_encoder if wanted[0] else None,
            grad_predictor.to(predictor.dtype) if wanted[1] else None,
            grad_weight,
            None if grad_bias is None else grad_bias[0],
            *[None] * 5,
        )


def _save(
    ctx: Any, found: Tensor, frames: Tensor, lengths: Tensor, *given: Tensor | None
) -> Tensor:
    """Return the losses from the result of `cell_numbers`; save tensors for the backward pass."""
    lattice = build_lattice(found[0], found[1], frames, lengths)
    scores = forward_scores(lattice)
    loss = -log_likelihood(lattice, scores).to(found.dtype)
    saved = (lattice.blank, lattice.label, frames, lengths, scores)
    ctx.save_for_backward(*saved, found[2].clone(), loss, *given)
    return loss


def _saved(ctx: Any, grad_loss: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor, tuple]:
    """Return posteriors, logarithms of softmax sums, each utterance's factor, and saved inputs.

    The factor is the gradient of the utterance's loss, or 0 if the loss is not finite.
    """
    blank, label, frames, lengths, scores, total, loss, *given = ctx.saved_tensors
    by_blank, by_label = posteriors(Lattice(blank, label, frames, lengths), scores)
    chances = (by_blank.to(total.dtype), by_label.to(total.dtype))
    return chances, total, grad_loss.masked_fill(~loss.isfinite(), 0), tuple(given)


Place = tuple[slice, slice]
"""Slices of the batch and of the time."""
Tiles = Iterator[tuple[Place, Tensor, Tensor]]
"""Tiles of the lattice: slices, hidden layer (utterances, frames, labels + 1, joint), and logits
(cells, vocabulary). The next tile overwrites the logits. Logits have the dtype of the features, or
float32 if float32 is wider."""


def places(shape: tuple[int, ...], cells: int, fake: bool) -> Iterator[Place]:
    """Yield the tiles of a (batch, time, labels + 1) lattice, of about `cells` cells each.

    A tile consists of whole utterances, or of whole frames of one utterance. For tensors without
    values, two tiles are enough to measure the peak memory.
    """
    batch, time, width = shape
    utterances = max(1, cells // max(1, time * width))
    frames = time if utterances > 1 else max(1, min(time, cells // width))
    found = (
        (slice(row, min(row + utterances, batch)), slice(column, min(column + frames, time)))
        for row in range(0, batch, utterances)
        for column in range(0, time, frames)
    )
    return islice(found, 2 if fake else None)


class Joiner:
    """Features and output layer of a joiner.

    Args:
        encoder: Encoder features, (batch, time, joint).
        predictor: Predictor features, (batch, labels + 1, joint).
        weight: Weight of the output layer, (vocabulary, joint).
        bias: Bias of the output layer, (vocabulary,).
        operand: Type of the matrix products (default: autocast's, or the weight's).
    """

    def __init__(
        self,
        encoder: Tensor,
        predictor: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        operand: torch.dtype | None = None,
    ) -> None:
        self.encoder, self.predictor, self.weight, self.bias = encoder, predictor, weight, bias
        self.operand = operand or operand_type(weight)
        self.dtype = torch.promote_types(
            torch.promote_types(encoder.dtype, predictor.dtype), torch.float32
        )
        self.shape = (len(encoder), encoder.shape[1], predictor.shape[1])

    def tiles(self, cells: int) -> Tiles:
        """Yield all tiles of about `cells` cells."""
        weight = self.weight.to(self.operand)
        bias = None if self.bias is None else self.bias.to(self.operand)
        buffer = None
        for rows, columns in places(self.shape, cells, is_fake(weight)):
            encoder = self.encoder[rows, columns, None].to(self.dtype)
            hidden = (encoder + self.predictor[rows, None].to(self.dtype)).tanh_()
            flat = hidden.flatten(0, 2).to(self.operand)
            if buffer is None:  # shared, because the first touch of a new one is slow
                buffer = flat.new_empty(len(flat), len(weight), dtype=self.dtype)
            yield (rows, columns), hidden, project(flat, weight, bias, buffer[: len(flat)])

    def numbers(self, labels: Tensor, blank: int, cells: int) -> Tensor:
        """Return `cell_numbers` of the whole lattice, computed in tiles of about `cells` cells."""
        found = torch.empty(3, *self.shape, dtype=self.dtype, device=labels.device)
        for (rows, columns), _, logits in self.tiles(cells):
            part = found[:, rows, columns]
            part.copy_(cell_numbers(logits, labels[rows], part.shape[1:], blank))
        return found


def cell_numbers(logits: Tensor, labels: Tensor, shape: tuple[int, ...], blank: int) -> Tensor:
    """Return each cell's log p(blank), log p(label), and logarithm of the softmax sum.

    Args:
        logits: Logits, (cells, vocabulary), which are overwritten.
        labels: Next label of each position, (batch, labels + 1).
        shape: Shape of the cells: batch, time, labels + 1.
        blank: Index of the blank.

    Returns:
        Three numbers per cell, (3, batch, time, labels + 1).
    """
    answers = labels[:, None].expand(shape).reshape(-1, 1)
    picked = torch.stack((logits[:, blank], logits.gather(1, answers)[:, 0]))
    total = softmax_(logits)[:, 0]
    return torch.cat((picked - total, total[None])).view(3, *shape)


def to_gradient(
    logits: Tensor, total: Tensor, labels: Tensor, blank: int, by_blank: Tensor, by_label: Tensor
) -> None:
    """Convert logits to the gradient of the negative log-likelihood, in place.

    Args:
        logits: Logits, (cells, vocabulary), finite also in cells without a path.
        total: Logarithm of each cell's softmax sum, (batch, time, labels + 1).
        labels: Next label of each position, (batch, labels + 1).
        blank: Index of the blank.
        by_blank: Probability that a path leaves a cell by the blank, shaped like `total`.
        by_label: Probability that a path leaves a cell by the label, shaped like `total`.
    """
    passed = by_blank + by_label
    answers = labels[:, None].expand(total.shape).reshape(-1, 1)
    # The softmax exp(logits - total), scaled by `passed`.
    shift = (total - passed.log()).masked_fill(passed == 0, torch.inf)
    logits.sub_(shift.reshape(-1, 1)).exp_()
    logits[:, blank] -= by_blank.flatten()
    logits.scatter_add_(1, answers, -by_label.reshape(-1, 1))


@dataclass(frozen=True)
class Lattice:
    """Log-probabilities of a blank and of the next label in each cell, by anti-diagonal.

    Attributes:
        blank: Log-probability of a blank, (time + labels, batch, labels + 1), float64, -inf outside
            the lattice.
        label: Log-probability of the next label, shaped like `blank`. It is also -inf after an
            utterance's last label.
        frames: Number of frames of each utterance, (batch,).
        labels: Number of labels of each utterance, (batch,).
    """

    blank: Tensor
    label: Tensor
    frames: Tensor
    labels: Tensor


def build_lattice(blank: Tensor, label: Tensor, frames: Tensor, labels: Tensor) -> Lattice:
    """Convert log-probabilities, (batch, time, labels + 1), to diagonals; padding becomes -inf."""
    batch, time, width = blank.shape
    frame, position = (torch.arange(size, device=blank.device) for size in (time, width))
    inside = frame[:, None] < frames[:, None, None]
    shape = (time + width - 1, batch, width)
    lattice = Lattice(_impossible(shape, blank), _impossible(shape, blank), frames, labels)
    last = labels[:, None, None]
    cells(lattice.blank).copy_(blank.masked_fill(~(inside & (position <= last)), -torch.inf))
    cells(lattice.label).copy_(label.masked_fill(~(inside & (position < last)), -torch.inf))
    return lattice


def cells(diagonals: Tensor) -> Tensor:
    """View diagonals, (time + labels, batch, labels + 1), as frames, (batch, time, labels + 1)."""
    steps, batch, width = diagonals.shape
    row = batch * width
    return diagonals.as_strided((batch, steps - width + 1, width), (width, row, row + 1))


def _impossible(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.full(shape, -torch.inf, dtype=torch.float64, device=like.device)


def forward_scores(lattice: Lattice, join: Callable[..., Tensor] = torch.logaddexp) -> Tensor:
    """Return the log-probability of all paths from the start to each cell, by diagonals.

    With `torch.maximum` as `join`, the result is that of the most probable path.
    """
    blank, label = lattice.blank, lattice.label
    scores = _impossible(blank.shape, blank)
    scores[0, :, 0].zero_()
    if without_values(blank):  # a negligible share of the counted operations
        return scores
    for n in range(len(blank) - 1):
        stay, move = scores[n] + blank[n], scores[n] + label[n]
        scores[n + 1, :, 0] = stay[:, 0]
        join(stay[:, 1:], move[:, :-1], out=scores[n + 1, :, 1:])
    return scores


def is_fake(tensor: Tensor) -> bool:
    return hasattr(tensor, "fake_mode")


def without_values(tensor: Tensor) -> bool:
    """Return whether a tensor has a shape but no values: a meta or fake tensor."""
    return tensor.is_meta or is_fake(tensor)


def log_likelihood(lattice: Lattice, scores: Tensor) -> Tensor:
    """Return the log-probability of all paths, (batch,); -inf if there is no path."""
    utterance = torch.arange(len(lattice.frames), device=scores.device)
    last = (lattice.frames - 1 + lattice.labels).clamp(min=0)
    # The cell of the last blank.
    return (scores + lattice.blank)[last, utterance, lattice.labels]


def backward_scores(lattice: Lattice) -> Tensor:
    """Return the log-probability of all paths from each cell to the end, by diagonals.

    The end is after the last frame, so the result has one more diagonal than the lattice.
    """
    blank, label = lattice.blank, lattice.label
    steps, batch, width = blank.shape
    scores = _impossible((steps + 1, batch, width), blank)
    if without_values(blank):
        return scores
    utterance = torch.arange(batch, device=blank.device)
    end = (lattice.frames + lattice.labels, utterance, lattice.labels)
    scores.index_put_(end, scores.new_zeros(()))  # a Python 0 would be copied from the host
    for n in range(steps - 1, -1, -1):
        found = scores[n + 1] + blank[n]
        move = scores[n + 1, :, 1:] + label[n, :, :-1]
        torch.logaddexp(found[:, :-1], move, out=found[:, :-1])
        torch.maximum(scores[n], found, out=scores[n])  # keeps the end cell
    return scores


def posteriors(lattice: Lattice, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities that a path leaves a cell by the blank, and by the label.

    These probabilities are minus the gradients of the negative log-likelihood with respect to the
    lattice's log-probabilities.

    Args:
        lattice: Lattice of the batch.
        scores: Result of `forward_scores`.

    Returns:
        Two float64 tensors, (batch, time, labels + 1), with zeros for utterances whose
        log-likelihood is not finite.
    """
    total = log_likelihood(lattice, scores)[:, None]
    onward = backward_scores(lattice)[1:]
    by_blank = scores + lattice.blank + onward - total
    by_label = _impossible(scores.shape, scores)
    by_label[..., :-1] = (scores + lattice.label - total)[..., :-1] + onward[..., 1:]
    lost = ~total.isfinite()
    by_blank, by_label = (x.exp().masked_fill(lost, 0) for x in (by_blank, by_label))
    return cells(by_blank), cells(by_label)


def best_path(lattice: Lattice) -> tuple[Tensor, Tensor]:
    """Return the most probable path.

    Returns:
        The first tensor is the frame at which each label is emitted, (batch, labels); -1 for
        padding and utterances without a path. The second tensor is the path's log-probability,
        (batch,). Ties are broken arbitrarily.
    """
    scores = forward_scores(lattice, torch.maximum)
    steps, batch, width = scores.shape
    # Whether the path to a cell comes by a label.
    moved = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    stay, move = (scores + by for by in (lattice.blank, lattice.label))
    moved[1:, :, 1:] = move[:-1, :, :-1] > stay[:-1, :, 1:]
    total = log_likelihood(lattice, scores)
    position = lattice.labels.masked_fill(~total.isfinite(), 0)
    last = lattice.frames - 1 + position
    utterance = torch.arange(batch, device=scores.device)
    # An extra column receives the blanks.
    frames = torch.full((batch, width), -1, device=scores.device)
    for n in range(steps - 1, 0, -1):
        emitted = moved[n, utterance, position] & (last >= n)
        column = torch.where(emitted, position - 1, width - 1)
        frames[utterance, column] = n - position
        position = position - emitted.long()
    return frames[:, :-1], total


def check_joiner(encoder: Tensor, predictor: Tensor, weight: Tensor, *rest: Any) -> None:
    """Raise ValueError if shapes do not fit or values are out of range."""
    shapes = [tuple(tensor.shape) for tensor in (encoder, predictor, weight)]
    if (
        [len(shape) for shape in shapes] != [3, 3, 2]
        or shapes[0][::2] != shapes[1][::2]
        or shapes[0][2] != shapes[2][1]
    ):
        raise ValueError("encoder (batch, time, joint), predictor (batch, labels + 1, joint) and "
                         "weight (vocabulary, joint) do not fit: "
                         f"{shapes[0]}, {shapes[1]}, {shapes[2]}")  # fmt: skip
    check_logits((*shapes[0][:2], shapes[1][1], shapes[2][0]), *rest)


def check_logits(
    size: tuple[int, ...], targets: Tensor, frames: Tensor, labels: Tensor, blank: int
) -> None:
    """Raise ValueError if shapes do not fit or values are out of range."""
    shapes = [tuple(tensor.shape) for tensor in (targets, frames, labels)]
    if (
        len(size) != 4
        or 0 in size
        or shapes != [(size[0], size[2] - 1), tuple(size[:1]), tuple(size[:1])]
    ):
        raise ValueError("logits (batch, time, labels + 1, vocabulary), targets (batch, labels), "
                         "and lengths in frames and in labels (batch,) do not fit: "
                         f"{tuple(size)}, {shapes[0]}, {shapes[1]}, {shapes[2]}")  # fmt: skip
    if not 0 <= blank < size[3]:
        raise ValueError(f"blank must be in [0, {size[3]}), not {blank}")
    for name, lengths, most in (("frames", frames, size[1]), ("labels", labels, size[2] - 1)):
        if any_on_a_cpu((lengths < 0) | (lengths > most)):
            raise ValueError(f"lengths in {name} must be in [0, {most}], not {lengths.tolist()}")
    inside = torch.arange(targets.shape[1], device=targets.device) < labels[:, None]
    wrong = inside & ((targets < 0) | (targets >= size[3]) | (targets == blank))
    if any_on_a_cpu(wrong):
        raise ValueError(f"targets must be in [0, {size[3]}) and differ from the blank {blank}; "
                         f"wrong: {sorted(set(targets[wrong].tolist()))}")  # fmt: skip


def any_on_a_cpu(wrong: Tensor) -> bool:
    """Return whether any value is True; False for a tensor that is not on a CPU.

    On other devices the host would wait for the value. torch's assertion is a single operation that
    reads no value into Python.
    """
    if wrong.device.type != "cpu":
        return False
    try:
        torch._assert_async(~wrong.any())  # pyright: ignore[reportPrivateImportUsage]
    except RuntimeError:
        return True
    return False


def next_labels(targets: Tensor, lengths: Tensor) -> Tensor:
    """Return the next label at each of the labels + 1 positions; 0 after the last label."""
    position = torch.arange(targets.shape[1], device=targets.device)
    return F.pad(targets.masked_fill(position >= lengths[:, None], 0), (0, 1))
