"""Searches of a transducer: greedy decoding by label looping, and a beam.

Label looping (arXiv 2406.06220): all utterances of a batch look for their next label, each at its
own frame, and then the predictor reads the labels of all at once. Here each looks at some frames at
a time, so that blanks, which are most, cost few steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from magneto.speech.config import BLANK, SYMBOLS_PER_FRAME
from magneto.speech.model import State, Transducer

# Frames that are looked at together.
LOOK_AHEAD = 8


@dataclass(frozen=True)
class Hypothesis:
    """Labels that a search found.

    Attributes:
        labels: Without blanks.
        frames: The encoder's frame at which each was emitted.
        score: Log-probability in nats: of all paths that the search joined, or, greedy, of one.
    """

    labels: list[int]
    frames: list[int]
    score: float


class Search(ABC):
    """A way to find labels, which can be run in parts, as frames come, and finds the same.

    How it is used::

        state = search.begin(model, frames)                       # of each utterance, at most
        for encoded, lengths in parts:
            state = search.advance(model, state, encoded, lengths)
        hypotheses = search.finish(model, state)
    """

    def __call__(
        self, model: Transducer, encoded: Tensor, lengths: Tensor
    ) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            model: In evaluation mode.
            encoded: The encoder's features, (batch, frames, width).
            lengths: (batch,).

        Returns:
            Of each utterance the best hypotheses, the best first; at least one.
        """
        return self.finish(model, self.advance(model, self.begin(model, lengths), encoded, lengths))

    @abstractmethod
    def begin(self, model: Transducer, frames: Tensor) -> Any:
        """Return the state before any frame.

        Args:
            model: In evaluation mode.
            frames: Of each utterance, at most, (batch,).
        """

    @abstractmethod
    def advance(self, model: Transducer, state: Any, encoded: Tensor, lengths: Tensor) -> Any:
        """Return the state after some more frames.

        Args:
            model: In evaluation mode.
            state: After the frames before; it is left as it is.
            encoded: (batch, frames, width), of these frames.
            lengths: How many of these are of each utterance, (batch,). One that has not all of
                them has ended.
        """

    @abstractmethod
    def finish(self, model: Transducer, state: Any) -> list[list[Hypothesis]]:
        """Return what is found where no more frames come; as far as they came, at any time."""


@dataclass(frozen=True)
class GreedyState:
    """Where greedy decoding stands.

    Attributes:
        predicted: The predictor's projected output after the last label, (batch, joint).
        state: The predictor's.
        emitted: Labels at the frame that each utterance is at, (batch,).
        heard: Frames that were looked at, (batch,).
        score: Log-probability of the path so far, (batch,), float32.
        found: Rows, labels and frames, in the order of emission.
    """

    predicted: Tensor
    state: State
    emitted: Tensor
    heard: Tensor
    score: Tensor
    found: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()


@dataclass
class GreedySearch(Search):
    """The most probable symbol at each step.

    Attributes:
        symbols_per_frame: Labels at one frame, at most.
        look_ahead: Frames that are looked at together; changes nothing but the time.
    """

    symbols_per_frame: int = SYMBOLS_PER_FRAME
    look_ahead: int = LOOK_AHEAD

    @torch.no_grad()
    def begin(self, model: Transducer, frames: Tensor) -> GreedyState:
        """Return the state before any frame."""
        start = torch.full_like(frames, BLANK)
        output, state = model.predictor.step(
            start, model.predictor.begin(len(start), start.device)
        )  # fmt: skip
        none = torch.zeros_like(frames)
        predicted = model.joiner.predictor_proj(output)
        return GreedyState(predicted, state, none, none, none.float())

    @torch.no_grad()
    def advance(
        self, model: Transducer, state: GreedyState, encoded: Tensor, lengths: Tensor
    ) -> GreedyState:
        """Return the state after some more frames; waits for the device at each step."""
        frames = model.joiner.encoder_proj(encoded)
        predicted, emitted, score = (
            part.clone() for part in (state.predicted, state.emitted, state.score)
        )
        inner, found = tuple(part.clone() for part in state.state), list(state.found)
        place = torch.zeros_like(lengths)
        rows = (lengths > 0).nonzero()[:, 0]
        while len(rows):
            # Where a frame has given all that it may, a label comes from the next.
            full = emitted[rows] >= self.symbols_per_frame
            place[rows] += full
            at_frame = torch.where(full, 0, emitted[rows])
            label, passed, gained = self._next_label(
                model, frames, lengths, rows, place[rows], predicted[rows]
            )
            place[rows] += passed
            score[rows] += gained
            there = place[rows] < lengths[rows]
            emitted[rows] = torch.where(there, torch.where(passed > 0, 0, at_frame) + 1, 0)
            rows, label = rows[there], label[there]
            found.append((rows, label, state.heard[rows] + place[rows]))
            output, after = model.predictor.step(label, tuple(part[rows] for part in inner))
            for whole, part in zip(inner, after, strict=True):
                whole[rows] = part.to(whole.dtype)
            predicted[rows] = model.joiner.predictor_proj(output).to(predicted.dtype)
        return GreedyState(predicted, inner, emitted, state.heard + lengths, score, tuple(found))

    def finish(self, model: Transducer, state: GreedyState) -> list[list[Hypothesis]]:
        """Return one hypothesis of each utterance."""
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
        """Return the next label of each row, the blanks before it, and their log-probability.

        Args:
            model: Whose joiner is asked.
            frames: Projected, (batch, frames, joint).
            lengths: (batch,).
            rows: Numbers of the utterances that are not at their end, (rows,).
            place: The frame that each is at.
            labels: The predictor's projected output of each, (rows, joint).
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
            # Of the frames before the first label, and of it.
            stops = (symbol != BLANK) & inside
            before = (stops.cumsum(1) == 0) & inside
            first = stops & (stops.cumsum(1) == 1)
            gained[open_] += torch.where(before | first, chance, 0).sum(1)
            passed[open_] += before.sum(1)
            label[open_] = torch.where(first, symbol, 0).sum(1)
            at_end = place[open_] + passed[open_] >= lengths[which]
            open_ = open_[~stops.any(1) & ~at_end]
        return label, passed, gained


# Labels are told apart by a number of 64 bits: the last one times this, plus the label, wrapped.
FACTOR = 6364136223846793005

Fusion = Callable[[Tensor, Tensor], Tensor]
"""From labels, (rows, most labels), and how many of them count, (rows,), to log-probabilities of
the next label, (rows, vocabulary); that of blank is not used. This is shallow fusion with a
language model."""


@dataclass(frozen=True)
class Beam:
    """Hypotheses of a batch of utterances, `width` of each.

    Attributes:
        scores: Log-probabilities, (batch, width), float32; -inf where there is no hypothesis.
        written: (batch, width, most labels, 2): each label, and the frame at which it was emitted.
        lengths: Labels so far, (batch, width).
        digests: A number for the labels so far, (batch, width).
        predicted: The predictor's projected output, (batch, width, joint).
        state: The predictor's, with rows of (batch * width).
        bonus: What is added to a label's log-probability, (batch, width, vocabulary or 1).
        heard: Frames of each utterance that were looked at, (batch,).
    """

    scores: Tensor
    written: Tensor
    lengths: Tensor
    digests: Tensor
    predicted: Tensor
    state: State
    bonus: Tensor
    heard: Tensor

    def picked(self, parents: Tensor) -> Self:
        """Return the beam with hypotheses (batch, kept) in place of its own, the scores aside."""
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
            bonus=pick(self.bonus) if self.bonus.shape[2] > 1 else self.bonus,
        )

    def merged(self) -> Self:
        """Return the beam with equal hypotheses joined in the first of each pair.

        Of a beam in which all differed no more than two become equal by one symbol each: one that
        had the labels already, and one that wrote the last of them.
        """
        place = torch.arange(self.scores.shape[1], device=self.scores.device)
        before = place[:, None] > place
        same = self.digests[:, :, None] == self.digests[:, None]
        twin = torch.where(same & (before | before.T), self.scores[:, None], -torch.inf).amax(2)
        scores = torch.logaddexp(self.scores, twin).masked_fill((same & before).any(2), -torch.inf)
        return replace(self, scores=scores)


@dataclass(frozen=True, kw_only=True)
class ModifiedBeamSearch(Search):
    """Time-synchronous, with at most one label per frame (icefall's modified beam search).

    At each frame a hypothesis takes a blank or one label, and goes on to the next.

    Attributes:
        width: Hypotheses per utterance.
        count: Of these returned, at most.
        normalise: Power of the length that scores are divided by to rank whole hypotheses (ESPnet
            calls 1 score normalisation).
        fusion: A language model for shallow fusion, or None.
        fusion_weight: Of its log-probabilities.
    """

    width: int = 4
    count: int = 1
    normalise: float = 1.0
    fusion: Fusion | None = None
    fusion_weight: float = 0.3

    @torch.no_grad()
    def begin(self, model: Transducer, frames: Tensor) -> Beam:
        """Return a beam of one hypothesis per utterance, without labels."""
        batch, width, predictor = len(frames), self.width, model.predictor
        start = torch.full_like(frames, BLANK)
        output, state = predictor.step(start, predictor.begin(batch, frames.device))
        rows = torch.arange(batch, device=frames.device).repeat_interleave(width)
        scores = torch.full((batch, width), -torch.inf, device=frames.device)
        scores[:, 0] = 0
        none = torch.zeros(batch, width, dtype=torch.long, device=frames.device)
        most = int(frames.max()) if batch else 0
        written = none.new_zeros(batch, width, max(most, 1), 2)
        projected = model.joiner.predictor_proj(output)[rows]
        bonus = self._bonus(written.flatten(0, 1), none.flatten())
        if bonus is None:
            bonus = projected.new_zeros(batch * width, 1)
        shape = (batch, width, -1)
        return Beam(
            scores, written, none, none, projected.view(shape),
            tuple(part[rows] for part in state), bonus.view(shape), torch.zeros_like(frames),
        )  # fmt: skip

    @torch.no_grad()
    def advance(self, model: Transducer, state: Beam, encoded: Tensor, lengths: Tensor) -> Beam:
        """Return the beam after some more frames."""
        beam, frames = state, model.joiner.encoder_proj(encoded)
        for number in range(int(lengths.max()) if len(lengths) else 0):
            logits = model.joiner.logits(frames[:, number, None], beam.predicted).float()
            chances = logits.log_softmax(-1)
            if self.fusion is not None:
                chances[..., 1:] += beam.bonus[..., 1:]
            candidates = beam.scores[..., None] + chances
            times = state.heard + number
            beam = self._grown(model, beam, candidates, times, number < lengths)
        return replace(beam, heard=state.heard + lengths)

    def finish(self, model: Transducer, state: Beam) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each utterance, ranked by score over a power of length."""
        # The end counts as one label more.
        ranked = state.scores / (state.lengths + 1).float() ** self.normalise
        order = ranked.argsort(dim=1, descending=True, stable=True)[:, : self.count]
        chosen = state.picked(order)
        values = (chosen.scores, chosen.lengths, *chosen.written.unbind(-1))
        found = []
        for scores, lengths, labels, frames in zip(*(v.tolist() for v in values), strict=True):
            every = zip(scores, lengths, labels, frames, strict=True)
            found.append(
                [Hypothesis(said[:n], when[:n], score) for score, n, said, when in every
                 if score > -float("inf")] or [Hypothesis([], [], -float("inf"))]
            )  # fmt: skip
        return found

    def _grown(
        self, model: Transducer, beam: Beam, candidates: Tensor, times: Tensor, going: Tensor
    ) -> Beam:
        """Keep the best candidates, join equal ones, let the predictor read what they wrote.

        Candidates are scores with each symbol, (batch, width, vocabulary), times the frames that
        they look at, (batch,); going is False for an utterance of which nothing changes any more.
        """
        _, width, vocabulary = candidates.shape
        scores, index = candidates.flatten(1).topk(width)
        here = torch.arange(width, device=index.device)
        going = going[:, None]
        parents = torch.where(going, index // vocabulary, here)
        symbols = torch.where(going, index % vocabulary, BLANK)
        scores = torch.where(going, scores, beam.scores)
        grown = replace(beam.picked(parents), scores=scores)
        wrote = (symbols != BLANK) & (scores > -torch.inf)
        place = grown.lengths.clamp(max=grown.written.shape[2] - 1)
        place = place[..., None, None].expand(-1, -1, -1, 2)
        said = torch.stack((symbols, times[:, None].expand_as(symbols)), -1)[:, :, None]
        said = torch.where(wrote[..., None, None], said, grown.written.gather(2, place))
        grown = replace(
            grown,
            written=grown.written.scatter(2, place, said),
            lengths=grown.lengths + wrote,
            digests=torch.where(wrote, grown.digests * FACTOR + symbols, grown.digests),
        ).merged()
        wrote = (wrote & (grown.scores > -torch.inf)).flatten()
        return self._read(model, grown, wrote, symbols.flatten())

    def _read(self, model: Transducer, beam: Beam, wrote: Tensor, symbols: Tensor) -> Beam:
        """Let the predictor read the last label of the rows that wrote one."""
        rows = wrote.nonzero()[:, 0]
        if not len(rows):
            return beam
        output, after = model.predictor.step(
            symbols.index_select(0, rows), tuple(part.index_select(0, rows) for part in beam.state)
        )
        for whole, part in zip(beam.state, after, strict=True):
            whole.index_copy_(0, rows, part.to(whole.dtype))
        projected = model.joiner.predictor_proj(output)
        beam.predicted.flatten(0, 1).index_copy_(0, rows, projected.to(beam.predicted.dtype))
        bonus = self._bonus(beam.written.flatten(0, 1)[rows], beam.lengths.flatten()[rows])
        if bonus is not None:
            beam.bonus.flatten(0, 1)[rows] = bonus
        return beam

    def _bonus(self, written: Tensor, lengths: Tensor) -> Tensor | None:
        if self.fusion is None:
            return None
        return self.fusion_weight * self.fusion(written[..., 0], lengths).float()
