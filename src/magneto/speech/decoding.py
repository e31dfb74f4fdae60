"""Decoding of transducers: greedy search by label looping, and modified beam search.

Label looping (arXiv 2406.06220) alternates between a search for labels and an update of the
predictor. For each utterance, the search goes from the current frame to the next label. The
predictor is then updated with the new labels of all utterances. The search evaluates several frames
at a time, because most frames emit blank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from magneto.nn.config import BEAMS
from magneto.speech.config import BLANK, SYMBOLS_PER_FRAME
from magneto.speech.model import State, Transducer

# Frames evaluated at a time.
LOOK_AHEAD = 8


@dataclass(frozen=True)
class Hypothesis:
    """Labels that a search found for an utterance.

    Attributes:
        labels: Labels without blanks.
        frames: Encoder frame at which each label was emitted.
        score: Log-probability in nats. Beam search adds the probabilities of merged paths.
    """

    labels: list[int]
    frames: list[int]
    score: float


class Search(ABC):
    """Base class of searches.

    Decoding the frames of a batch in parts gives the same result as decoding them at once.

    Usage::

        state = search.begin(model, frames)              # maximum number of frames per utterance
        for encoded, lengths in parts:
            state = search.advance(model, state, encoded, lengths)
        hypotheses = search.finish(model, state)
    """

    def __call__(
        self, model: Transducer, encoded: Tensor, lengths: Tensor
    ) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            model: Transducer in evaluation mode.
            encoded: Encoder outputs, (batch, frames, width).
            lengths: Number of frames, (batch,).

        Returns:
            One or more hypotheses for each utterance, best first.
        """
        return self.finish(model, self.advance(model, self.begin(model, lengths), encoded, lengths))

    @abstractmethod
    def begin(self, model: Transducer, frames: Tensor) -> Any:
        """Return the initial state.

        `frames` (batch,) is the maximum number of frames of each utterance.
        """

    @abstractmethod
    def advance(self, model: Transducer, state: Any, encoded: Tensor, lengths: Tensor) -> Any:
        """Return the state after further frames.

        Args:
            model: Transducer in evaluation mode.
            state: State after the previous frames. This state is not modified.
            encoded: Encoder outputs of the new frames, (batch, frames, width).
            lengths: Number of new frames of each utterance, (batch,). Frames of `encoded`
                beyond this number are padding.
        """

    @abstractmethod
    def finish(self, model: Transducer, state: Any) -> list[list[Hypothesis]]:
        """Return the hypotheses for all frames that `advance` has received."""


def before_labels(model: Transducer, frames: Tensor) -> tuple[Tensor, State]:
    """Return the predictor's projected output (batch, joint) and state before the first label."""
    start = torch.full_like(frames, BLANK)
    output, state = model.predictor.step(start, model.predictor.begin(len(start), start.device))
    return model.joiner.predictor_proj(output), state


def read_labels(
    model: Transducer, rows: Tensor, labels: Tensor, predicted: Tensor, state: State
) -> None:
    """Feed the predictor one label for each utterance in `rows`.

    `predicted` and `state` change in place.
    """
    output, after = model.predictor.step(labels, tuple(part[rows] for part in state))
    new = (model.joiner.predictor_proj(output), *after)
    for values, part in zip((predicted, *state), new, strict=True):
        values[rows] = part.to(values.dtype)


@dataclass(frozen=True)
class GreedyState:
    """State of greedy decoding between two frames.

    Attributes:
        predicted: Projected predictor output after the most recent label, (batch, joint).
        state: State of the predictor after that label.
        frames: Number of processed frames, (batch,).
        score: Log-probability of the path, (batch,).
        found: Emitted labels in the order of emission. Each entry of `found` has the indices of
            utterances, the new labels, and the frames of the labels.
    """

    predicted: Tensor
    state: State
    frames: Tensor
    score: Tensor
    found: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()


@dataclass
class GreedySearch(Search):
    """Greedy search, which takes the most probable symbol at each step.

    Attributes:
        symbols_per_frame: Maximum number of labels per frame.
        look_ahead: Number of frames evaluated at a time. It does not change the result.
    """

    symbols_per_frame: int = SYMBOLS_PER_FRAME
    look_ahead: int = LOOK_AHEAD

    @torch.no_grad()
    def begin(self, model: Transducer, frames: Tensor) -> GreedyState:
        none = torch.zeros_like(frames)
        return GreedyState(*before_labels(model, frames), none, none.float())

    @torch.no_grad()
    def advance(
        self, model: Transducer, state: GreedyState, encoded: Tensor, lengths: Tensor
    ) -> GreedyState:
        """Return the state after further frames.

        The CPU waits for the GPU at each new label.
        """
        frames = model.joiner.encoder_proj(encoded)
        predicted, score, *inner = (
            part.clone() for part in (state.predicted, state.score, *state.state)
        )
        found = list(state.found)
        # Current frame, and number of labels at this frame.
        place, emitted = torch.zeros_like(lengths), torch.zeros_like(lengths)
        rows = (lengths > 0).nonzero()[:, 0]
        while len(rows):
            # After the maximum number of labels at a frame, continue at the next frame.
            full = emitted[rows] >= self.symbols_per_frame
            place[rows] += full
            at_frame = torch.where(full, 0, emitted[rows])
            label, passed, gained = self._next_label(
                model, frames, lengths, rows, place[rows], predicted[rows]
            )
            place[rows] += passed
            score[rows] += gained
            inside = place[rows] < lengths[rows]
            emitted[rows] = torch.where(passed > 0, 0, at_frame) + 1
            rows, label = rows[inside], label[inside]
            found.append((rows, label, state.frames[rows] + place[rows]))
            read_labels(model, rows, label, predicted, tuple(inner))
        return GreedyState(predicted, tuple(inner), state.frames + lengths, score, tuple(found))

    def finish(self, model: Transducer, state: GreedyState) -> list[list[Hypothesis]]:
        labels: list[list[int]] = [[] for _ in state.score]
        frames: list[list[int]] = [[] for _ in state.score]
        if state.found:
            emitted = (torch.cat(parts).tolist() for parts in zip(*state.found, strict=True))
            for row, symbol, place in zip(*emitted, strict=True):
                labels[row].append(symbol)
                frames[row].append(place)
        scores = state.score.tolist()
        return [[Hypothesis(*each)] for each in zip(labels, frames, scores, strict=True)]

    def _next_label(
        self,
        model: Transducer,
        frames: Tensor,
        lengths: Tensor,
        rows: Tensor,
        place: Tensor,
        labels: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Find the next label of each unfinished utterance.

        Args:
            model: Transducer in evaluation mode.
            frames: Projected encoder outputs, (batch, frames, joint).
            lengths: Number of frames of each utterance, (batch,).
            rows: Indices of the unfinished utterances, (rows,).
            place: Index of the current frame of each unfinished utterance, (rows,).
            labels: Projected predictor outputs, (rows, joint).

        Returns:
            The next label, the number of blanks before the label, and the log-probability of the
            blanks and the label. Each result has the shape (rows,).
        """
        label, passed = torch.full_like(place, BLANK), torch.zeros_like(place)
        gained = frames.new_zeros(len(rows), dtype=torch.float32)
        ahead = torch.arange(self.look_ahead, device=frames.device)
        open_ = (place < lengths[rows]).nonzero()[:, 0]
        while len(open_):
            which = rows[open_]
            at = (place[open_] + passed[open_])[:, None] + ahead
            inside = at < lengths[which][:, None]
            seen = frames[which[:, None], at.clamp(max=frames.shape[1] - 1)]
            logits = model.joiner.logits(seen, labels[open_][:, None]).float()
            chance, symbol = logits.log_softmax(-1).max(-1)
            # The blanks before the first label, and the first label.
            stops = (symbol != BLANK) & inside
            before = (stops.cumsum(1) == 0) & inside
            first = stops & (stops.cumsum(1) == 1)
            gained[open_] += torch.where(before | first, chance, 0).sum(1)
            passed[open_] += before.sum(1)
            label[open_] = torch.where(first, symbol, 0).sum(1)
            at_end = place[open_] + passed[open_] >= lengths[which]
            open_ = open_[~stops.any(1) & ~at_end]
        return label, passed, gained


# Factor of the 64-bit rolling hash of labels: hash times this, plus the label.
FACTOR = 6364136223846793005

Fusion = Callable[[Tensor, Tensor], Tensor]
"""Function for shallow fusion with a language model. The first argument has the padded labels of
each hypothesis, (hypotheses, labels). The second argument says how many labels each hypothesis has,
(hypotheses,). The result is log-probabilities of the next label, (hypotheses, vocabulary). The
log-probability of blank is not used."""


@dataclass(frozen=True)
class Beam:
    """State of beam search: `width` hypotheses per utterance.

    Attributes:
        scores: Log-probabilities, (batch, width), float32. A score of -inf marks an empty slot.
        written: Labels and their frames, (batch, width, maximum number of labels, 2).
        lengths: Number of labels, (batch, width).
        digests: Hash of the labels, (batch, width).
        predicted: Projected predictor output, (batch, width, joint).
        state: State of the predictor, with batch dimension batch * width.
        bonus: The language model's weighted log-probabilities, (batch, width, vocabulary), with 0
            for blank. Without a language model, zeros (batch, width, 1).
        frames: Number of processed frames, (batch,).
    """

    scores: Tensor
    written: Tensor
    lengths: Tensor
    digests: Tensor
    predicted: Tensor
    state: State
    bonus: Tensor
    frames: Tensor

    def select(self, parents: Tensor) -> Self:
        """Return a beam with the selected hypotheses.

        `parents` (batch, kept) has the indices of the selected hypotheses.
        """
        batch, width = self.scores.shape
        rows = (torch.arange(batch, device=parents.device)[:, None] * width + parents).flatten()

        def pick(values: Tensor) -> Tensor:
            found = values.flatten(0, 1).index_select(0, rows)
            return found.view(*parents.shape, *values.shape[2:])

        return replace(
            self,
            scores=self.scores.gather(1, parents),
            written=pick(self.written),
            lengths=pick(self.lengths),
            digests=pick(self.digests),
            predicted=pick(self.predicted),
            state=tuple(part.index_select(0, rows) for part in self.state),
            bonus=pick(self.bonus),
        )

    def merge_equal(self) -> Self:
        """Merge each pair of equal hypotheses into the first of the two.

        Equal hypotheses have the same labels: one emitted a label at the current frame, the other a
        blank. No three hypotheses of an utterance are equal.
        """
        place = torch.arange(self.scores.shape[1], device=self.scores.device)
        before = place[:, None] > place
        same = self.digests[:, :, None] == self.digests[:, None]
        twin = torch.where(same & (before | before.T), self.scores[:, None], -torch.inf).amax(2)
        scores = torch.logaddexp(self.scores, twin).masked_fill((same & before).any(2), -torch.inf)
        return replace(self, scores=scores)


@dataclass(frozen=True, kw_only=True)
class ModifiedBeamSearch(Search):
    """Time-synchronous beam search with at most one label per frame.

    In icefall, this method is called `modified_beam_search`.

    Attributes:
        width: Number of hypotheses per utterance during the search.
        count: Maximum number of returned hypotheses per utterance.
        fusion: Language model for shallow fusion, or None.
        fusion_weight: Weight of the language model's log-probabilities.
    """

    width: int = BEAMS
    count: int = 1
    fusion: Fusion | None = None
    fusion_weight: float = 0.3

    @torch.no_grad()
    def begin(self, model: Transducer, frames: Tensor) -> Beam:
        batch, width = len(frames), self.width
        predicted, state = before_labels(model, frames)
        rows = torch.arange(batch, device=frames.device).repeat_interleave(width)
        scores = torch.full((batch, width), -torch.inf, device=frames.device)
        scores[:, 0] = 0
        none = torch.zeros(batch, width, dtype=torch.long, device=frames.device)
        most = int(frames.max()) if batch else 0
        written = none.new_zeros(batch, width, max(most, 1), 2)
        bonus = self._bonus(written.flatten(0, 1), none.flatten())
        shape = (batch, width, -1)
        return Beam(
            scores, written, none, none, predicted[rows].view(shape),
            tuple(part[rows] for part in state), bonus.view(shape), torch.zeros_like(frames),
        )  # fmt: skip

    @torch.no_grad()
    def advance(self, model: Transducer, state: Beam, encoded: Tensor, lengths: Tensor) -> Beam:
        beam, frames = state, model.joiner.encoder_proj(encoded)
        for number in range(int(lengths.max()) if len(lengths) else 0):
            logits = model.joiner.logits(frames[:, number, None], beam.predicted).float()
            chances = logits.log_softmax(-1) + beam.bonus
            candidates = beam.scores[..., None] + chances
            times = state.frames + number
            beam = self._extend(model, beam, candidates, times, number < lengths)
        return replace(beam, frames=state.frames + lengths)

    def finish(self, model: Transducer, state: Beam) -> list[list[Hypothesis]]:
        """Return each utterance's best hypotheses, ranked by score / (number of labels + 1)."""
        # The end counts as one more label, as in ESPnet.
        ranked = state.scores / (state.lengths + 1)
        order = ranked.argsort(dim=1, descending=True, stable=True)[:, : self.count]
        best = state.select(order)
        values = (best.scores, best.lengths, *best.written.unbind(-1))
        hypotheses = []
        for scores, lengths, labels, frames in zip(*(v.tolist() for v in values), strict=True):
            rows = zip(scores, lengths, labels, frames, strict=True)
            hypotheses.append(
                [Hypothesis(symbols[:n], times[:n], score) for score, n, symbols, times in rows
                 if score > -float("inf")] or [Hypothesis([], [], -float("inf"))]
            )  # fmt: skip
        return hypotheses

    def _extend(
        self, model: Transducer, beam: Beam, candidates: Tensor, times: Tensor, going: Tensor
    ) -> Beam:
        """Keep the best candidates, merge equal candidates, and update the predictor.

        `candidates` are scores, (batch, width, vocabulary). `times` (batch,) has the index of the
        current frame. `going` (batch,) is False for a finished utterance.
        """
        _, width, vocabulary = candidates.shape
        scores, index = candidates.flatten(1).topk(width)
        here = torch.arange(width, device=index.device)
        going = going[:, None]
        parents = torch.where(going, index // vocabulary, here)
        symbols = torch.where(going, index % vocabulary, BLANK)
        scores = torch.where(going, scores, beam.scores)
        grown = replace(beam.select(parents), scores=scores)
        wrote = (symbols != BLANK) & (scores > -torch.inf)
        place = grown.lengths.clamp(max=grown.written.shape[2] - 1)
        place = place[..., None, None].expand(-1, -1, -1, 2)
        emission = torch.stack((symbols, times[:, None].expand_as(symbols)), -1)[:, :, None]
        emission = torch.where(wrote[..., None, None], emission, grown.written.gather(2, place))
        grown = replace(
            grown,
            written=grown.written.scatter(2, place, emission),
            lengths=grown.lengths + wrote,
            digests=torch.where(wrote, grown.digests * FACTOR + symbols, grown.digests),
        ).merge_equal()
        wrote = (wrote & (grown.scores > -torch.inf)).flatten()
        return self._read(model, grown, wrote, symbols.flatten())

    def _read(self, model: Transducer, beam: Beam, wrote: Tensor, symbols: Tensor) -> Beam:
        """Update the predictor of the hypotheses that emitted a label."""
        rows = wrote.nonzero()[:, 0]
        if not len(rows):
            return beam
        read_labels(model, rows, symbols[rows], beam.predicted.flatten(0, 1), beam.state)
        written, lengths = beam.written.flatten(0, 1)[rows], beam.lengths.flatten()[rows]
        beam.bonus.flatten(0, 1)[rows] = self._bonus(written, lengths)
        return beam

    def _bonus(self, written: Tensor, lengths: Tensor) -> Tensor:
        if self.fusion is None:
            return torch.zeros(len(written), 1, device=written.device)
        chances = self.fusion_weight * self.fusion(written[..., 0], lengths).float()
        return F.pad(chances[:, BLANK + 1 :], (1, 0))
