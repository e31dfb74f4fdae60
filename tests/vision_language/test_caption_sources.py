"""Which captioned images are trained on: Karpathy's layout, and what pre-training reads."""

import json
from pathlib import Path

import pytest

from magneto.config import ConfigError
from magneto.vision_language.caption_config import CaptionDataConfig
from magneto.vision_language.caption_sources import load_captions
from magneto.vision_language.captions import CaptionSplits
from tests.vision_language.karpathy import write_karpathy
from tests.vision_language.reasoning.folders import write_image


def loaded(source: Path | str, **options: object) -> CaptionSplits:
    return load_captions(CaptionDataConfig(source=str(source), **options))  # type: ignore[arg-type]


def names(found: CaptionSplits) -> list[list[str]]:
    return [[row.name[5:-4] for row in part.rows] for part in (found.train, found.validation)]


def test_splits_in_karpathys_layout(tmp_path: Path) -> None:
    path = write_karpathy(tmp_path)
    assert names(loaded(tmp_path)) == [["0", "1", "2", "5"], ["3", "6"]]
    assert names(loaded(path, validation_split="test"))[1] == ["4", "7"]
    measured = loaded(tmp_path, validation_source=str(tmp_path), validation_split="test")
    assert names(measured)[1] == ["4", "7"]
    (tmp_path / "train2014" / "COCO_0.jpg").unlink()
    (tmp_path / "val2014" / "COCO_3.jpg").unlink()
    assert names(loaded(tmp_path)) == [["1", "2", "5"], ["3", "6"]]
    with pytest.raises(ValueError, match="has no test split, it has train"):
        loaded(write_karpathy(tmp_path, ("train",) * 3), validation_split="test")


def test_images_are_held_out_where_there_is_no_split(tmp_path: Path) -> None:
    write_karpathy(tmp_path, ("train",) * 40)
    train, held = names(loaded(tmp_path, validation_fraction=0.3))
    assert len(train) + len(held) == 40 and 3 < len(held) < 20


def test_captions_of_a_file_of_pairs_come_together(tmp_path: Path) -> None:
    for name in "abcdefghij":
        write_image(tmp_path / f"{name}.png", 50)
    rows = [{"image": f"{name}.png", "caption": f"{name} {turn}"}
            for turn in (1, 2) for name in "abcdefghij"]  # fmt: skip
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = loaded(tmp_path / "all.jsonl", validation_fraction=0.5)
    every = [*found.train.rows, *found.validation.rows]
    assert {row.captions for row in every} == {(f"{n} 1", f"{n} 2") for n in "abcdefghij"}


def test_a_split_of_another_layout_is_refused() -> None:
    """Scores of a validation split would be taken for those of the test split."""
    with pytest.raises(ValueError, match=r"builtin:shapes is none: .*data\.validation_source"):
        loaded("builtin:shapes", validation_split="test")


def test_built_in_captions_are_distinct() -> None:
    found = loaded("builtin:shapes")
    for part in (found.train, found.validation):
        assert len({row.captions for row in part.rows}) == len(part) > 100


def test_impossible_values_are_named() -> None:
    with pytest.raises(ConfigError, match="validation_fraction"):
        CaptionDataConfig(validation_fraction=2.0)
    with pytest.raises(ConfigError, match="no built-in images with texts"):
        CaptionDataConfig(source="builtin:shape")
