"""The baseline of segmentation sees a pixel's colour and place, and is scored like a run."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.vision.segmentation.folders import write_pairs

pytest.importorskip("sklearn")
pytest.importorskip("PIL.Image")

from benchmarks.segmentation_baseline import main, pixel_features


def test_features_are_colour_and_place() -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    found = pixel_features(pixels)
    assert found.shape == (6, 5)
    assert found[4].tolist() == [12, 13, 14, 1.0, 0.5]
    assert pixel_features(pixels[..., :1])[4].tolist() == [12, 12, 12, 1.0, 0.5]


def test_it_is_scored_on_every_pixel(tmp_path: Path) -> None:
    """Stripes whose brightness is their class: colour alone tells nearly all."""
    write_pairs(tmp_path / "data", [(20, 30), (16, 16), (24, 22)])
    source = str(tmp_path / "data")
    fields = {"data.source": source, "data.validation_source": source, "model.classes": "5"}
    settings = [word for key, value in fields.items() for word in ("--set", f"{key}={value}")]
    main([
        "segmentation/tiny", *settings,
        "--trees", "3", "--pixels", "900", "--out", str(tmp_path / "found.json"),
    ])  # fmt: skip
    result = json.loads((tmp_path / "found.json").read_text())
    assert result["scores"]["mean_iou"] > 0.9 > 0.3 > result["constant"]["mean_iou"]
    assert {f"iou_{number}" for number in range(5)} < set(result["scores"])
