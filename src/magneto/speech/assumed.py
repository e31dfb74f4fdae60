"""Utterances that are not there: the longest that a recipe allows, for plans made without data."""

from __future__ import annotations

import torch

from magneto.speech.batching import SpeechBatch
from magneto.speech.config import SpeechDataConfig


def longest_batch(data: SpeechDataConfig) -> SpeechBatch:
    """Return a group of the longest utterances, as many as fit, with as many labels as fit.

    Args:
        data: Says the longest, and what a group may hold of frames, and of frames times labels.
    """
    frames = int(data.max_duration * 1000 / data.features.frame_shift)
    count = max(data.max_frames // frames, 1)
    spoken = int(data.max_duration * data.max_text_rate)
    labels = max(min(int(data.max_cells // (count * frames)) - 1, spoken), 1)
    return SpeechBatch(
        features=torch.zeros(count, frames, data.features.mel_bins),
        feature_lengths=torch.full((count,), frames),
        targets=torch.ones(count, labels, dtype=torch.long),
        target_lengths=torch.full((count,), labels),
        sizes=[(frames, labels)] * count,
        weights=torch.ones(count),
        ids=[""] * count,
        problems=[""] * count,
        texts=[""] * count,
        frames=count * frames,
    )
