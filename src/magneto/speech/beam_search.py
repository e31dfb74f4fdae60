"""Beam search of a transducer: how hypotheses grow, which are one, and which are kept.

All is done for the whole batch at once. Hypotheses that write the same labels by different paths
are joined and their probabilities added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from magneto.speech.decoding import Hypothesis
from magneto.speech.model import Transducer
from magneto.speech.predictor import State
from magneto.speech.vocabulary import BLANK

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
    """

    scores: Tensor
    written: Tensor
    lengths: Tensor
    digests: Tensor
    predicted: Tensor
    state: State
    bonus: Tensor

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


class Grower:
    """Begins a beam and lets its hypotheses grow by a symbol.

    Args:
        model: Whose predictor and joiner are asked.
        width: Hypotheses per utterance.
        fusion: A language model, or None.
        fusion_weight: Of its log-probabilities.
    """

    def __init__(
        self, model: Transducer, width: int, fusion: Fusion | None, fusion_weight: float
    ) -> None:
        self.model, self.width = model, width
        self.fusion, self.fusion_weight = fusion, fusion_weight

    def begin(self, batch: int, most_labels: int, device: torch.device) -> Beam:
        """Return a beam of one hypothesis per utterance, without labels."""
        count, predictor = batch * self.width, self.model.predictor
        start = torch.full((batch,), BLANK, device=device)
        output, state = predictor.step(start, predictor.begin(batch, device))
        rows = torch.arange(batch, device=device).repeat_interleave(self.width)
        scores = torch.full((batch, self.width), -torch.inf, device=device)
        scores[:, 0] = 0
        none = torch.zeros(batch, self.width, dtype=torch.long, device=device)
        written = none.new_zeros(batch, self.width, max(most_labels, 1), 2)
        projected = self.model.joiner.predictor_proj(output)[rows]
        bonus = self._bonus(written.flatten(0, 1), none.flatten())
        if bonus is None:
            bonus = projected.new_zeros(count, 1)
        shape = (batch, self.width, -1)
        return Beam(
            scores, written, none, none, projected.view(shape),
            tuple(part[rows] for part in state), bonus.view(shape),
        )  # fmt: skip

    def candidates(self, beam: Beam, frames: Tensor) -> Tensor:
        """Return the score of each hypothesis with each symbol behind it.

        Args:
            beam: The hypotheses.
            frames: What they look at, projected: (batch, joint).

        Returns:
            (batch, width, vocabulary), float32.
        """
        logits = self.model.joiner.logits(frames[:, None], beam.predicted).float()
        chances = logits.log_softmax(-1)
        if self.fusion is not None:
            chances[..., 1:] += beam.bonus[..., 1:]
        return beam.scores[..., None] + chances

    def grown(self, beam: Beam, candidates: Tensor, times: Tensor, going: Tensor) -> Beam:
        """Keep the best candidates, join equal ones, let the predictor read what they wrote.

        Args:
            beam: The hypotheses.
            candidates: (batch, width, vocabulary).
            times: The frame that they look at, (batch,).
            going: (batch,), False for an utterance of which nothing changes any more.
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
        return self._read(grown, (wrote & (grown.scores > -torch.inf)).flatten(), symbols.flatten())

    def _read(self, beam: Beam, wrote: Tensor, symbols: Tensor) -> Beam:
        """Let the predictor read the last label of the rows that wrote one."""
        rows = wrote.nonzero()[:, 0]
        if not len(rows):
            return beam
        output, after = self.model.predictor.step(
            symbols.index_select(0, rows), tuple(part.index_select(0, rows) for part in beam.state)
        )
        for whole, part in zip(beam.state, after, strict=True):
            whole.index_copy_(0, rows, part.to(whole.dtype))
        projected = self.model.joiner.predictor_proj(output)
        beam.predicted.flatten(0, 1).index_copy_(0, rows, projected.to(beam.predicted.dtype))
        bonus = self._bonus(beam.written.flatten(0, 1)[rows], beam.lengths.flatten()[rows])
        if bonus is not None:
            beam.bonus.flatten(0, 1)[rows] = bonus
        return beam

    def _bonus(self, written: Tensor, lengths: Tensor) -> Tensor | None:
        if self.fusion is None:
            return None
        return self.fusion_weight * self.fusion(written[..., 0], lengths).float()


def best(beam: Beam, count: int, normalise: float) -> list[list[Hypothesis]]:
    """Return the best hypotheses of each utterance.

    Args:
        beam: The hypotheses.
        count: Of each utterance, at most.
        normalise: Power of the length, and one for the end, that scores are divided by to rank.
    """
    ranked = beam.scores / (beam.lengths + 1).float() ** normalise
    order = ranked.argsort(dim=1, descending=True, stable=True)[:, :count]
    chosen = beam.picked(order)
    labels, frames = chosen.written.unbind(-1)
    values = (chosen.scores, chosen.lengths, labels, frames)
    found = []
    for scores, lengths, labels, frames in zip(*(v.tolist() for v in values), strict=True):
        every = zip(scores, lengths, labels, frames, strict=True)
        found.append(
            [Hypothesis(said[:n], when[:n], score) for score, n, said, when in every
             if score > -float("inf")] or [Hypothesis([], [], -float("inf"))]
        )  # fmt: skip
    return found


@dataclass(frozen=True)
class TimedBeam:
    """Hypotheses of which each has looked at the same frames.

    Attributes:
        beam: The hypotheses.
        heard: Frames of each utterance that were looked at, (batch,).
    """

    beam: Beam
    heard: Tensor


@dataclass(frozen=True, kw_only=True)
class ModifiedBeamSearch:
    """Time-synchronous, with at most one label per frame (icefall's modified beam search).

    At each frame a hypothesis takes a blank or one label, and goes on to the next. A
    `StreamingSearch`.

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

    def grower(self, model: Transducer) -> Grower:
        """Return what begins beams and lets them grow."""
        return Grower(model, self.width, self.fusion, self.fusion_weight)

    def __call__(
        self, model: Transducer, encoded: Tensor, lengths: Tensor
    ) -> list[list[Hypothesis]]:
        """Decode a batch; see `magneto.speech.decoding.Search`."""
        return self.finish(model, self.advance(model, self.begin(model, lengths), encoded, lengths))

    @torch.no_grad()
    def begin(self, model: Transducer, frames: Tensor) -> TimedBeam:
        """Return a beam for utterances of so many frames, at most."""
        most = int(frames.max()) if len(frames) else 0
        beam = self.grower(model).begin(len(frames), most, frames.device)
        return TimedBeam(beam, torch.zeros_like(frames))

    @torch.no_grad()
    def advance(
        self, model: Transducer, state: TimedBeam, encoded: Tensor, lengths: Tensor
    ) -> TimedBeam:
        """Return the beam after some more frames."""
        grower, beam = self.grower(model), state.beam
        frames = model.joiner.encoder_proj(encoded)
        for number in range(int(lengths.max()) if len(lengths) else 0):
            candidates = grower.candidates(beam, frames[:, number])
            beam = grower.grown(beam, candidates, state.heard + number, number < lengths)
        return TimedBeam(beam, state.heard + lengths)

    def finish(self, model: Transducer, state: TimedBeam) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each utterance."""
        return best(state.beam, self.count, self.normalise)
