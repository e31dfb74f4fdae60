"""Karpathy's layout: splits, odd records, missing files."""

import gzip
from pathlib import Path

import pytest

from magneto.data.counts import EMPTY, HALF_CHARACTERS, MALFORMED, Counts
from magneto.vision_language.captions import (
    DUPLICATES,
    IMAGES,
    MISSING_FILES,
    OTHER_SPLITS,
    WITHOUT_CAPTION,
    find_karpathy,
    read_karpathy,
)
from magneto.vision_language.image_files import find_images
from tests.vision_language.karpathy import record, write_dataset, write_karpathy


def test_splits_and_images(tmp_path: Path) -> None:
    path = write_karpathy(tmp_path)
    assert find_karpathy(tmp_path) == path == find_karpathy(path)
    found = read_karpathy(path, find_images(str(tmp_path)), Counts())
    assert {split: len(part) for split, part in found.items()} == {"train": 4, "val": 2, "test": 2}
    for part in found.values():
        for row in part.rows:
            number = int(row.name[5:-4])
            assert part.images.pixels(row.image)[0, 0, 0] == 20 * number
            assert row.captions[1] == f"brightness {20 * number}" and len(row.captions) == 2


def test_odd_records_are_counted(tmp_path: Path) -> None:
    write_karpathy(tmp_path)
    good = record(0, "train")
    silent = {**record(1, "train"), "sentences": [{"raw": " "}, {"raw": None}]}
    odd = [good, {**record(3, "val"), "filename": 7}, "words", silent, record(99, "val")]
    path, counts = write_dataset(tmp_path, [good, *odd]), Counts()
    found = read_karpathy(path, find_images(str(tmp_path)), counts)
    assert (len(found["train"]), len(found["val"]), len(found["val"].complete)) == (1, 1, 0)
    assert counts == {IMAGES: 2, DUPLICATES: 1, MALFORMED: 2, WITHOUT_CAPTION: 1,
                      MISSING_FILES: 1, EMPTY: 2}  # fmt: skip


def test_packed_and_with_odd_words(tmp_path: Path) -> None:
    """A split of another name is not trained on; halves of a character can be tokenised."""
    write_karpathy(tmp_path)
    half = {**record(1, "train"), "sentences": [{"raw": "a \ud83d dog"}]}
    odd = [{**record(n, "val"), "split": split} for n, split in ((3, "valid"), (4, ["val"]))]
    path = write_dataset(tmp_path, [record(0, "train"), half, *odd])
    packed = path.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert find_karpathy(tmp_path) == packed
    counts = Counts()
    found = read_karpathy(packed, find_images(str(tmp_path)), counts)
    assert [row.name for row in found["train"].rows] == ["COCO_0.jpg", "COCO_1.jpg"]
    assert found["train"].rows[1].captions == ("a \ufffd dog",) and list(found) == ["train"]
    assert counts[OTHER_SPLITS] == 2 and counts[HALF_CHARACTERS] == 1


def test_errors_are_for_people(tmp_path: Path) -> None:
    path = write_karpathy(tmp_path)
    images = find_images(str(tmp_path))
    path.write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        read_karpathy(path, images, Counts())
    path.write_text('{"annotations": []}')
    with pytest.raises(ValueError, match='has no list of "images"'):
        read_karpathy(path, images, Counts())
    write_dataset(tmp_path, [record(99, "train")])
    with pytest.raises(ValueError, match=r"none of its images .* COCO_99\.jpg.*image_folder"):
        read_karpathy(path, images, Counts())
    (tmp_path / "dataset_flickr30k.json").write_text("{}")
    with pytest.raises(ValueError, match="name one of them"):
        find_karpathy(tmp_path)
    assert find_karpathy(tmp_path / "val2014") is None
