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


@dataclass(frozen=True, kw_only=True)
class ModifiedBeamSearch(BeamOptions):
    """Time-synchronous, with at most one label per frame (icefall's modified beam search).

    At each frame a hypothesis takes a blank or one label, and goes on to the next. It can be run in
    parts, as frames come: `begin`, then `advance` for each part.
    """

    @torch.no_grad()
    def __call__(
        self, model: Transducer, encoded: Tensor, lengths: Tensor
    ) -> list[list[Hypothesis]]:
        """Decode a batch; see `magneto.speech.decoding.Search`."""
        beam = self.begin(model, len(encoded), encoded.shape[1], encoded.device)
        return best(self.advance(model, beam, encoded, lengths), self.count, self.normalise)

    @torch.no_grad()
    def begin(self, model: Transducer, batch: int, frames: int, device: torch.device) -> Beam:
        """Return a beam for utterances of so many frames, at most."""
        return self.grower(model).begin(batch, frames, device)

    @torch.no_grad()
    def advance(
        self, model: Transducer, beam: Beam, encoded: Tensor, lengths: Tensor, start: int = 0
    ) -> Beam:
        """Return the beam after some more frames.

        Args:
            model: In evaluation mode.
            beam: After the frames before.
            encoded: (batch, frames, width), of these frames.
            lengths: How many of these are of each utterance, (batch,).
            start: Number of the first one, for the times of labels.
        """
        grower = self.grower(model)
        frames = model.joiner.encoder_proj(encoded)
        times = torch.full_like(beam.lengths, start)
        for number in range(int(lengths.max()) if len(lengths) else 0):
            candidates = grower.candidates(beam, frames[:, number, None])
            beam = grower.grown(beam, candidates, times + number, number < lengths)
        return beam


@dataclass(frozen=True, kw_only=True)
class AlignmentLengthBeamSearch(BeamOptions):
    """Alignment-length-synchronous (Saon et al. 2020): any number of labels per frame.

    At step i a hypothesis of u labels looks at frame i - u; those of one step are compared.

    Attributes:
        labels_per_frame: Labels of an utterance per frame of the encoder, at most.
    """

    labels_per_frame: float = 1.0

    @torch.no_grad()
    def __call__(
        self, model: Transducer, encoded: Tensor, lengths: Tensor
    ) -> list[list[Hypothesis]]:
        """Decode a batch; see `magneto.speech.decoding.Search`."""
        grower = self.grower(model)
        frames = model.joiner.encoder_proj(encoded)
        batch, last = len(frames), frames.shape[1] - 1
        rows = torch.arange(batch, device=frames.device)[:, None]
        longest = int(lengths.max()) if batch else 0
        most = (self.labels_per_frame * lengths).long().clamp(min=1)[:, None]
        beam = grower.begin(batch, int(most.max()) if batch else 1, frames.device)
        # Without frames the empty transcript is certain.
        ended = replace(beam, scores=torch.where((lengths == 0)[:, None], beam.scores, -torch.inf))
        beam = replace(beam, scores=torch.where((lengths > 0)[:, None], beam.scores, -torch.inf))
        always = torch.ones_like(lengths, dtype=torch.bool)
        for step in range(longest + beam.labels.shape[2]):
            times = step - beam.lengths
            candidates = grower.candidates(beam, frames[rows, times.clamp(0, last)])
            candidates[..., 1:].masked_fill_((beam.lengths >= most)[..., None], -torch.inf)
            beam = grower.grown(beam, candidates, times, always)
            over = step + 1 - beam.lengths >= lengths[:, None]
            ended = joined(ended, replace(beam, scores=beam.scores.masked_fill(~over, -torch.inf)))
            beam = replace(beam, scores=beam.scores.masked_fill(over, -torch.inf))
            if step % LOOK_EVERY == 0 and self._settled(beam, ended):
                break
        return best(ended, self.count, self.normalise)

    def _settled(self, beam: Beam, ended: Beam) -> bool:
        """Return whether no hypothesis that still grows can become one of the kept.

        Without a power of the length scores only fall.
        """
        least = ended.scores.amin(1) if self.normalise == 0 and self.fusion is None else -torch.inf
        return not bool((beam.scores.amax(1) > least).any())


def joined(one: Beam, other: Beam) -> Beam:
    """Return the best hypotheses of two beams of different labels, as many as each has."""

    def both(first: Any, second: Any) -> Any:
        return torch.cat((first, second), 1)

    width = one.scores.shape[1]
    batch = len(one.scores)
    names = ("scores", "labels", "frames", "lengths", "digests")
    values = {name: both(getattr(one, name), getattr(other, name)) for name in names}
    order = values["scores"].topk(width, 1).indices
    rows = torch.arange(batch, device=order.device)[:, None]
    # What goes on no more needs neither predictor nor language model.
    return replace(one, **{name: value[rows, order] for name, value in values.items()})
