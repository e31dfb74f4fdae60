"""Greedy decoding of a transducer, by label looping; and what every search gives.

Label looping (arXiv 2406.06220): all utterances of a batch look for their next label, each at its
own frame, and then the predictor reads the labels of all at once. Here each looks at some frames at
a time, so that blanks, which are most, cost few steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from magneto.speech.config import SYMBOLS_PER_FRAME
from magneto.speech.model import Transducer
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


@dataclass
class GreedySearch:
    """The most probable symbol at each step.

    Attributes:
        symbols_per_frame: Labels at one frame, at most.
        look_ahead: Frames that are looked at together; changes nothing but the time.
    """

    symbols_per_frame: int = SYMBOLS_PER_FRAME
    look_ahead: int = LOOK_AHEAD

    @torch.no_grad()
    def __call__(
        self, model: Transducer, encoded: Tensor, lengths: Tensor
    ) -> list[list[Hypothesis]]:
        """Decode a batch; waits for the device at each step."""
        frames = model.joiner.encoder_proj(encoded)
        batch, device = len(frames), frames.device
        place = torch.zeros(batch, dtype=torch.long, device=device)
        emitted, score = torch.zeros_like(place), frames.new_zeros(batch, dtype=torch.float32)
        last = torch.full_like(place, BLANK)
        state = model.predictor.begin(batch, device)
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        rows = (lengths > 0).nonzero()[:, 0]
        while len(rows):
            output, after = model.predictor.step(last[rows], tuple(s[rows] for s in state))
            for whole, part in zip(state, after, strict=True):
                whole[rows] = part.to(whole.dtype)
            labels = model.joiner.predictor_proj(output)
            # Where a frame has given all that it may, a label comes from the next.
            full = emitted[rows] >= self.symbols_per_frame
            place[rows] += full
            emitted[rows] = torch.where(full, 0, emitted[rows])
            label, passed, gained = self._next_label(
                model, frames, lengths, rows, place[rows], labels
            )
            place[rows] += passed
            emitted[rows] = torch.where(passed > 0, 0, emitted[rows]) + 1
            score[rows] += gained
            there = place[rows] < lengths[rows]
            rows, label = rows[there], label[there]
            last[rows] = label
            found.append((rows, label, place[rows]))
        return collected(batch, found, score)

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
