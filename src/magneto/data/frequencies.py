"""How often tokens and classes occur: a model that knows nothing else is the least to beat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from magneto.files import read_json, write_json
from magneto.progress import Progress

# Numbers counted at a time: a memory-mapped corpus is never in memory as 64-bit numbers.
PIECE = 1 << 24


def count_numbers(numbers: np.ndarray, size: int) -> np.ndarray:
    """Return how often each of 0 ... size - 1 occurs, (size,)."""
    counts = np.zeros(size, np.int64)
    for start in range(0, len(numbers), PIECE):
        counts += np.bincount(numbers[start : start + PIECE], minlength=size)
    return counts


def count_targets(
    batches: Iterable[Mapping[str, Any]], size: int, limit: int | None = None
) -> np.ndarray:
    """Return how often each of `size` tokens is a target of the first batches, (size,).

    Negative targets are not asked for.
    """
    counts = np.zeros(size, np.int64)
    for batch in islice(batches, limit):
        targets = batch["targets"].numpy().reshape(-1)
        counts += count_numbers(targets[targets >= 0], size)
    return counts


def frequency_nats(
    train: np.ndarray, asked: np.ndarray, allowed: np.ndarray | None = None
) -> float:
    """Return the summed cross-entropy, in nats, of answering with the training frequencies.

    Args:
        train: How often each number occurs in training, (size,). One is added to each count.
        asked: How often each is asked for, (size,).
        allowed: True for numbers that can be asked for, (size,); the others have no share.
    """
    counts = (train + 1.0) * (True if allowed is None else allowed)
    there = asked > 0
    return float(-(asked[there] * np.log(counts[there] / counts.sum())).sum())


# In a run whose encoder others begin with: the metrics of guessing by frequency.
PLATEAU_FILE = "baseline.json"
# A loss above this share of the plateau's is at the plateau: its place differs by a few hundredths
# with the batches that it is measured on.
AT_PLATEAU = 0.97
# A model that has learnt by heart has a loss as high; but its answers are right more often, by more
# than this share of all.
MORE_RIGHT = 0.02


def write_plateau(run: Path, metrics: Mapping[str, float]) -> None:
    """Keep what guessing by frequency scores, for those who begin with this run's encoder."""
    if metrics:
        write_json(run / PLATEAU_FILE, {name: round(value, 4) for name, value in metrics.items()})


def warn_unlearnt(run: Path, progress: Progress) -> None:
    """Say it if a run that another begins with has learnt nothing; it goes on all the same."""
    if warning := learnt_nothing(run):
        progress.say(warning)


def learnt_nothing(run: Path) -> str:
    """Say that a run's encoder has learnt nothing, or "" if it has, or nothing is known of it."""
    try:
        plateau = read_json(run / PLATEAU_FILE)
        metrics = read_json(run / "result.json")["metrics"]
        level, loss = float(plateau["loss"]), float(metrics["loss"])
        gained = [metrics[name] - plateau[name] for name in plateau if is_share_right(name)]
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # another kind of run, or one that has not ended
    if loss < AT_PLATEAU * level or any(more > MORE_RIGHT for more in gained):
        return ""
    return (
        f"warning: the encoder of {run} has learnt nothing but frequencies: its validation loss is "
        f"{loss:.3g}, and {level:.3g} is had without a look at the input; train it longer, or at "
        "another learning rate, before it is fine-tuned"
    )


def is_share_right(metric: str) -> bool:
    """Return whether a metric is the share of answers that are right."""
    return metric.endswith("accuracy")
