"""Sizes of images and patches that a recipe leaves open are derived from the data, and kept."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from magneto.runs import load_run
from magneto.vision.config import derive_sizes
from tests.said import Said
from tests.unit.vision.image_files import class_folders, encoded, write, write_pairs
from tests.unit.vision.small import SHAPE, small_recipe, small_task, train_small

SIZES = ("image_size", "patch_size", "channels", "max_length")


def grey_squares(folder: Path, side: int) -> dict[str, Any]:
    """A folder of two classes with six grey images each."""
    for name in ("light", "dark"):
        for number in range(6):
            pixels = np.full((side, side + number), 200 if name == "light" else 20, np.uint8)
            write(folder / name / f"{number}.png", encoded(pixels))
    return {"data__source": str(folder), "data__mixup": 0.0, "data__cutmix": 0.0}


def sizes_of(task: Any) -> list[int]:
    return [getattr(task.model_config, name) for name in SIZES]


@pytest.mark.parametrize(
    ("side", "given", "expected"),
    [
        (8, (None, None), (8, 2)), (28, (None, None), (28, 4)), (1, (None, None), (1, 1)),
        (500, (None, None), (64, 8)), (28, (None, 16), (32, 16)), (28, (50, None), (50, 10)),
        (28, (64, 4), (64, 4)),
    ],
)  # fmt: skip
def test_at_most_8_patches_of_64_pixels_a_side(side: int, given: Any, expected: Any) -> None:
    assert derive_sizes(side, *given) == expected


def test_a_run_keeps_what_was_derived(tmp_path: Path) -> None:
    source, run = grey_squares(tmp_path / "images", 28), tmp_path / "run"
    task, said = small_recipe("image-classification", **source).build_task(), Said()
    task.prepare(said)
    assert sizes_of(task) == [28, 4, 1, 49]
    assert any("image_size 28, patch_size 4, channels 1, 49 patches" in line for line in said.lines)
    train_small("image-classification", run, **source, training__steps=1)
    assert train_small("image-classification", run, **source, resume=True).step == 8
    (tmp_path / "images").rename(tmp_path / "gone")
    opened: Any = load_run(run, "auto", {})
    assert sizes_of(opened.task) == [28, 4, 1, 49]
    assert opened.model(torch.zeros(1, 1, 28, 28)).shape == (1, 2)


def test_photographs_have_colours_and_masks_have_classes(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos")
    shape = {name.replace(".", "__"): value for name, value in SHAPE.items()}
    task = small_task("image-tokenizer", data__source=str(folder), **shape)
    assert sizes_of(task) == [12, 2, 3, 36]
    write_pairs(tmp_path / "pairs", [(20, 30), (24, 22)], classes=4)
    pairs = {"data__source": str(tmp_path / "pairs"), "data__validation_fraction": 0.5}
    null = dict.fromkeys(("image_size", "patch_size", "classes", "stride"))
    given = {f"model__{name}": value for name, value in null.items()}
    segmentation = small_task("segmentation", **pairs, **given)
    assert segmentation.classes == 4 and segmentation.names == ["0", "1", "2", "3"]
    assert sizes_of(segmentation)[:2] == [21, 3]


def test_no_image_s_colours_and_no_mask_s_class_are_overlooked(tmp_path: Path) -> None:
    """The last of many folders alone has colours; one mask of many has the largest class."""
    for name in "abcdefgh":
        for number in range(10):
            pixels = np.full((8, 8, 3), ord(name) + 8 * number, np.uint8)
            pixels[..., 0] += 100 * (name == "h")
            write(tmp_path / "folders" / name / f"{number}.png", encoded(pixels))
    recipe = {"data__source": str(tmp_path / "folders")}
    assert sizes_of(small_task("image-classification", **recipe))[2] == 3
    write_pairs(tmp_path / "pairs", [(4, 4)] * 600, classes=2)
    write(tmp_path / "pairs/annotations/150.png", encoded(np.full((4, 4), 2, np.uint8)))
    pairs = {"data__source": str(tmp_path / "pairs"), "model__classes": None}
    assert small_recipe("segmentation", **pairs).build_task().classes == 3


def test_another_run_s_sizes_come_first(tmp_path: Path) -> None:
    """28 x 28 pixels are read as the 8 x 8 of the encoder, or of the tokenizer."""
    source, run = grey_squares(tmp_path / "images", 28)["data__source"], tmp_path / "run"
    train_small("image-tokenizer", run, training__steps=1)
    shutil.copytree(run, tmp_path / "tokenizer")
    modelling = {"data__image_tokenizer": str(run), "model__codes": None}
    assert sizes_of(small_task("image-modelling", data__source=source, **modelling))[:2] == [8, 2]
    train_small("image-classification", tmp_path / "encoder", training__steps=1)
    begun = {"data__source": source, "model__pretrained": str(tmp_path / "encoder")}
    assert sizes_of(small_task("image-classification", **begun)) == [8, 2, 1, 16]
