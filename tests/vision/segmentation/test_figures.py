"""Pictures for a run's report."""

import io
from pathlib import Path

import numpy as np
import pytest

from magneto.training.task import Figure, figures_of
from magneto.vision.segmentation.figures import MOST, confusion_figure
from tests.vision.segmentation.test_task import task_of


def test_figures_of_a_model(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    task = task_of(tmp_path)
    found = list(figures_of(task, task.build_model().eval()))
    assert len(found) == 5 and len({figure.name for figure in found}) == 5
    for figure in found[:-1]:
        assert isinstance(figure.image, bytes) and "%" in figure.caption
        width, height = image.open(io.BytesIO(figure.image)).size
        assert width > 3 * 360 and height > 100
    assert isinstance(found[-1].image, str) and "<svg" in found[-1].image


def test_nothing_is_drawn_of_broken_images(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    for path in (tmp_path / "images").iterdir():
        path.write_bytes(b"no image")
    assert list(figures_of(task, task.build_model().eval())) == []


def shares(figure: Figure) -> list[str]:
    assert isinstance(figure.image, str)
    return [line for line in figure.image.splitlines() if "<text" in line]


def test_confusion_is_percent_of_a_class_s_pixels() -> None:
    matrix = np.array([[75, 25, 0], [0, 10, 0], [0, 0, 0]])
    figure = confusion_figure(matrix, ["sky", "road", "tree"])
    text = "".join(shares(figure))
    assert ">75<" in text and ">25<" in text and ">100<" in text
    assert "sky" in text and "tree" not in text and "110 pixels" in figure.caption
    assert figure == confusion_figure(matrix, ["sky", "road", "tree"])


def test_many_classes_are_cut_to_the_commonest() -> None:
    matrix = np.diag(np.arange(1, 151))
    figure = confusion_figure(matrix, [f"class{number}" for number in range(150)])
    assert f"{150 - MOST} rarer classes are left out" in figure.caption
    text = "".join(shares(figure))
    assert "class149" in text and "class20<" not in text
