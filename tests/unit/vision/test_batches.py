"""Broken images never end a run; neither workers nor ranks nor a resumption change a batch."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from magneto.data.workers import BatchPrefetcher
from magneto.vision.batches import read_or_replace
from magneto.vision.classification import ImageClassification
from magneto.vision.decoding import BrokenImage
from magneto.vision.images import BROKEN, BY_PILLOW
from tests.problems import listed
from tests.unit.vision.image_files import class_folders, encoded, photo, write
from tests.unit.vision.small import small_task


def task_of(folder: Path, **changes: Any) -> ImageClassification:
    """20 images in 2 classes: three are broken, and one is read by Pillow alone."""
    root, whole = class_folders(folder / "images"), encoded(photo(), "JPEG")
    odd = {"cat/003": b"no image", "dog/001": whole[:300], "dog/002": b"",
           "dog/004": whole[:-40] + whole[-2:]}  # fmt: skip
    for name, content in odd.items():
        write(root / f"{name}.jpg", content)
    source = {"data__source": str(root), "data__validation_source": str(root)}
    shape = {"model__channels": 3, "model__classes": 2, "model__image_size": 8}
    return small_task("image-classification", **source, **shape, **changes)


def taken(task: ImageClassification, workers: int, batches: int, parts: int = 1) -> dict:
    stream = task.train_stream(8, 1)
    with closing(BatchPrefetcher(stream, parts, range(parts), num_workers=workers)) as ahead:
        made = ahead.start()
        pieces = [piece for _ in range(batches) for piece in next(made)]
    return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def test_another_image_stands_in_place_of_a_broken_one(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    assert 0 < taken(task, 0, 5)["broken"].sum() < 20
    for index in range(20):
        _, used = read_or_replace(task.example, 20, index, (1, 0))
        assert (used != index) == (index in {3, 11, 12}) and used not in {3, 11, 12}

    def broken(index: int, random: np.random.Generator) -> dict:
        raise BrokenImage(f"{index} is no image")

    with pytest.raises(ValueError, match=r"32 .*images .* are broken; .* is no image"):
        read_or_replace(broken, 5, 1, (1, 0))


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_and_refused_images_are_listed(tmp_path: Path, workers: int) -> None:
    pytest.importorskip("simplejpeg")
    task, run = task_of(tmp_path), tmp_path / "run"
    run.mkdir()
    task.train_stream(8, 1).batch(0)  # before there is a run
    task.problems.write_to(run)
    taken(task, workers, 12)
    (held,) = task.validation_batches()
    lost = held["images"][held["broken"]]
    assert len(lost) == 3 and not lost.any() and len(held["labels"]) == 20
    kinds = {Path(name).stem: (kind, why) for kind, name, why in listed(run)}
    assert len(listed(run)) == 4 and kinds.keys() == {"001", "002", "003", "004"}
    assert kinds["003"] == (BROKEN, "no image file that Pillow can identify")
    assert kinds["004"][0] == BY_PILLOW and kinds["004"][1]
    assert task.problems.describe() == f"{BROKEN}: 3; {BY_PILLOW}: 1"
