"""The benchmarks of images: the versions they make of images, and how they add up."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from benchmarks.image_pretraining import COUNTED, SIZES, few_images
from benchmarks.image_robustness import VERSIONS, make_set
from benchmarks.label_counts import curve
from tests.vision.pictures import Image, class_folders


def test_versions_of_images(tmp_path: Path) -> None:
    """Each changes the images, keeps their names and classes, and is the same when made again."""
    images = class_folders(tmp_path / "images", each=6)
    for name, change in VERSIONS.items():
        for out in (tmp_path / name, tmp_path / f"{name}-again"):
            make_set(images, out, change)
        files = sorted((tmp_path / name).rglob("*.png"))
        assert len(files) == 12 and {file.parent.name for file in files} == {"cat", "dog"}
        for file in files:
            relative = file.relative_to(tmp_path / name)
            original = np.asarray(Image.open((images / relative).with_suffix(".jpg")), float)
            made = np.asarray(Image.open(file), float)
            assert made.shape == original.shape and abs(made - original).mean() > 1, file
            assert file.read_bytes() == (tmp_path / f"{name}-again" / relative).read_bytes()


def test_few_images_of_each_class(tmp_path: Path) -> None:
    source = str(class_folders(tmp_path / "images"))
    found = few_images(source, 3, 1, tmp_path / "few")
    train, held = Path(found["data.source"]), Path(found["data.validation_source"])
    assert {len(list((train / name).iterdir())) for name in ("cat", "dog")} == {3}
    assert not {p.name for p in train.rglob("*.png")} & {p.name for p in held.rglob("*.png")}
    assert few_images(source, 3, 1, tmp_path / "again")["data.source"] != found["data.source"]
    names = [
        sorted(p.name for p in (tmp_path / n / "3-1").rglob("*.png")) for n in ("few", "again")
    ]
    assert names[0] == names[1]


def test_the_rate_with_the_best_mean_counts() -> None:
    runs = [
        {"images_per_class": 5, "arm": "from scratch", "seed": s, "rate": r, "accuracy": a}
        for s, r, a in ((1, 1e-3, 0.5), (2, 1e-3, 0.7), (1, 3e-3, 0.9), (2, 3e-3, 0.1))
    ]
    [row] = curve(runs, COUNTED)
    assert row["rate"] == 1e-3 and row["accuracy"] == pytest.approx(0.6)
    assert json.dumps(SIZES["digits"].model)
