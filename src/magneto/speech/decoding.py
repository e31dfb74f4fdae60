"""Greedy decoding of a transducer, by label looping; and what every search gives.

Label looping (arXiv 2406.06220): all utterances of a batch look for their next label, each at its
own frame, and then the predictor reads the labels of all at once. Here each looks at some frames at
a time, so that blanks, which are most, cost few steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from magneto.speech.config import SYMBOLS_PER_FRAME
from magneto.speech.model import Transducer
from magneto.speech.predictor import State
from magneto.speech.vocabulary import BLANK

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


class Search(Protocol):
    """A way to find labels."""

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
        ...


class StreamingSearch(Search, Protocol):
    """A search that can be run in parts, as frames come, and finds the same.

    How it is used::

        state = search.begin(model, frames)                       # of each utterance, at most
        for encoded, lengths in parts:
            state = search.advance(model, state, encoded, lengths)
        hypotheses = search.finish(model, state)
    """

    def begin(self, model: Transducer, frames: Tensor) -> Any:
        """Return the state before any frame.

        Args:
            model: In evaluation mode.
            frames: Of each utterance, at most, (batch,).
        """
        ...

    def advance(self, model: Transducer, state: Any, encoded: Tensor, lengths: Tensor) -> Any:
        """Return the state after some more frames.

        Args:
            model: In evaluation mode.
            state: After the frames before; it is left as it is.
            encoded: (batch, frames, width), of these frames.
            lengths: How many of these are of each utterance, (batch,). One that has not all of
                them has ended.
        """
        ...

    def finish(self, model: Transducer, state: Any) -> list[list[Hypothesis]]:
        """Return what is found where no more frames come; as far as they came, at any time."""
        ...


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
class GreedySearch:
    """The most probable symbol at each step; a `StreamingSearch`.

    Attributes:
        symbols_per_frame: Labels at one frame, at most.
        look_ahead: Frames that are looked at together; changes nothing but the time.
    """

    symbols_per_frame: int = SYMBOLS_PER_FRAME
    look_ahead: int = LOOK_AHEAD

    def __call__(
        self, model: Transducer, encoded: Tensor, lengths: Tensor
    ) -> list[list[Hypothesis]]:
        """Decode a batch."""
        return self.finish(model, self.advance(model, self.begin(model, lengths), encoded, lengths))

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
        return collected(len(state.score), state.found, state.score)

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


def collected(
    batch: int, found: Sequence[tuple[Tensor, Tensor, Tensor]], score: Tensor
) -> list[list[Hypothesis]]:
    """Return one hypothesis per utterance from (rows, labels, frames) in the order of emission."""
    labels: list[list[int]] = [[] for _ in range(batch)]
    frames: list[list[int]] = [[] for _ in range(batch)]
    if found:
        rows, symbols, places = (torch.cat(parts).tolist() for parts in zip(*found, strict=True))
        for row, symbol, place in zip(rows, symbols, places, strict=True):
            labels[row].append(symbol)
            frames[row].append(place)
    return [[Hypothesis(*each)] for each in zip(labels, frames, score.tolist(), strict=True)]
