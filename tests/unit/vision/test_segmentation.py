"""Segmentation: what numbers in masks mean, losses and scores of pixels, errors for people."""

import re
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.data.problems import Counts
from magneto.training.task import figures_of
from magneto.vision.config import SegmentationDataConfig
from magneto.vision.decoding import BrokenImage, PixelPicture
from magneto.vision.images import BROKEN, find_masks, paired_folders
from magneto.vision.models import pixel_logits
from magneto.vision.segmentation import (
    MaskClasses,
    Segmentation,
    confusion,
    read_pair,
    segmentation_scores,
)
from magneto.vision.transforms import resize_to_fit, size_to_fit
from tests.evaluating import measured
from tests.recorded_progress import RecordedProgress
from tests.unit.vision.image_files import encoded, write, write_pairs
from tests.unit.vision.small import SIZES, small_config, small_model


def task_of(folder: Path, data: dict[str, Any] | None = None, **model: Any) -> Segmentation:
    if not (folder / "images").is_dir():
        write_pairs(folder, SIZES)
    source = {"source": str(folder), "validation_source": str(folder)}
    config = SegmentationDataConfig(**{**source, **(data or {})})
    return Segmentation(small_config(**{"head_dropout": 0.0, **model}), config, 1)


def test_what_numbers_in_masks_mean() -> None:
    """ADE20k's 0 is no class and its 1 is the first of 150; what is ignored stays ignored."""
    stored = np.array([[0, 1, 2, 150, 255]], np.uint8)
    assert MaskClasses(150, reduce_zero_label=True)(stored).tolist() == [[255, 0, 1, 149, 255]]
    assert MaskClasses(151)(stored).tolist() == stored.tolist()
    # Further ignored numbers are as stored.
    assert MaskClasses(11, ignored=(11,))(np.array([10, 11, 255])).tolist() == [10, 255, 255]
    reduced = MaskClasses(3, reduce_zero_label=True, ignored=(4,))
    assert reduced(np.array([0, 1, 3, 4])).tolist() == [255, 0, 2, 255]
    with pytest.raises(BrokenImage, match=r"number 11, but the 11 classes .*data\.ignored"):
        MaskClasses(11)(np.array([[3, 11]], np.uint8))


def test_the_scale_of_evaluation_keeps_the_ratio() -> None:
    """(2048, 512): the shorter side is 512, unless the longer one would be above 2048."""
    sizes = {(512, 683): (512, 683), (256, 341): (512, 682), (600, 3000): (410, 2048)}
    for size, expected in sizes.items():
        assert size_to_fit(*size, (2048, 512)) == size_to_fit(*size, (512, 2048)) == expected
        assert resize_to_fit(np.zeros((*size, 3), np.uint8), (2048, 512)).shape[:2] == expected
        assert size_to_fit(*size[::-1], (2048, 512)) == expected[::-1]


def test_a_broken_pair_counts_for_nothing_and_is_counted(tmp_path: Path) -> None:
    write_pairs(tmp_path, [(20, 30), (16, 16), (18, 18)])
    write(tmp_path / "annotations" / "0.png", encoded(np.zeros((5, 5), np.uint8)))
    write(tmp_path / "annotations" / "1.png", b"no image")
    task = task_of(tmp_path)
    for index, words in ((0, r"20 x 30, but its mask is 5 x 5"), (1, r"^its mask: Pillow")):
        with pytest.raises(BrokenImage, match=words):
            read_pair(task.splits.validation, index, task.masks)
    (batch,) = task.validation_batches()
    assert batch["broken"].sum() == 2
    for lost, mask in zip(batch["broken"].tolist(), batch["masks"], strict=True):
        assert (mask == 255).all() == lost
    assert task.problems.describe() == f"{BROKEN}: 2"
    assert measured(task, task.build_model())["broken"] == 2
    (batch,) = task.train_stream(3, 1).batch(0)
    assert batch["images"].shape == (3, 3, 16, 16) and batch["masks"].shape == (3, 16, 16)
    assert batch["broken"].sum() == 2
    write(tmp_path / "images" / "2.png", b"no image")
    assert figures_of(task, task.build_model().eval()) == [], "no pair is left to draw"


def test_images_of_the_same_name_have_pictures_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[np.ndarray] = []
    monkeypatch.setattr(
        "magneto.vision.figures.confusion_matrix",
        lambda counts, words: counted.append(counts) or (b"<svg", 0),
    )
    monkeypatch.setattr("magneto.figures.save", lambda *given, **how: b"<svg")
    write_pairs(tmp_path, [(16, 16)] * 2)
    for kind in ("images", "annotations"):
        (tmp_path / kind / "a").mkdir()
        (tmp_path / kind / "1.png").rename(tmp_path / kind / "a" / "0.png")
    task = task_of(tmp_path)
    found = {figure.name: figure.title for figure in figures_of(task, task.build_model().eval())}
    assert [*found.values()].count("Segmentation of 0.png") == 2
    masks = [task.splits.validation.mask(number) for number in range(2)]
    assert counted[0].sum(1).tolist() == np.bincount(np.ravel(masks)).tolist()


NAMES = ["sky", "road", "tree", "car"]


def test_a_class_that_is_nowhere_is_left_out() -> None:
    """Not counted as 0, nor as 1; one that is only answered counts as 0."""
    matrix = np.array([[8, 0, 2, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 10]])
    found = segmentation_scores(matrix.tolist(), NAMES)
    assert "iou_road" not in found and found["iou_tree"] == 0
    assert found["mean_iou"] == pytest.approx((0.8 + 0 + 1) / 3)
    assert found["mean_accuracy"] == pytest.approx((0.8 + 1) / 2)
    assert found["pixel_accuracy"] == pytest.approx(18 / 20)
    matrix = confusion(torch.full((2, 3), 255, dtype=torch.uint8), torch.zeros(2, 3).long(), 4)
    with pytest.raises(ValueError, match="masks are ignored"):
        segmentation_scores(matrix.tolist(), NAMES)


def test_loss_is_a_sum_over_labelled_pixels(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    model = task.build_model().train()
    (batch,) = task.train_stream(4, 1).batch(0)
    batch["masks"][0, :3] = 255
    loss = task.loss(model, batch)
    known = batch["masks"] != 255
    assert loss.count == known.sum() and 0 < loss.count < known.numel()
    answer = model(batch["images"])
    expected = 0.0
    for weight, logits in ((1.0, answer.main), (0.4, answer.auxiliary)):
        large = F.interpolate(logits, size=(16, 16), mode="bilinear", align_corners=False)
        each = F.cross_entropy(large, batch["masks"].long().clamp(max=4), reduction="none")
        expected = expected + weight * each[known].sum()
    torch.testing.assert_close(loss.total, expected)
    assert loss.logs["broken"] == 0
    large = F.interpolate(answer.main, size=(16, 16), mode="bilinear", align_corners=False)
    assert loss.logs["pixel_accuracy"] == (large.argmax(1) == batch["masks"])[known].sum()
    one_broken = {**batch, "broken": torch.tensor([False, True, False, False])}
    assert task.loss(model, one_broken).logs["broken"] == known[1].sum()


@pytest.mark.parametrize(("images", "masks", "expected"), [
    (["1", "10"], ["1_mask", "10_mask", "x_mask"], ["1_mask", "10_mask"]),
    (["a/1", "a/2"], ["a/1", "a/1_colour"], ["a/1"]),
    (["a/1_leftImg8bit"], ["a/1_gtFine_color", "a/1_gtFine_labelIds"], ["a/1_gtFine_labelIds"]),
    ([*"123"], ["1_a", "7", "8"], []),
    ([*"12"], ["1_a", "1_b", "2_a", "2_b"], "several masks, such as 1_a.png and 1_b.png"),
])  # fmt: skip
def test_names_of_masks(images: list[str], masks: list[str], expected: list[str] | str) -> None:
    given = [f"{name}.jpg" for name in images], [f"{name}.png" for name in masks]
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            find_masks(*given)
    else:
        found = find_masks(*given)
        assert [*found.items()] == [*zip(given[0], [f"{m}.png" for m in expected], strict=False)]


def test_splits_that_have_images_and_masks(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("val", 2)):
        for number in range(count):
            for kind in ("images", "masks"):
                write(
                    tmp_path / split / kind / f"{number}.png", encoded(np.zeros((5, 5), np.uint8))
                )
    found = paired_folders(tmp_path, Counts())
    assert {split: len(table) for split, table in found.items()} == {"train": 3, "validation": 2}
    assert found["train"].columns["mask"].name(0) == str(tmp_path / "train" / "masks" / "0.png")


def test_scores_are_of_pixels_at_the_masks_size(tmp_path: Path) -> None:
    """By numpy, from the logits of each image alone, resized to its mask."""
    task = task_of(tmp_path, {"fit": (64, 32)})
    task.evaluation_batch = 4
    model, held = task.build_model().eval(), task.splits.validation
    matrix, loss, batches = np.zeros((5, 5)), 0.0, task.validation_batches()
    with torch.no_grad():
        for plan, batch in zip(batches.plans, batches, strict=True):
            for row, image, mask in zip(plan, batch["images"], batch["masks"], strict=True):
                assert np.array_equal(mask, held.mask(row))
                assert image.shape[1:] == size_to_fit(*mask.shape, (64, 32))
                logits = next(pixel_logits(model, [image]))[None]
                large = F.interpolate(logits, mask.shape, mode="bilinear", align_corners=False)
                loss += F.cross_entropy(large, mask[None].long(), reduction="sum").item()
                np.add.at(matrix, (mask.numpy(), large[0].argmax(0).numpy()), 1)
                assert np.array_equal(task.segment(model, held.pixels(row)), large[0].argmax(0))
    found = measured(task, model)
    assert matrix.sum() == sum(height * width for height, width in SIZES)
    assert found["pixel_accuracy"] == pytest.approx(matrix.trace() / matrix.sum())
    iou = [matrix[i, i] / (matrix[i].sum() + matrix[:, i].sum() - matrix[i, i]) for i in range(5)]
    assert found["mean_iou"] == pytest.approx(np.nanmean(iou))
    assert found["loss"] == pytest.approx(loss / matrix.sum(), rel=1e-4)
    assert [found[f"iou_{name}"] for name in range(5)] == pytest.approx(iou)


def test_baseline_is_the_commonest_class(tmp_path: Path) -> None:
    mask = np.array([[0] * 4, [0] * 4, [0, 0, 1, 1], [2, 2, 255, 255]])
    other = np.array([[1] * 4, [1] * 4, [0, 0, 1, 1], [2, 2, 255, 255]])
    held = mask_of_each(tmp_path / "held", other)
    data = {"classes": tuple("abcde"), "validation_source": str(held)}
    found = task_of(mask_of_each(tmp_path / "train", mask), data).baseline()
    # In training, 40, 8 and 8 pixels are a, b and c; frequencies are counted from one. In
    # validation, 2, 10 and 2 of 14 are a, b and c.
    assert found["pixel_accuracy"] == pytest.approx(2 / 14)
    assert found["mean_iou"] == pytest.approx((2 / 14 + 0 + 0) / 3)
    assert {"iou_a", "iou_b", "iou_c"} == {name for name in found if name.startswith("iou")}
    nats = -(2 * log(41 / 61) + 12 * log(9 / 61)) / 14
    assert found["loss"] == pytest.approx(nats)


def mask_of_each(folder: Path, mask: np.ndarray) -> Path:
    """Write four images with the same mask."""
    write_pairs(folder, [mask.shape[:2]] * 4)
    for path in (folder / "annotations").iterdir():
        write(path, encoded(mask.astype(np.uint16)))
    return folder


@pytest.mark.parametrize(
    ("numbers", "classes", "words"),
    [
        ((0, 1, 2, 4), None, ""), ((0, 128), None, "2 of the 129 classes.*0, 128.*data.ignored"),
        # 255 is no class: every pixel that counts would be of class 0, and every answer right.
        ((0, 255), None, "255 is always ignored"),
        ((4,), 4, r"is broken.* number 4, but the 4 classes"),
        ((300,), None, "is broken.* class 300 is above 255"),
    ],
)  # fmt: skip
def test_numbers_in_masks_that_are_no_classes(
    numbers: tuple[int, ...], classes: int | None, words: str, tmp_path: Path
) -> None:
    """Two numbers, 0 and 128, give 129 classes: the line names them and what to do."""
    mask_of_each(tmp_path, np.resize(np.array(numbers), (16, 16)))
    task, progress = task_of(tmp_path, classes=classes), RecordedProgress()
    if numbers in ((0, 255), (4,), (300,)):
        with pytest.raises(ValueError, match=words):
            task.prepare()
        return
    task.prepare(progress)
    assert task.classes == numbers[-1] + 1
    found = [line for line in progress.lines if line.startswith("WARNING")]
    assert len(found) == bool(words) and all(re.search(words, line) for line in found)


def test_classes_are_counted_without_ignored_numbers(tmp_path: Path) -> None:
    mask_of_each(tmp_path, np.resize(np.array([0, 1, 3, 7]), (16, 16)))
    options: list[dict[str, Any]] = [{"ignored": (7,)}, {"reduce_zero_label": True}]
    counts = [task_of(tmp_path, given, classes=None).classes for given in options]
    assert counts == [4, 7]


def test_predictions_are_shares_of_pixels_the_largest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = SegmentationDataConfig(classes=tuple("abcde"))
    task = Segmentation(small_config(head_dropout=0.0), data, 1)
    answers = np.array([[1, 1, 1, 3], [1, 1, 4, 3]], np.uint8)
    monkeypatch.setattr(task, "segment", lambda model, pixels: answers)
    picture = PixelPicture(np.zeros((2, 4, 3), np.uint8))
    (found,) = task.predict(small_model(), [picture])
    assert found.labels == [("b", 0.625), ("d", 0.25), ("e", 0.125)]


def test_a_split_without_masks_is_named_before_training(tmp_path: Path) -> None:
    write_pairs(tmp_path, [(16, 16)] * 3)
    named, bare = tmp_path / "named.csv", tmp_path / "bare.csv"
    rows = [(f"images/{n}.png", f"annotations/{n}.png") for n in range(3)]
    named.write_text("\n".join(["image,mask", *map(",".join, rows)]))
    bare.write_text("\n".join(["image,mask", *(f"{image}," for image, _ in rows)]))
    for sources, words in (((bare, named), "train"), ((named, bare), "validation")):
        data = dict(zip(("source", "validation_source"), map(str, sources), strict=True))
        with pytest.raises(ValueError, match=rf"bare\.csv: the {words} split has no masks"):
            task_of(tmp_path, data).prepare()
