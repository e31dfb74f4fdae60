"""Segmentation under torchrun or alone.

python ranks.py FOLDER RUN [key=value ...]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from magneto.progress import ProgressBars
from magneto.training.config import TrainingConfig
from magneto.training.loop import train
from magneto.vision.config import SegmentationDataConfig
from magneto.vision.segmentation import Segmentation
from tests.vision.segmentation.small import small_config


def run(folder: Path, out: Path, **changes: Any) -> None:
    """Train three steps on a folder of `tests.vision.segmentation.folders`."""
    data = SegmentationDataConfig(source=str(folder), validation_source=str(folder))
    task = Segmentation(small_config(head_dropout=0.0), data, 1)
    settings = TrainingConfig(
        steps=3, batch_size=4, learning_rate=1e-3, device="cpu", tensorboard=False, **changes
    )
    train(task, settings, out, seed=1, report=ProgressBars(quiet=True))


if __name__ == "__main__":
    words = dict(word.split("=") for word in sys.argv[3:])
    run(Path(sys.argv[1]), Path(sys.argv[2]), **words)
