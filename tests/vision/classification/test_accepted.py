"""Labels of which several may be right."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from magneto.vision.classification.accepted import accepted_classes, accepted_mask
from magneto.vision.images import FileStore, ImageSplit

NAMES = ["ILSVRC2012_val_00000002.JPEG", "n01/ILSVRC2012_val_00000001.JPEG"]


def split(names: list[str] = NAMES) -> ImageSplit:
    count = len(names)
    return ImageSplit(FileStore(Path("x"), names), np.arange(count), np.arange(count))


def write(path: Path, value: object) -> str:
    path.write_text(json.dumps(value))
    return str(path)


def test_an_image_s_own_label() -> None:
    assert [row.tolist() for row in accepted_classes(split(), 3, None)] == [[0], [1]]


def test_by_the_number_at_the_end_of_a_name(tmp_path: Path) -> None:
    found = accepted_classes(split(), 5, write(tmp_path / "real.json", [[4], [1, 2]]))
    assert [row.tolist() for row in found] == [[1, 2], [4]]
    mask = accepted_mask(found, np.array([1, 0]), 5)
    assert torch.equal(mask, torch.tensor([[0, 0, 0, 0, 1], [0, 1, 1, 0, 0]], dtype=torch.bool))


def test_what_is_no_such_file(tmp_path: Path) -> None:
    good = write(tmp_path / "real.json", [[0], [1]])
    with pytest.raises(FileNotFoundError, match=r"did you mean .*real\.json"):
        accepted_classes(split(), 5, str(tmp_path / "reel.json"))
    for value in ({"0": [1]}, [1, 2], [[7], [0]]):
        with pytest.raises(ValueError, match="no list of lists of class numbers below 5"):
            accepted_classes(split(), 5, write(tmp_path / "bad.json", value))
    with pytest.raises(ValueError, match="does not end with a number of 1 to 2"):
        accepted_classes(split(["a.JPEG"]), 5, good)
