"""Pictures of captions: what is written of images, and which images captions find."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("matplotlib")

from magneto.training.task import figures_of
from magneto.vision_language.caption_config import CaptionDataConfig
from magneto.vision_language.caption_pictures import readable_rows, searches_figure
from magneto.vision_language.captioning.config import CaptioningDataConfig, ImageCaptionerConfig
from magneto.vision_language.captioning.task import ImageCaptioning
from magneto.vision_language.retrieval.config import ImageTextRetrieverConfig
from magneto.vision_language.retrieval.task import ImageTextRetrieval
from tests.vision_language.karpathy import write_karpathy

SIZES: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 32, "image_size": 8,
                         "patch_size": 4, "max_length": 24}  # fmt: skip


def captioning(folder: Path) -> ImageCaptioning:
    data = CaptioningDataConfig(source=str(folder), tokenizer="bytes")
    return ImageCaptioning(ImageCaptionerConfig(**SIZES), data, 1)


def retrieval(folder: Path) -> ImageTextRetrieval:
    data = CaptionDataConfig(source=str(folder), tokenizer="bytes")
    return ImageTextRetrieval(ImageTextRetrieverConfig(**SIZES), data, 1)


@pytest.mark.parametrize("make", [captioning, retrieval])
def test_a_task_draws_its_validation_images(make: Any, tmp_path: Path) -> None:
    write_karpathy(tmp_path, ("train", "train", "val", "val", "val"))
    task = make(tmp_path)
    (figure,) = figures_of(task, task.build_model().eval())
    picture = np.asarray(Image.open(io.BytesIO(figure.image)))
    assert picture.std() > 10 and min(picture.shape[:2]) > 200


@pytest.mark.parametrize("make", [captioning, retrieval])
def test_broken_images_are_not_drawn(make: Any, tmp_path: Path) -> None:
    write_karpathy(tmp_path, ("train", "train", "val", "val"))
    for path in (tmp_path / "val2014").iterdir():
        path.write_bytes(b"no image")
    task = make(tmp_path)
    assert figures_of(task, task.build_model().eval()) == []


def test_captions_that_find_their_images_are_counted(tmp_path: Path) -> None:
    write_karpathy(tmp_path, ("train", "train", "val", "val", "val"))
    split = captioning(tmp_path).splits.validation
    rows = readable_rows(split)
    assert sorted(rows) == [0, 1, 2]
    texts = torch.eye(3)
    assert "caption's own in 3 of 3" in searches_figure(split, rows, texts, texts).caption
    turned = searches_figure(split, rows, texts[[1, 0, 2]], texts)
    assert "caption's own in 1 of 3" in turned.caption
