"""What `magneto evaluate --features` does: what a model's frozen features tell of labels."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from magneto.commands.shared import print_json
from magneto.progress import ProgressBars
from magneto.runs import load_run
from magneto.vision.images import UNLABELLED, ImageSplit

if TYPE_CHECKING:
    from magneto.vision.classification.frozen_features import Features, FeatureScore

NAMES = {"class_token": "[CLS]", "mean": "mean"}


def evaluate(given: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run `magneto evaluate RUN --features`.

    A probe learns from training images and is asked of validation images: those of the run's own
    data, or of another source, of which some are held out where it has no split of its own.
    """
    from magneto.vision.classification.frozen_features import score_features

    if given.data:
        other = {"data.source": given.data, "data.validation_source": None, "data.classes": None}
        overrides = {**other, **overrides}
    opened: Any = load_run(given.run, given.weights, overrides)
    report, splits = ProgressBars(), opened.task.splits
    train, held = (
        features(opened, split, given.limit, report) for split in (splits.train, splits.validation)
    )
    scores = score_features(train, held, report)
    report.finish()
    for part in (train, held):
        if part.broken:
            report.say(f"{part.broken} images could not be read and are left out")
    if given.json:
        print_json({
            "run": str(given.run), "weights": str(opened.weights),
            "training_images": len(train.labels), "validation_images": len(held.labels),
            "scores": [asdict(score) for score in scores],
        })  # fmt: skip
    else:
        print(f"{opened.weights}: {len(train.labels):,} images to learn from, "
              f"{len(held.labels):,} asked")  # fmt: skip
        print("\n".join(table(scores)))
    return 0


def features(opened: Any, split: ImageSplit, limit: int | None, report: ProgressBars) -> Features:
    """Return the features of a split's images.

    Raises:
        ValueError: If they have no labels.
    """
    from magneto.vision.classification.frozen_features import collect_features

    if (split.labels_of() == UNLABELLED).any():
        raise ValueError("there are images without a label: give labelled ones, --data")
    return collect_features(opened.model, islice(opened.task.fixed_batches(split), limit), report)


def table(scores: Sequence[FeatureScore]) -> list[str]:
    """Return a line per layer: accuracies of both methods for each way of pooling."""
    poolings = list(dict.fromkeys(score.pooling for score in scores))
    head = [f"{NAMES[p]} {method}" for p in poolings for method in ("linear", "k-NN")]
    lines = ["layer       " + "".join(f"{word:>14}" for word in head)]
    by_place = {(score.layer, score.pooling): score for score in scores}
    for layer in dict.fromkeys(score.layer for score in scores):
        found = [by_place[layer, pooling] for pooling in poolings]
        cells = "".join(f"{s.linear:>14.4f}{s.neighbours:>14.4f}" for s in found)
        lines.append(f"{layer or 'embeddings':<12}{cells}")
    return lines
