"""Pictures of attention from statements to their images."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from magneto.training.task import figures_of
from magneto.vision_language.reasoning import figures
from magneto.vision_language.reasoning.figures import headline, some_statements
from magneto.vision_language.reasoning.statements import Statement
from tests.vision_language.reasoning.test_task import task_of


@pytest.mark.parametrize("given", ["both", "images"])
def test_a_row_for_each_image(given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two for each statement, a panel for the image and one for each word; none without words."""
    from PIL import Image

    monkeypatch.setattr(figures, "STATEMENTS", 2)
    task = task_of(tmp_path, input=given)
    torch.manual_seed(0)
    drawn = figures_of(task, task.build_model().eval())
    if given == "images":
        assert drawn == []
        return
    (figure,) = drawn
    picture = np.asarray(Image.open(io.BytesIO(figure.image)))  # type: ignore[arg-type]
    assert picture.shape[0] > 2 * 2 * 100 and picture.std() > 10
    assert "layer 1 of 1" in figure.caption
    texts = [task.splits.validation.statements[row].sentence
             for row in some_statements(task.validation)]  # fmt: skip
    assert len(set(texts)) == 2


def test_broken_images_are_not_drawn(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    for path in tmp_path.glob("dev/*.png"):
        path.write_bytes(b"no image")
    assert figures_of(task, task.build_model().eval()) == []


def test_headings() -> None:
    one = Statement("dev-0-0-0", "it is so", 1, (0, 1), "dev-0", "dev-0-0")
    assert headline(one, 0) == "it is so   —   model: False; it is True"
