"""Beam searches of a transducer, for a whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from magneto.speech.beam import Beam, Fusion, Grower, best
from magneto.speech.decoding import Hypothesis
from magneto.speech.model import Transducer

# Steps of an alignment-length-synchronous search between looks whether it can stop.
LOOK_EVERY = 8


@dataclass(frozen=True, kw_only=True)
class BeamOptions:
    """What both searches can be told.

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
class ModifiedBeamSearch(BeamOptions):
    """Time-synchronous, with at most one label per frame (icefall's modified beam search).

    At each frame a hypothesis takes a blank or one label, and goes on to the next. A
    `StreamingSearch`.
    """

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
        times = state.heard[:, None].expand_as(beam.lengths)
        for number in range(int(lengths.max()) if len(lengths) else 0):
            candidates = grower.candidates(beam, frames[:, number, None])
            beam = grower.grown(beam, candidates, times + number, number < lengths)
        return TimedBeam(beam, state.heard + lengths)

    def finish(self, model: Transducer, state: TimedBeam) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each utterance."""
        return best(state.beam, self.count, self.normalise)


@dataclass(frozen=True)
class AlignedBeam:
    """Hypotheses that each look at a frame of their own.

    Attributes:
        beam: Those that go on.
        ended: Those that have looked at all frames of their utterance.
        step: Symbols of each so far, blanks too.
        frames: Projected, (batch, frames, joint), from the first that is still looked at.
        first: Its number.
        heard: Frames of each utterance that came, (batch,).
        whole: Whether they are all, (batch,).
        most: Labels of each utterance, at most, (batch, 1).
    """

    beam: Beam
    ended: Beam
    step: int
    frames: Tensor
    first: int
    heard: Tensor
    whole: Tensor
    most: Tensor


@dataclass(frozen=True, kw_only=True)
class AlignmentLengthBeamSearch(BeamOptions):
    """Alignment-length-synchronous (Saon et al. 2020): any number of labels per frame.

    At step i a hypothesis of u labels looks at frame i - u; those of one step are compared. A
    `StreamingSearch`; what it can't know in parts is how many frames there will be in all, so that
    labels are limited by how many there are at most.

    Attributes:
        labels_per_frame: Labels of an utterance per frame of the encoder, at most.
    """

    labels_per_frame: float = 1.0

    def __call__(
        self, model: Transducer, encoded: Tensor, lengths: Tensor
    ) -> list[list[Hypothesis]]:
        """Decode a batch; see `magneto.speech.decoding.Search`."""
        state = self._given(model, self.begin(model, lengths), encoded, lengths)
        return self.finish(model, state)

    @torch.no_grad()
    def begin(self, model: Transducer, frames: Tensor) -> AlignedBeam:
        """Return the state before any frame."""
        most = (self.labels_per_frame * frames).long().clamp(min=1)[:, None]
        beam = self.grower(model).begin(
            len(frames), int(most.max()) if len(most) else 1, frames.device
        )
        ended = replace(beam, scores=torch.full_like(beam.scores, -torch.inf))
        none = torch.zeros_like(frames)
        seen = beam.predicted.new_zeros(len(frames), 0, beam.predicted.shape[-1])
        return AlignedBeam(beam, ended, 0, seen, 0, none, none.bool(), most)

    @torch.no_grad()
    def advance(
        self, model: Transducer, state: AlignedBeam, encoded: Tensor, lengths: Tensor
    ) -> AlignedBeam:
        """Return the state after some more frames: all hypotheses that can go on have done so."""
        return self._run(model, self._given(model, state, encoded, lengths), wait=True)

    @torch.no_grad()
    def finish(self, model: Transducer, state: AlignedBeam) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each utterance."""
        state = replace(state, whole=torch.ones_like(state.whole))
        return best(self._run(model, state, wait=False).ended, self.count, self.normalise)

    @torch.no_grad()
    def _given(
        self, model: Transducer, state: AlignedBeam, encoded: Tensor, lengths: Tensor
    ) -> AlignedBeam:
        """Return the state with some more frames, at which nothing has looked yet."""
        frames = model.joiner.encoder_proj(encoded)
        return replace(
            state,
            frames=torch.cat((state.frames.to(frames.dtype), frames), 1),
            heard=state.heard + lengths,
            whole=state.whole | (lengths < encoded.shape[1]),
        )

    def _run(self, model: Transducer, state: AlignedBeam, wait: bool) -> AlignedBeam:
        """Let hypotheses grow, to their ends or until one has to wait for a frame."""
        grower, frames, heard = self.grower(model), state.frames, state.heard[:, None]
        beam, ended, step = state.beam, state.ended, state.step
        rows = torch.arange(len(frames), device=frames.device)[:, None]
        always = torch.ones_like(state.whole)
        while True:
            at_end = step - beam.lengths >= heard
            over = at_end & state.whole[:, None] & (beam.scores > -torch.inf)
            if bool(over.any()):
                over_alone = replace(beam, scores=beam.scores.masked_fill(~over, -torch.inf))
                ended = joined(ended, over_alone)
                beam = replace(beam, scores=beam.scores.masked_fill(over, -torch.inf))
            going = beam.scores > -torch.inf
            if wait and bool((going & at_end).any() | ~going.any()):
                break
            look = step % LOOK_EVERY == 0 or frames.shape[1] == 0
            if look and not wait and self._settled(beam, ended, state.most):
                break
            times = step - beam.lengths
            place = (times - state.first).clamp(0, frames.shape[1] - 1)
            candidates = grower.candidates(beam, frames[rows, place])
            candidates[..., 1:].masked_fill_((beam.lengths >= state.most)[..., None], -torch.inf)
            beam = grower.grown(beam, candidates, times, always)
            step += 1
        longest = int((beam.lengths * going).max()) if wait and len(frames) else 0
        dropped = max(step - longest - state.first, 0) if wait else 0
        return replace(
            state, beam=beam, ended=ended, step=step, frames=frames[:, dropped:],
            first=state.first + dropped,
        )  # fmt: skip

    def _settled(self, beam: Beam, ended: Beam, most: Tensor) -> bool:
        """Return whether no hypothesis that still grows can become one of those returned.

        Without a language model all that grows shares the probability that there is, also where
        hypotheses become one: divided by the greatest length there may be, its logarithm is what
        any can still come to.
        """
        known = beam.scores.new_full((), -torch.inf)
        if self.fusion is None:
            lengths = (ended.lengths + 1).float() ** self.normalise
            known = (ended.scores / lengths).topk(min(self.count, self.width), 1).values[:, -1]
        hoped = beam.scores.logsumexp(1) / (most[:, 0] + 1).float() ** self.normalise
        return not bool((hoped > known).any())


def joined(one: Beam, other: Beam) -> Beam:
    """Return the best hypotheses of two beams of different labels, as many as each has."""

    def both(first: Any, second: Any) -> Any:
        return torch.cat((first, second), 1)

    width = one.scores.shape[1]
    batch = len(one.scores)
    names = ("scores", "written", "lengths", "digests")
    values = {name: both(getattr(one, name), getattr(other, name)) for name in names}
    order = values["scores"].topk(width, 1).indices
    rows = torch.arange(batch, device=order.device)[:, None]
    # What goes on no more needs neither predictor nor language model.
    return replace(one, **{name: value[rows, order] for name, value in values.items()})
