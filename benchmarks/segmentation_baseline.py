"""The least to beat in segmentation: a classifier of single pixels by their colour and place.

    python -m benchmarks.segmentation_baseline segmentation/camvid --set data.source=DIR
    python -m benchmarks.segmentation_baseline segmentation/tiny --out FILE.json

It sees a pixel's red, green and blue, its row and its column, and nothing beside it: scikit-learn's
gradient-boosted trees (`HistGradientBoostingClassifier`), fitted to pixels drawn evenly from all
training images. It is scored as `magneto evaluate` scores a run: on every pixel of the validation
images, at the masks' size, by one confusion matrix.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from magneto.files import import_extra, write_text
from magneto.recipe import load_recipe
from magneto.training.environment import environment
from magneto.vision.images import ImageSplit
from magneto.vision.segmentation.config import IGNORED
from magneto.vision.segmentation.data import MaskReading, read_pair
from magneto.vision.segmentation.scores import confusion, segmentation_scores
from magneto.vision.segmentation.task import Segmentation


def pixel_features(pixels: np.ndarray) -> np.ndarray:
    """Return colour and place of each pixel of an image, row by row: (pixels, 5)."""
    rows, columns = (axis.ravel() / max(side - 1, 1)
                     for axis, side in zip(np.indices(pixels.shape[:2]), pixels.shape,
                                           strict=False))  # fmt: skip
    colours = np.broadcast_to(pixels, (*pixels.shape[:2], 3)).reshape(-1, 3)
    return np.column_stack((colours, rows, columns)).astype(np.float32)


def drawn_pixels(
    split: ImageSplit, masks: MaskReading, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw about `count` pixels that have a class, as many from each image.

    Returns:
        Their features, (pixels, 5), and classes.
    """
    random, each = np.random.default_rng(seed), -(-count // len(split))
    features, classes = [], []
    for index in range(len(split)):
        pixels, mask = read_pair(split, index, masks)
        known = np.flatnonzero(mask.ravel() != IGNORED)
        taken = random.permutation(known)[:each]
        features.append(pixel_features(pixels)[taken])
        classes.append(mask.ravel()[taken])
    return np.concatenate(features), np.concatenate(classes)


def measure(task: Segmentation, count: int, trees: int, seed: int) -> dict[str, float]:
    """Fit the classifier to a task's training images; return its scores on validation images."""
    ensemble = import_extra("sklearn.ensemble", "vision", "the baseline needs scikit-learn")
    model: Any = ensemble.HistGradientBoostingClassifier(max_iter=trees, random_state=seed)
    model.fit(*drawn_pixels(task.splits.train, task.masks, count, seed))
    size = task.model_config.classes
    total, held = torch.zeros(size, size, dtype=torch.long), task.splits.validation
    for index in range(len(held)):
        pixels, mask = read_pair(held, index, task.masks)
        answers = torch.from_numpy(model.predict(pixel_features(pixels)).astype(np.int64))
        total += confusion(torch.from_numpy(mask.ravel()), answers, size)
    return segmentation_scores(total.tolist(), task.names)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print, and write the result where `--out` says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("--pixels", type=int, default=200_000, help="to fit to (default 200000)")
    parser.add_argument("--trees", type=int, default=100, help="per class (default 100)")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a field of the recipe"
    )
    given = parser.parse_args(words)
    recipe = load_recipe(given.recipe, dict(field.split("=", 1) for field in given.set))
    task = recipe.build_task()
    assert isinstance(task, Segmentation)
    task.prepare()
    began = time.perf_counter()
    scores = measure(task, given.pixels, given.trees, recipe.seed)
    settings = {"recipe": given.recipe, "pixels": given.pixels, "trees": given.trees}
    result = {**settings, "seconds": time.perf_counter() - began, "scores": scores,
              "constant": task.baseline(), "environment": environment()}  # fmt: skip
    if given.out:
        write_text(given.out, json.dumps(result, indent=1))
    for name, value in scores.items():
        print(f"{name:<20}{value:.4f}")


if __name__ == "__main__":
    main()
