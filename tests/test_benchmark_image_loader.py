"""The benchmark of the image pipeline measures every contender and writes it down."""

import json
from pathlib import Path

import pytest

pytest.importorskip("PIL")
pytest.importorskip("datasets")

from benchmarks import image_loader


def test_it_measures_every_contender(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(image_loader, "COUNTS", (0,))
    monkeypatch.setattr(image_loader, "BATCH", 2)
    words = ["--rounds", "1", "--batches", "2", "--images", "6", "--out", str(tmp_path)]
    image_loader.main([*words, "--name", "check"])
    result = json.loads((tmp_path / "check.json").read_text())
    assert [row["contender"] for row in result["rows"]] == list(image_loader.CONTENDERS)
    assert all(row["seconds"] > 0 and row["processor_seconds"] > 0 for row in result["rows"])
    assert "| ours, simplejpeg | 0 | 1 |" in (tmp_path / "check.md").read_text()
