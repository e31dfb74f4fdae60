"""Buckets of utterances of like length, and full groups of each, to measure what fits a memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from magneto.speech.batching import SpeechBatch

# Utterances of a group at most.
MOST_UTTERANCES = 4096


@dataclass(frozen=True)
class Bucket:
    """Utterances of like length.

    Attributes:
        frames: Of the longest.
        labels: Most of an utterance of this bucket or of a shorter one: groups may have both.
        utterances: That are in it.
    """

    frames: int
    labels: int
    utterances: int


def length_buckets(lengths: np.ndarray, count: int) -> list[Bucket]:
    """Cut utterances into buckets of about as many each, short ones first.

    Args:
        lengths: (utterances, 2) of frames and labels.
        count: Of buckets; where lengths are alike there are fewer.
    """
    frames = np.sort(lengths[:, 0])
    edges = sorted({int(part[-1]) for part in np.array_split(frames, count) if len(part)})
    found, below = [], -1
    for edge in edges:
        inside = lengths[:, 0] <= edge
        here = int((inside & (lengths[:, 0] > below)).sum())
        found.append(Bucket(edge, int(lengths[inside, 1].max()), here))
        below = edge
    return found


def full_group(bucket: Bucket, count: int, mel_bins: int, vocab_size: int) -> SpeechBatch:
    """Return a group of so many of a bucket's longest utterances, of random content."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(1, vocab_size, (count, bucket.labels), generator=random)
    return SpeechBatch(
        torch.randn(count, bucket.frames, mel_bins, generator=random),
        torch.full((count,), bucket.frames),
        labels,
        torch.full((count,), bucket.labels),
        [(bucket.frames, bucket.labels)] * count,
        torch.ones(count),
        [str(number) for number in range(count)],
        [""] * count,
        [""] * count,
        count * bucket.frames,
    )


def largest_count(fits: Callable[[int], bool]) -> int:
    """Return the most utterances that fit, 0 if not even one does.

    Args:
        fits: Whether so many do. More than double of what fits is never tried.
    """
    held, beyond = 0, 1
    while beyond <= MOST_UTTERANCES and fits(beyond):
        held, beyond = beyond, 2 * beyond
    while beyond - held > 1 and held < MOST_UTTERANCES:
        middle = (held + beyond) // 2
        held, beyond = (middle, beyond) if fits(middle) else (held, middle)
    return held


def budgets(buckets: list[Bucket], counts: list[int]) -> tuple[int, int]:
    """Return `data.max_frames` and `data.max_cells` by which every group fits.

    Args:
        buckets: Of the training set.
        counts: Largest of each, at least 1.
    """
    frames = min(n * each.frames for n, each in zip(counts, buckets, strict=True))
    cells = max(max(frames, each.frames) * (each.labels + 1) for each in buckets)
    return frames, cells
