"""What numbers in masks mean, and pairs of image and mask as batches."""

from pathlib import Path

import numpy as np
import pytest

from magneto.vision.config import SegmentationDataConfig
from magneto.vision.decoding import BrokenImage
from magneto.vision.images import BROKEN, load_images
from magneto.vision.paired_transforms import PairedAugmentation
from magneto.vision.segmentation import MaskReading, evaluation_pairs, read_pair, training_pairs
from magneto.vision.transforms import Reading, fitted, fitted_size
from tests.vision.segmentation.folders import write_pairs

READING = Reading(16)


def test_zero_label_reduced() -> None:
    """ADE20k's 0 is no class and its 1 is the first of 150; what is ignored stays ignored."""
    masks = MaskReading(150, reduce_zero_label=True)
    stored = np.array([[0, 1, 2, 150, 255]], np.uint8)
    assert masks(stored).tolist() == [[255, 0, 1, 149, 255]]
    assert MaskReading(151)(stored).tolist() == stored.tolist()


def test_further_ignored_numbers_are_as_stored() -> None:
    assert MaskReading(11, ignored=(11,))(np.array([10, 11, 255])).tolist() == [10, 255, 255]
    reduced = MaskReading(3, reduce_zero_label=True, ignored=(4,))
    assert reduced(np.array([0, 1, 3, 4])).tolist() == [255, 0, 2, 255]


def test_an_unknown_class_is_named() -> None:
    with pytest.raises(BrokenImage, match=r"has 11, there are 11 classes: data\.ignored"):
        MaskReading(11)(np.array([[3, 11]], np.uint8))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((512, 683), (512, 683)),
        ((256, 341), (512, 682)),
        ((600, 3000), (410, 2048)),  # the longer side is at its limit
        ((3000, 600), (2048, 410)),
    ],
)
def test_test_scale_keeps_the_ratio(size: tuple[int, int], expected: tuple[int, int]) -> None:
    """(2048, 512): the shorter side is 512, unless the longer one would be above 2048."""
    assert fitted_size(*size, (2048, 512)) == fitted_size(*size, (512, 2048)) == expected
    assert fitted(np.zeros((*size, 3), np.uint8), (2048, 512)).shape[:2] == expected


def test_masks_keep_their_size_in_evaluation(tmp_path: Path) -> None:
    write_pairs(tmp_path, sizes=[(20, 30), (16, 16), (40, 22)])
    data = SegmentationDataConfig(
        source=str(tmp_path), fit=(64, 32), validation_source=str(tmp_path)
    )
    held = load_images(data, 1).validation
    batches = evaluation_pairs(held, MaskReading(5), data, READING, 2)
    assert len(batches) == 2
    images = [image for batch in batches for image in batch["images"]]
    masks = [mask for batch in batches for mask in batch["masks"]]
    assert {tuple(mask.shape) for mask in masks} == {(20, 30), (16, 16), (40, 22)}
    for image, mask in zip(images, masks, strict=True):
        height, width = mask.shape
        assert tuple(image.shape[1:]) == fitted_size(height, width, (64, 32))
        assert min(image.shape[1:]) == 32


def test_a_broken_pair_counts_for_nothing_and_is_counted(tmp_path: Path) -> None:
    write_pairs(tmp_path, sizes=[(20, 30), (16, 16)])
    (tmp_path / "annotations" / "1.png").write_bytes(b"no image")
    data = SegmentationDataConfig(source=str(tmp_path), validation_source=str(tmp_path))
    splits = load_images(data, 1)
    (batch,) = evaluation_pairs(splits.validation, MaskReading(5), data, READING, 2)
    assert batch["broken"].tolist().count(True) == 1
    lost = batch["broken"].tolist().index(True)
    assert (batch["masks"][lost] == 255).all() and (batch["masks"][1 - lost] != 255).any()
    transform = PairedAugmentation(READING, data.augmentation)
    stream = training_pairs(splits.train, MaskReading(5), transform, 2, 1)
    (batch,) = stream.batch(0)
    assert batch["images"].shape == (2, 3, 16, 16) and batch["masks"].shape == (2, 16, 16)
    assert batch["broken"].tolist().count(True) == 1


def test_sizes_must_agree(tmp_path: Path) -> None:
    from PIL import Image

    write_pairs(tmp_path, sizes=[(20, 30), (16, 16)])
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(tmp_path / "annotations" / "0.png")
    data = SegmentationDataConfig(source=str(tmp_path), validation_source=str(tmp_path))
    held = load_images(data, 1).validation
    with pytest.raises(BrokenImage, match=r"is 20 x 30, its mask 5 x 5"):
        read_pair(held, 0, MaskReading(5))
    (tmp_path / "annotations" / "1.png").write_bytes(b"no image")
    with pytest.raises(BrokenImage, match=r"^its mask: no image file"):
        read_pair(held, 1, MaskReading(5))
    list(evaluation_pairs(held, MaskReading(5), data, READING, 2))
    assert held.problems.describe() == f"{BROKEN}: 2"
