"""Image-text retrieval under torchrun or alone.

python ranks.py FOLDER RUN [key=value ...]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from magneto.progress import ProgressBars
from magneto.training.config import TrainingConfig
from magneto.training.loop import train
from magneto.vision_language.config import CaptionDataConfig, ImageTextRetrieverConfig
from magneto.vision_language.retrieval import ImageTextRetrieval


def run(folder: Path, out: Path, **changes: Any) -> None:
    """Train three steps of 7 pairs on a folder of `tests.unit.vision_language.karpathy`."""
    config = ImageTextRetrieverConfig(
        width=16, layers=1, heads=2, ffn_width=32, image_size=8, patch_size=4, max_length=24
    )
    data = CaptionDataConfig(source=str(folder), tokenizer="bytes")
    settings = TrainingConfig(
        steps=3, batch_size=7, learning_rate=1e-3, eps=1e-3, device="cpu", tensorboard=False,
        **changes,
    )  # fmt: skip
    task = ImageTextRetrieval(config, data, 1)
    train(task, settings, out, seed=1, report=ProgressBars(quiet=True))


if __name__ == "__main__":
    words: dict[str, Any] = dict(word.split("=") for word in sys.argv[3:])
    numbers = {key: int(value) for key, value in words.items() if value.isdigit()}
    run(Path(sys.argv[1]), Path(sys.argv[2]), **{**words, **numbers})
