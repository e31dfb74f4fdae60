"""Transducer loss, and alignment of labels with frames.

Cell (t, u) of the lattice is at frame t after u labels. A path starts in cell (0, 0). A blank leads
to cell (t + 1, u), and the next label leads to cell (t, u + 1). A path ends with a blank at the
last frame, after all labels (arXiv 1211.3711, section 2.4). A frame may emit any number of labels.

Cell (t, u) is on anti-diagonal t + u, and all cells of a diagonal are computed at once. Sums over
paths are in float64, since float32 has too few digits for log-probabilities in the thousands.

Each cell has as many logits as the vocabulary has tokens. To save memory, logits are computed for
one tile of cells at a time. The backward pass computes them again, unless the lattice is small.
"""

from __future__ import annotations

import math
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
"""Default number of cells whose logits are in memory at once."""
# A step of four utterances, 400 frames, 60 labels, vocabulary 500, joint width 640, on one thread
# (one measurement each):
#   cells                256  1024  4096
#   processor seconds    5.6   4.6   4.6
#   MB                    19    30    66
KEPT = 2**24
"""Default number of probabilities that are kept for the backward pass, 67 MB in float32."""
# Tiles that are computed on fake tensors: enough to measure the peak memory.
FAKE_TILES = 2


def transducer_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
) -> Tensor:
    """Return each utterance's negative log-likelihood under a transducer (arXiv 1211.3711).

    The loss normalises the logits by softmax, so `logits` may also be log-probabilities. The loss
    can be differentiated only once.

    The loss is infinite if there are no frames, or if no path has a positive probability. The loss
    is NaN if a logit is NaN. An utterance whose loss is infinite or NaN has a zero gradient, and
    affects no other utterance. Padding may have any values, including NaN.

    Args:
        logits: Logits of each cell, (batch, time, labels + 1, vocabulary).
        targets: Labels in [0, vocabulary) except the blank, (batch, labels).
        logit_lengths: Number of frames of each utterance, (batch,).
        target_lengths: Number of labels of each utterance, possibly 0, (batch,).
        blank: Index of the blank in the vocabulary.

    Returns:
        Losses in nats, (batch,), float32 (float64 for float64 logits).

    Raises:
        ValueError: If shapes do not fit, or if a length or a target is out of range (checked only
            on a CPU).
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
    kept: int = KEPT,
) -> Tensor:
    """Return the transducer loss of the logits `tanh(encoder + predictor) @ weight.T + bias`.

    Apart from rounding, the loss equals `transducer_loss` of the logits. The forward pass and the
    backward pass compute logits and hidden layer in tiles, to save memory. If there are at most
    `kept` logits, the backward pass reuses the probabilities of the forward pass, to save time.
    Under autocast, matrix products are in autocast's type, and the softmax is at least in float32.

    Args:
        encoder_features: Encoder features with the joiner's width, (batch, time, joint).
        predictor_features: Predictor features with the joiner's width, (batch, labels + 1,
            joint).
        weight: Weight of the output layer, (vocabulary, joint).
        bias: Bias of the output layer, (vocabulary,).
        targets: Labels in [0, vocabulary) except the blank, (batch, labels).
        encoder_lengths: Number of frames of each utterance, (batch,).
        target_lengths: Number of labels of each utterance, possibly 0, (batch,).
        blank: Index of the blank in the vocabulary.
        tile: Approximate number of cells whose logits are in memory at once.
        kept: Largest number of logits whose probabilities are kept for the backward pass.

    Returns:
        Losses in nats, (batch,).

    Raises:
        ValueError: As for `transducer_loss`.
    """
    given = (encoder_features, predictor_features, weight)
    check_joiner(*given, targets, encoder_lengths, target_lengths, blank)
    labels, lengths = next_labels(targets, target_lengths), (encoder_lengths, target_lengths)
    sizes = (tile, kept if torch.is_grad_enabled() else 0)
    return _eager(_JoinerLoss)(*given, bias, labels, *lengths, blank, *sizes)


@dataclass(frozen=True)
class TransducerAlignment:
    """Alignment of labels with frames.

    Attributes:
        frames: Frame at which the best path emits each label, (batch, labels). The frame is -1 for
            padding and for utterances without a path.
        score: Log-probability of the best path in nats, (batch,).
        log_likelihood: Log-probability of all paths, which is minus the loss, (batch,).
        occupancy: For each cell, the probability that a path visits the cell, (batch, time,
            labels + 1); 0 in padding.
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
    """Align labels with frames; the arguments are those of `joiner_transducer_loss`.

    Log-probabilities and probabilities are in float64.

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
    # Without a graph break, the compiled graph would contain every tile and diagonal.
    if torch.compiler.is_compiling():
        return torch.compiler.disable(function.apply)
    return function.apply


class _LogitsLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, frames: Tensor, lengths: Tensor, blank: int
    ) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        copied = logits.to(wide, copy=True)
        found = cell_numbers(copied, labels, blank)
        ctx.blank = blank
        return _save(ctx, found, frames, lengths, logits, labels)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_loss: Tensor
    ) -> tuple[Tensor | None, ...]:
        chances, factor, (logits, labels) = _saved(ctx, grad_loss)
        gradient = logits.softmax(-1, dtype=chances[0].dtype)
        to_gradient(gradient, gradient, labels, ctx.blank, *chances)
        gradient.mul_(factor[:, None, None, None])
        return gradient.to(logits.dtype), None, None, None, None


class _JoinerLoss(torch.autograd.Function):
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
        kept: int,
    ) -> Tensor:
        joiner = Joiner(encoder, predictor, weight, bias)
        shape = (*joiner.shape, len(weight))
        keep = any(ctx.needs_input_grad) and math.prod(shape) <= kept
        probabilities = encoder.new_empty(shape, dtype=joiner.dtype) if keep else None
        found = joiner.numbers(labels, blank, tile, probabilities)
        ctx.blank, ctx.tile, ctx.operand = blank, tile, joiner.operand
        given = (encoder, predictor, weight, bias)
        return _save(ctx, found, frames, lengths, *given, labels, probabilities)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_loss: Tensor
    ) -> tuple[Tensor | None, ...]:
        chances, factor, given = _saved(ctx, grad_loss)
        encoder, predictor, weight, bias, labels, kept = given
        operand, wanted = ctx.operand, ctx.needs_input_grad
        # No path visits padding, nor utterances without a finite loss.
        passed = chances[0] + chances[1]
        joiner = Joiner(
            encoder.masked_fill(~passed.any(2)[..., None], 0),
            predictor.masked_fill(~passed.any(1)[..., None], 0), weight, bias, operand,
        )  # fmt: skip
        grad_encoder = torch.empty_like(encoder)
        grad_predictor = torch.zeros_like(predictor, dtype=joiner.dtype)
        grad_weight = grad_bias = None
        for at, hidden, room in joiner.tiles(ctx.tile):
            if kept is None:
                found = joiner.logits(hidden, room)
                torch.softmax(found, -1, out=found)
            else:
                found = kept[at]
            to_gradient(found, room, labels[at[0]], ctx.blank, *(each[at] for each in chances))
            grad, scale = room.flatten(0, 2).to(operand), factor[at[0], None, None, None]
            if wanted[2]:
                scaled = (hidden * scale).flatten(0, 2).to(operand)
                grad_weight = accumulate(grad_weight, grad.t(), scaled, weight.dtype)
            if wanted[3] and bias is not None:
                each = scale.expand(*hidden.shape[:3], 1).reshape(1, -1).to(operand)
                grad_bias = accumulate(grad_bias, each, grad, bias.dtype)
            if wanted[0] or wanted[1]:
                inner = torch.mm(grad, joiner.weight).to(joiner.dtype).view_as(hidden)
                inner.mul_(hidden.square_().neg_().add_(1)).mul_(scale)
                grad_encoder[at] = inner.sum(2).to(encoder.dtype)
                grad_predictor[at[0]] += inner.sum(1)
        products = (kept is None) + wanted[2] + (wanted[0] or wanted[1])
        joiner.count_rest(ctx.tile, products, wanted[3])
        return (
            grad_encoder if wanted[0] else None,
            grad_predictor.to(predictor.dtype) if wanted[1] else None,
            grad_weight,
            None if grad_bias is None else grad_bias[0],
            *[None] * 6,
        )


def _save(
    ctx: Any, found: Tensor, frames: Tensor, lengths: Tensor, *given: Tensor | None
) -> Tensor:
    lattice = build_lattice(found[0], found[1], frames, lengths)
    scores = forward_scores(lattice)
    loss = -log_likelihood(lattice, scores).to(found.dtype)
    ctx.save_for_backward(lattice.blank, lattice.label, frames, lengths, scores, loss, *given)
    return loss


def _saved(ctx: Any, grad_loss: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor, tuple]:
    blank, label, frames, lengths, scores, loss, *given = ctx.saved_tensors
    by_blank, by_label = posteriors(Lattice(blank, label, frames, lengths), scores)
    chances = (by_blank.to(loss.dtype), by_label.to(loss.dtype))
    # The gradient of a loss that is not finite is 0.
    return chances, grad_loss.masked_fill(~loss.isfinite(), 0), tuple(given)


Place = tuple[slice, slice]
"""Position of a tile: a slice of the utterances and a slice of the frames."""
Tiles = Iterator[tuple[Place, Tensor, Tensor]]
"""Iterator over parts of the lattice, called tiles, as tuples (place, hidden, room). `hidden` is
the joiner's hidden layer, (utterances, frames, labels + 1, joint). `room` is memory for the logits,
(utterances, frames, labels + 1, vocabulary)."""


def places(shape: tuple[int, ...], cells: int) -> Iterator[Place]:
    """Divide a lattice (batch, time, labels + 1) into tiles of about `cells` cells.

    A tile covers one or more whole utterances, or a part of one utterance's frames.
    """
    batch, time, width = shape
    utterances = max(1, cells // max(1, time * width))
    frames = time if utterances > 1 else max(1, min(time, cells // width))
    return (
        (slice(row, min(row + utterances, batch)), slice(column, min(column + frames, time)))
        for row in range(0, batch, utterances)
        for column in range(0, time, frames)
    )


class Joiner:
    """Features and output layer of a joiner; for shapes, see `joiner_transducer_loss`."""

    def __init__(
        self,
        encoder: Tensor,
        predictor: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        operand: torch.dtype | None = None,
    ) -> None:
        self.encoder, self.predictor = encoder, predictor
        # The backward pass runs outside of autocast, and gives the type of the forward pass.
        self.operand = operand or operand_type(weight)
        self.weight = weight.to(self.operand)
        self.bias = None if bias is None else bias.to(self.operand)
        self.dtype = torch.promote_types(
            torch.promote_types(encoder.dtype, predictor.dtype), torch.float32
        )
        self.shape = (len(encoder), encoder.shape[1], predictor.shape[1])

    def tiles(self, cells: int, whole: Tensor | None = None) -> Tiles:
        """Iterate over tiles; their rooms are parts of `whole`, or one memory that tiles share."""
        memory = None
        count = FAKE_TILES if is_fake(self.weight) else None
        for rows, columns in islice(places(self.shape, cells), count):
            encoder = self.encoder[rows, columns, None].to(self.dtype)
            hidden = (encoder + self.predictor[rows, None].to(self.dtype)).tanh_()
            if whole is not None:
                room = whole[rows, columns]
            else:
                size = (*hidden.shape[:3], len(self.weight))
                if memory is None:  # shared, because the first touch of a new one is slow
                    memory = hidden.new_empty(math.prod(size))
                room = memory[: math.prod(size)].view(size)
            yield (rows, columns), hidden, room

    def logits(self, hidden: Tensor, room: Tensor) -> Tensor:
        """Write the logits of a tile into its room."""
        flat = hidden.flatten(0, 2).to(self.operand)
        project(flat, self.weight, self.bias, room.flatten(0, 2))
        return room

    def numbers(
        self, labels: Tensor, blank: int, cells: int, whole: Tensor | None = None
    ) -> Tensor:
        """Return `cell_numbers` of the whole lattice, computed in tiles.

        If `whole` (batch, time, labels + 1, vocabulary) is given, it receives the probabilities.
        """
        found = torch.empty(2, *self.shape, dtype=self.dtype, device=labels.device)
        for (rows, columns), hidden, room in self.tiles(cells, whole):
            logits = self.logits(hidden, room)
            found[:, rows, columns] = cell_numbers(logits, labels[rows], blank)
        self.count_rest(cells, 1)
        return found

    def count_rest(self, cells: int, products: int, sums: int = 0) -> None:
        """On fake tensors, count the operations of the tiles that `tiles` leaves out.

        A cell has `products` matrix products of joint width times vocabulary, and `sums` products
        with one row.
        """
        if not is_fake(self.weight):
            return
        left_out = islice(places(self.shape, cells), FAKE_TILES, None)
        rest = sum((rows.stop - rows.start) * (columns.stop - columns.start) * self.shape[2]
                   for rows, columns in left_out)  # fmt: skip
        multiplied = rest * (products * self.weight.numel() + sums * len(self.weight))
        # One product with as many operations, without memory.
        one = self.weight.new_empty(1, 1)
        torch.mm(one.expand(1, multiplied), one.expand(multiplied, 1))


def cell_numbers(logits: Tensor, labels: Tensor, blank: int) -> Tensor:
    """Return log p(blank) and log p(next label) of each cell, (2, batch, time, labels + 1).

    Logits (batch, time, labels + 1, vocabulary) become probabilities in place. `labels` are
    (batch, labels + 1).
    """
    answers = labels[:, None, :, None].expand(*logits.shape[:3], 1)
    picked = torch.stack((logits[..., blank], logits.gather(-1, answers)[..., 0]))
    return picked - softmax_(logits)[..., 0]


def to_gradient(
    probabilities: Tensor,
    gradient: Tensor,
    labels: Tensor,
    blank: int,
    by_blank: Tensor,
    by_label: Tensor,
) -> None:
    """Write the gradient of the loss with respect to the logits into `gradient`.

    `probabilities` and `gradient` are (batch, time, labels + 1, vocabulary), and may be the same
    tensor. `labels` are (batch, labels + 1). For `by_blank` and `by_label`, (batch, time, labels +
    1), see `posteriors`.
    """
    passed = (by_blank + by_label)[..., None]
    torch.mul(probabilities, passed, out=gradient)
    # No path visits padding, whose probabilities may be NaN.
    gradient.masked_fill_(passed == 0, 0)
    gradient[..., blank] -= by_blank
    answers = labels[:, None, :, None].expand(passed.shape)
    gradient.scatter_add_(-1, answers, -by_label[..., None])


@dataclass(frozen=True)
class Lattice:
    """Log-probabilities of a blank and of the next label for each cell, stored by anti-diagonal.

    Attributes:
        blank: Log-probability of a blank, (time + labels, batch, labels + 1), float64. Cells
            outside of the lattice have -inf.
        label: Log-probability of the next label, shaped like `blank`. The value is -inf outside of
            the lattice, and after an utterance's last label.
        frames: Number of frames of each utterance, (batch,).
        labels: Number of labels of each utterance, (batch,).
    """

    blank: Tensor
    label: Tensor
    frames: Tensor
    labels: Tensor


def build_lattice(blank: Tensor, label: Tensor, frames: Tensor, labels: Tensor) -> Lattice:
    """Store log-probabilities (batch, time, labels + 1) by anti-diagonal; padding becomes -inf."""
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
    """View a tensor stored by anti-diagonal as cells, (batch, time, labels + 1).

    The shape of `diagonals` is (time + labels, batch, labels + 1).
    """
    steps, batch, width = diagonals.shape
    row = batch * width
    return diagonals.as_strided((batch, steps - width + 1, width), (width, row, row + 1))


def _impossible(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.full(shape, -torch.inf, dtype=torch.float64, device=like.device)


def forward_scores(lattice: Lattice, join: Callable[..., Tensor] = torch.logaddexp) -> Tensor:
    """Return the log-probability of all paths from the start to each cell.

    Cells are stored by anti-diagonal. If `join` is `torch.maximum`, the scores are those of the
    most probable path to each cell.
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
    return tensor.is_meta or is_fake(tensor)


def log_likelihood(lattice: Lattice, scores: Tensor) -> Tensor:
    """Return the log-probability of all paths, (batch,); -inf if there is no path."""
    utterance = torch.arange(len(lattice.frames), device=scores.device)
    last = (lattice.frames - 1 + lattice.labels).clamp(min=0)
    # The cell of the last blank.
    return (scores + lattice.blank)[last, utterance, lattice.labels]


def backward_scores(lattice: Lattice) -> Tensor:
    """Return the log-probability of all paths from each cell to the end.

    Cells are stored by anti-diagonal. All paths end one cell after the last frame, so the result
    has one more diagonal than the lattice.
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
    """Return the probabilities that a path leaves a cell by the blank and by the next label.

    Both tensors are float64, (batch, time, labels + 1). An utterance without a finite
    log-likelihood has probabilities of 0.
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
    """Return `frames` and `score` of `TransducerAlignment`; ties are broken arbitrarily."""
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
    shapes = [tuple(tensor.shape) for tensor in (encoder, predictor, weight)]
    if (
        [len(shape) for shape in shapes] != [3, 3, 2]
        or shapes[0][::2] != shapes[1][::2]
        or shapes[0][2] != shapes[2][1]
    ):
        raise ValueError(f"shapes do not fit together: encoder {shapes[0]} (batch, time, joint), "
                         f"predictor {shapes[1]} (batch, labels + 1, joint), weight {shapes[2]} "
                         "(vocabulary, joint)")  # fmt: skip
    check_logits((*shapes[0][:2], shapes[1][1], shapes[2][0]), *rest)


def check_logits(
    size: tuple[int, ...], targets: Tensor, frames: Tensor, labels: Tensor, blank: int
) -> None:
    shapes = [tuple(tensor.shape) for tensor in (targets, frames, labels)]
    if (
        len(size) != 4
        or 0 in size
        or shapes != [(size[0], size[2] - 1), tuple(size[:1]), tuple(size[:1])]
    ):
        raise ValueError(f"shapes do not fit together: logits {tuple(size)} (batch, time, labels + "
                         f"1, vocabulary), targets {shapes[0]} (batch, labels), numbers of frames "
                         f"{shapes[1]} (batch,) and of labels {shapes[2]} (batch,)")  # fmt: skip
    if not 0 <= blank < size[3]:
        raise ValueError(f"blank must be in [0, {size[3]}), not {blank}")
    for name, lengths, most in (("frames", frames, size[1]), ("labels", labels, size[2] - 1)):
        if any_on_a_cpu((lengths < 0) | (lengths > most)):
            raise ValueError(f"the numbers of {name} must be in [0, {most}], not "
                             f"{lengths.tolist()}")  # fmt: skip
    inside = torch.arange(targets.shape[1], device=targets.device) < labels[:, None]
    wrong = inside & ((targets < 0) | (targets >= size[3]) | (targets == blank))
    if any_on_a_cpu(wrong):
        raise ValueError(f"targets must be in [0, {size[3]}) and differ from the blank {blank}; "
                         f"wrong: {sorted(set(targets[wrong].tolist()))}")  # fmt: skip


def any_on_a_cpu(wrong: Tensor) -> bool:
    """Return whether a CPU tensor has a True value.

    For a tensor on another device, return False, because reading a value would make the host wait.
    """
    if wrong.device.type != "cpu":
        return False
    # The assertion is a single operation that reads no value into Python.
    try:
        torch._assert_async(~wrong.any())  # pyright: ignore[reportPrivateImportUsage]
    except RuntimeError:
        return True
    return False


def next_labels(targets: Tensor, lengths: Tensor) -> Tensor:
    """Return the next label at each position, (batch, labels + 1); 0 after the last label."""
    position = torch.arange(targets.shape[1], device=targets.device)
    return F.pad(targets.masked_fill(position >= lengths[:, None], 0), (0, 1))
