"""Images with captions of every kind of source; what is odd is counted."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magneto.data.problems import EMPTY, HALF_CHARACTERS, MALFORMED, DataProblems
from magneto.vision.images import WITHOUT_IMAGE, ImageSplit, ImageSplits
from magneto.vision_language.config import CaptionDataConfig
from magneto.vision_language.tables import (
    LOST,
    MISSING,
    OTHER_SPLITS,
    SEVERAL,
    TWICE,
    load_captions,
)
from tests.shards import write_lines
from tests.unit.vision.image_files import photo, write, write_photos
from tests.unit.vision_language.folders import grey, record, write_dataset, write_karpathy


def load(source: Path | str, **changes: Any) -> ImageSplits:
    return load_captions(CaptionDataConfig(source=str(source), **changes), DataProblems())


def captions(*parts: ImageSplit) -> set[str]:
    return {text for part in parts for own in part.values("captions") for text in own}


def names(rows: ImageSplit) -> list[str]:
    return [Path(rows.name(index)).stem.removeprefix("COCO_") for index in range(len(rows))]


def test_a_file_with_everything_that_can_be_odd(tmp_path: Path) -> None:
    paths = write_photos(tmp_path, 6)
    records: list[Any] = [
        {"image": paths[0], "caption": "a  house\n"},
        {"image": paths[0], "caption": "a house"},
        {"image": paths[0], "caption": "another"},
        {"image": "gone.png", "caption": "not there"},
        {"image": paths[1], "caption": " "},
        {"image": paths[1]},
        {"caption": "alone"},
        {"image": 3, "caption": "a number"},
        "[1, 2]",
        {"image": paths[2], "caption": ["one", None, "two", "one"]},
        *({"image": path, "caption": f"last {path}"} for path in paths[3:]),
        {"image": paths[3], "caption": "once more"},
    ]
    found = load(write_lines(tmp_path / "pairs.jsonl", records), validation_fraction=0.5)
    parts, counts = (found.train, found.validation), found.counts
    last = {f"last {path}" for path in paths[3:]}
    expected = {"a house", "another", "one", "two", "once more", *last}
    assert captions(*parts) - {"not there"} == expected
    every = [*found.train.values("captions"), *found.validation.values("captions")]
    assert (f"last {paths[3]}", "once more") in every
    kinds = (TWICE, EMPTY, WITHOUT_IMAGE, MALFORMED)
    assert [counts[kind] for kind in kinds] == [2, 3, 2, 1]
    assert counts[MISSING] + counts[LOST] == 1
    assert f"1 malformed record left out [{tmp_path / 'pairs.jsonl'}, line 9" in counts.describe()
    for rows in parts:
        for index in range(len(rows)):
            if names(rows)[index] != "gone":
                picture = rows.open(index)
                assert np.array_equal(picture.pixels(), photo(int(names(rows)[index]), 8, 8))
    assert not {*names(found.train)} & {*names(found.validation)}


def test_splits_and_another_folder_of_images(tmp_path: Path) -> None:
    paths = write_photos(tmp_path / "pictures" / "all", 6)
    for split, some in (("train", paths[:3]), ("val", paths[3:5]), ("test", paths[5:])):
        lines = ({"path": path, "text": f"{split} {path}"} for path in some)
        write_lines(tmp_path / f"{split}.jsonl", lines)
    folder = str(tmp_path / "pictures" / "all")
    found = load(tmp_path, image_folder=folder)
    assert len(found.train) == 3 and captions(found.validation) == {"val 3.png", "val 4.png"}
    assert captions(load(tmp_path, image_folder=folder, validation_split="test").validation) == {
        "test 5.png"
    }
    with pytest.raises(ValueError, match=r"all 3 rows are missing.*0\.png.*data\.image_folder"):
        load(tmp_path)
    other = {"validation_source": str(tmp_path / "train.jsonl"), "image_folder": folder}
    assert captions(load(tmp_path / "val.jsonl", **other).validation) == captions(found.train)


def test_a_test_split_without_captions_is_needed_only_to_validate_on(tmp_path: Path) -> None:
    paths = write_photos(tmp_path, 6)
    lines = [{"image": path, "caption": f"it is {path}"} for path in paths]
    write_lines(tmp_path / "train.jsonl", lines[:4])
    write_lines(tmp_path / "test.jsonl", [{"image": path} for path in paths[4:]])
    found = load(tmp_path, validation_fraction=0.5)
    assert len(found.train) + len(found.validation) == 4
    assert "1 unusable split left out [test: " in found.counts.describe()
    for changes in ({"validation_split": "test"}, {"validation_source": str(tmp_path)}):
        with pytest.raises(ValueError, match="no column 'text'"):
            load(tmp_path, **changes)


def test_what_can_not_be_used_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", b"image,text\nbad.png, \n")
    with pytest.raises(ValueError, match=r"no column 'pictures' \(data.image_column\)"):
        load(path, image_column="pictures")
    with pytest.raises(ValueError, match=r"no valid rows \(1 empty text"):
        load(path)


def test_splits_in_karpathys_layout(tmp_path: Path) -> None:
    """Images lie wherever below the folder; what has no caption or another split is counted."""
    path = write_karpathy(tmp_path)
    found = load(tmp_path)
    assert [names(part) for part in (found.train, found.validation)] == [
        ["0", "1", "2", "5"], ["3", "6"]
    ]  # fmt: skip
    for part in (found.train, found.validation):
        for index, (number, captions) in enumerate(
            zip(names(part), part.values("captions"), strict=True)
        ):
            assert part.open(index).pixels()[0, 0, 0] == 20 * int(number)
            assert captions[1] == f"brightness {20 * int(number)}" and len(captions) == 2
    assert names(load(path, validation_split="test").validation) == ["4", "7"]
    measured = load(tmp_path, validation_source=str(tmp_path), validation_split="test")
    assert names(measured.validation) == ["4", "7"]
    inner = tmp_path / "annotations" / path.name
    inner.parent.mkdir()
    path.rename(inner)
    assert names(load(tmp_path).train) == ["0", "1", "2", "5"]
    inner.rename(path)
    (tmp_path / "train2014" / "COCO_0.jpg").unlink()
    (tmp_path / "val2014" / "COCO_3.jpg").unlink()
    found = load(tmp_path)
    assert names(found.train) == ["1", "2", "5"] and names(found.validation) == ["3", "6"]
    assert found.counts[MISSING] == found.counts[LOST] == 1
    with pytest.raises(ValueError, match="needs a test split and another split for training"):
        load(write_karpathy(tmp_path, ("train",) * 3), validation_split="test")
    found = load(write_karpathy(tmp_path, ("train",) * 40), validation_fraction=0.3)
    assert len(found.train) + len(found.validation) == 40 and 3 < len(found.validation) < 20


def test_odd_records_in_karpathys_layout(tmp_path: Path) -> None:
    write_karpathy(tmp_path)
    good = record(0, "train")
    half = {**record(1, "train"), "sentences": [{"raw": "a \ud83d dog"}]}
    silent = {**record(2, "train"), "sentences": [{"raw": " "}, {"raw": None}]}
    odd = [{**record(3, "val"), "filename": 7}, "words", silent, record(3, "val"),
           *({**record(4, "val"), "split": split} for split in ("valid", ["val"]))]  # fmt: skip
    path = write_dataset(tmp_path, [good, half, *odd])
    packed = write(path.with_suffix(".json.gz"), gzip.compress(path.read_bytes()))
    path.unlink()
    write(tmp_path / "zz" / "COCO_0.jpg", b"another of that name")
    found = load(tmp_path)
    assert names(found.train) == ["0", "1"] and names(found.validation) == ["3"]
    assert found.train.values("captions")[1] == ("a \ufffd dog",)
    expected = {MALFORMED: 2, OTHER_SPLITS: 2, HALF_CHARACTERS: 1, SEVERAL: 1}
    assert {kind: found.counts[kind] for kind in expected} == expected
    table = [
        {"image": path, "caption": f"it is {path}"} for path in write_photos(tmp_path / "a", 4)
    ]
    (tmp_path / "a" / "dataset.json").write_text(json.dumps(table))  # no file in this layout
    assert len(load(tmp_path / "a" / "dataset.json", validation_fraction=0.5).train) < 4
    packed.write_bytes(gzip.compress(b'{"rows": []}'))
    with pytest.raises(ValueError, match='no list of "images"'):
        load(tmp_path)
    write_dataset(tmp_path, [record(98, "train"), record(99, "train")])
    with pytest.raises(ValueError, match=r"COCO_9[89]\.jpg.*image_folder"):
        load(path)
    with pytest.raises(ValueError, match="to one of them"):
        load(tmp_path)


def test_cocos_files_of_captions(tmp_path: Path) -> None:
    """Each split has its folder of images, whose names may repeat."""
    for split in ("train2017", "val2017"):
        for number in (1, 2, 3):
            write(tmp_path / split / f"{number}.jpg", grey(20 * number + 100 * (split[0] == "v")))
        images = [{"id": number, "file_name": f"{number}.jpg"} for number in (1, 2, 3)]
        captions = [{"image_id": n, "caption": f"{split} {n}"} for n in (1, 2, 2, 3, 4)]
        captions[2] = {"image_id": 2, "caption": f"more {split}"}
        lists = {"info": {}, "images": images, "annotations": captions}
        write_lines(tmp_path / "annotations" / f"captions_{split}.json", [lists])
    found = load(tmp_path)
    for rows, split, first in ((found.train, "train2017", 0), (found.validation, "val2017", 100)):
        assert list(rows.values("captions")) == [
            (f"{split} 1",), (f"{split} 2", f"more {split}"), (f"{split} 3",)]  # fmt: skip
        assert [rows.open(n).pixels()[0, 0, 0] - first for n in range(3)] == [20, 40, 60]
    assert found.counts[MALFORMED] == 2
    alone = tmp_path / "annotations" / "captions_val2017.json"
    with pytest.raises(ValueError, match=r"no images below .*set data\.image_folder"):
        load(alone)
    both = load(alone, image_folder=str(tmp_path / "val2017"), validation_fraction=0.4)
    assert names(both.train) + names(both.validation) != [] and not both.counts[MISSING]
    write(tmp_path / "captions_train.json", b"{}")
    with pytest.raises(ValueError, match="two files for one split"):
        load(tmp_path)
