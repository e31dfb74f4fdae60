"""What is said of data before anything is trained."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from magneto.recipe import load_recipe
from magneto.start.summaries import badly_scaled, image_input, small_validation_set, steps_for


def images_of(folder: Path, side: int) -> Any:
    for number in range(2):
        path = folder / "ab"[number] / "1.png"
        path.parent.mkdir(parents=True)
        Image.new("L", (side, side), number).save(path, compress_level=1)
    return load_recipe("image-classification/start", {"data.source": str(folder)}).build_task()


def test_steps_are_so_many_epochs_within_limits() -> None:
    found = [steps_for(count, 2.0, (500, 2000)) for count in (10, 3000, 10**6)]
    assert found == [500, 1500, 2000]


def test_numbers_far_from_units_and_few_examples_are_remarked_on() -> None:
    numbers = np.random.default_rng(0).normal(0, 1, 200)
    assert not badly_scaled(numbers) and not badly_scaled(3 + 2 * numbers)
    for far in (50 + numbers, 50 * numbers, numbers / 50):
        [line] = badly_scaled(far)
        assert f"{far.mean():.4g}" in line and f"{far.std():.4g}" in line
    assert not small_validation_set(200) and "up to 0.10" in small_validation_set(25)[0]


@pytest.mark.parametrize(("side", "expected"), [(8, (8, 2, 16)), (28, (28, 4, 49)), (1, (1, 1, 1))])
def test_small_images_are_read_as_they_are(
    tmp_path: Path, side: int, expected: tuple[int, int, int]
) -> None:
    task = images_of(tmp_path, side)
    options = image_input(task.splits.train, {}).options
    assert tuple(options.values())[:3] == expected


def test_huge_images_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    task = images_of(tmp_path, 6000)
    with pytest.raises(ValueError, match=r"6000 x 6000 pixels.*Shrink"):
        image_input(task.splits.train, {})
