"""Images from every kind of source, read by index."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from magneto.data.formats import OTHER_FILES
from magneto.data.media import Files, HubMedia
from magneto.data.problems import MALFORMED, Counts
from magneto.data.table import Classes, Table, table_of_columns
from magneto.vision import images
from magneto.vision.config import ImageDataConfig
from magneto.vision.decoding import BrokenImage
from magneto.vision.images import (
    NOT_PAIRED,
    UNLABELLED,
    WITHOUT_IMAGE,
    WITHOUT_MASK,
    ImageSplits,
    as_classes,
    find_images,
    image_table,
    load_images,
)
from tests.shards import write_lines, write_shard
from tests.unit.vision.image_files import class_folders, encoded, photo, write


def load(source, **changes) -> ImageSplits:
    return load_images(ImageDataConfig(source=str(source), **changes), 1)


def test_folders_of_splits_and_classes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no image files in"):
        load(tmp_path)
    class_folders(tmp_path / "train")
    class_folders(tmp_path / "val", each=2)
    write(tmp_path / "train" / "cat" / "notes.txt", b"")
    write(tmp_path / "train" / "cat" / "._000.jpg", b"")
    found = load(tmp_path)
    assert (len(found.train), len(found.validation), found.classes) == (20, 4, ["cat", "dog"])
    assert [found.train.label(index) for index in (0, 9, 10)] == [0, 0, 1]
    assert found.train.name(10) == str(tmp_path / "train" / "dog" / "000.jpg")
    assert np.abs(found.train.pixels(10).astype(int) - photo(100, 12, 16)).mean() < 8
    assert found.counts == Counts({OTHER_FILES: 1})
    assert found.describe() == ("20 training images, 4 validation images, 2 classes "
                                "(1 file of other kinds left out)")  # fmt: skip


def test_folders_named_after_splits_in_other_ways(tmp_path: Path) -> None:
    class_folders(tmp_path / "a" / "train2017")
    class_folders(tmp_path / "a" / "val2017", each=2)
    write(tmp_path / "a" / "annotations" / "train.json", b"{}")
    found = load(tmp_path / "a")
    assert (len(found.train), len(found.validation), found.classes) == (20, 4, ["cat", "dog"])
    for number, split in enumerate(("seg_train", "seg_val")):
        write(tmp_path / "m" / "images" / split / f"{number}.png", encoded(photo(number)))
        write(tmp_path / "m" / "masks" / split / f"{number}.png", encoded(photo(number)[..., 0]))
    found = load(tmp_path / "m")
    assert found.train.has_masks and (len(found.train), len(found.validation)) == (1, 1)
    class_folders(tmp_path / "c" / "seg_train" / "seg_train")
    class_folders(tmp_path / "c" / "seg_val" / "seg_val", each=2)
    found = load(tmp_path / "c")
    assert (len(found.train), len(found.validation), found.classes) == (20, 4, ["cat", "dog"])
    class_folders(tmp_path / "c", ("seg_pred",))
    message = r"splits \(seg_train, seg_val\) and other folders \(seg_pred\)"
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "c")
    class_folders(tmp_path / "b", ("bus", "train"))  # vehicles
    found = load(tmp_path / "b", validation_fraction=0.4)
    assert (len(found.train) + len(found.validation), found.classes) == (20, ["bus", "train"])


def test_a_validation_source_of_fewer_classes_keeps_their_numbers(tmp_path: Path) -> None:
    train = class_folders(tmp_path / "train", ("ant", "bee", "cat"))
    held = class_folders(tmp_path / "held", ("cat",), 3)
    found = load(train, validation_source=str(held))
    assert found.validation.labels_of().tolist() == [2, 2, 2]
    class_folders(held, ("dog",), 1)
    with pytest.raises(ValueError, match=r"unknown class 'dog'\. The 3 known"):
        load(train, validation_source=str(held))
    named = load(train, classes=("cat", "bee", "ant"))
    assert named.train.label(0) == 2
    # Training images without labels, as in pre-training.
    found = load(train / "ant", validation_source=str(held))
    assert found.classes == [] and set(found.validation.labels_of()) == {UNLABELLED}


@pytest.mark.parametrize(
    "layout", [("images/{}", "annotations/{}"), ("{}", "{}annot")], ids=["ADE20k", "CamVid"]
)
def test_folders_of_masks(tmp_path: Path, layout: tuple[str, str]) -> None:
    """A test split without masks is left out and counted, as an image without one is."""
    mask = np.arange(48 * 64, dtype=np.uint8).reshape(48, 64)
    images, masks = (tmp_path / place for place in layout)
    for split, count in (("train", 4), ("val", 2), ("test", 3)):
        for number in range(count):
            write(Path(str(images).format(split)) / f"{number}.jpg", encoded(photo(number), "JPEG"))
            if split != "test":
                write(Path(str(masks).format(split)) / f"{number}.png", encoded(mask + number))
    write(Path(str(images).format("train")) / "alone.jpg", encoded(photo(), "JPEG"))
    found = load(tmp_path)
    assert found.train.has_masks and (len(found.train), len(found.validation)) == (4, 2)
    assert np.array_equal(found.train.mask(1), mask + 1)
    assert found.counts[NOT_PAIRED] == 4


def test_boxes_in_text_files_are_no_masks(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / "images" / "train" / f"{number}.png", encoded(photo(number)))
        write(tmp_path / "labels" / "train" / f"{number}.txt", b"0 0.5 0.5 0.1 0.1")
    found = load(tmp_path)
    assert len(found.train) + len(found.validation) == 4 and not found.train.has_masks


def test_a_row_of_a_table_without_a_mask_is_counted_and_the_others_have_theirs(
    tmp_path: Path,
) -> None:
    class_folders(tmp_path / "all")
    for number in range(3):
        write(tmp_path / f"{number}.png", encoded(np.full((12, 16), number, np.uint8)))
    rows = ["image,mask", *(f"all/cat/00{n}.jpg,{n}.png" for n in range(3)), "all/cat/003.jpg,"]
    for name in ("train.csv", "val.csv"):
        write(tmp_path / name, "\n".join(rows).encode())
    found = load(tmp_path)
    assert found.train.has_masks and len(found.train) == 4
    assert found.counts[WITHOUT_MASK] == 2
    assert [int(found.train.mask(index).max()) for index in range(3)] == [0, 1, 2]
    with pytest.raises(BrokenImage, match=r"its mask: can't be read \(the row has no file name\)"):
        found.train.mask(3)


def test_a_single_column_of_classes_is_the_label(tmp_path: Path) -> None:
    write(tmp_path / "a.png", encoded(photo()))
    kind, place = Classes(np.array([1]), ["cat", "dog"]), Classes(np.array([0]), ["in", "out"])
    for columns, label in (({"kind": kind}, "dog"), ({"kind": kind, "place": place}, None)):
        table = Table({"image": ["a.png"], **columns}, np.arange(1), root=tmp_path)
        found = image_table(table, ImageDataConfig(source=str(tmp_path)), Counts())
        assert found.columns["label"][0] == label
    lists = Table({"image": ["a.png"], "labels": [["cat", "dog"]]}, np.arange(1), root=tmp_path)
    with pytest.raises(ValueError, match="'labels' has lists of classes"):
        image_table(lists, ImageDataConfig(source=str(tmp_path)), Counts())


def test_class_names_are_numbered_in_alphabetical_order() -> None:
    """The order of a set would change with each process. Names and missing labels may be mixed."""
    names = [f"{letter}{number}" for letter in "zay" for number in (10, 9, 1)]
    found = as_classes([*names, None, " ", 7, " a9 "])
    assert found.names == ["7", "a1", "a10", "a9", "y1", "y10", "y9", "z1", "z10", "z9"]
    assert [*found] == [*names, None, None, "7", "a9"]
    numbers = as_classes(["10", 2, None, "0"])
    assert numbers.names == [str(n) for n in range(11)] and [*numbers] == ["10", "2", None, "0"]


def test_json_lines_of_images_and_labels(tmp_path: Path) -> None:
    """Numbers in quotes are numbers, too."""
    class_folders(tmp_path / "all", ("0", "1"))
    labels = [0, "1", "0", 1] * 3
    rows = [{"file_name": f"all/{n % 2}/00{n}.jpg", "class": labels[n]} for n in range(10)]
    odd = {"file_name": "", "class": 1}, {"class": 0}
    found = load(write_lines(tmp_path / "a.jsonl", ["{", *rows, *odd]))
    assert len(found.train) + len(found.validation) == 10 and found.classes == ["0", "1"]
    assert found.counts == Counts({MALFORMED: 1, WITHOUT_IMAGE: 2})
    assert found.train.label(0) == int(Path(found.train.name(0)).parent.name)


def shard(path: Path, first: int, ending: str, label) -> None:
    """Write four images from a number on, each with a file that says its label."""
    members = {}
    for name, number in ((f"{n:04}", n) for n in range(first, first + 4)):
        members[f"{name}.jpg"] = encoded(photo(number), "JPEG")
        members[f"{name}.{ending}"] = label(number).encode()
    write_shard(path, members)


def test_tar_shards(tmp_path: Path, cache: Path) -> None:
    shard(tmp_path / "train-0.tar", 0, "cls", lambda n: str(n % 3))
    shard(tmp_path / "train-1.tar", 4, "json", lambda n: json.dumps({"label": n % 3}))
    held = tmp_path / "val-0.tar"
    shard(held, 8, "cls", lambda n: "1")
    for found in (load(tmp_path), load(tmp_path)):  # the second from the cache
        assert found.train.labels_of().tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
        assert (found.classes, len(found.validation)) == (["0", "1", "2"], 4)
        assert found.train.name(5) == f"{tmp_path / 'train-1.tar'}, 0005"
        assert np.abs(found.train.pixels(5).astype(int) - photo(5)).mean() < 8
    assert len(list(cache.glob("shards-*"))) == 2
    times = held.stat().st_mtime_ns
    shard(held, 8, "cls", lambda n: "2")
    os.utime(held, ns=(times, times))
    assert set(load(tmp_path).validation.labels_of()) == {2}  # a changed shard is indexed anew


def test_the_column_of_masks_is_not_that_of_images(tmp_path: Path) -> None:
    files = Files(tmp_path, ["1.png"])
    table = table_of_columns({"annotation": files, "scan": files})
    assert find_images(table, None, "annotation") == "scan"
    assert find_images(table, None) == "annotation"


def test_hugging_face_data_sets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {
        "picture": [{"bytes": encoded(photo(n), "JPEG"), "path": f"{n}.jpg"} for n in range(12)],
        "label": [n % 2 for n in range(12)],
        "annotation": [{"bytes": encoded(photo(n)[..., 0]), "path": None} for n in range(12)],
    }
    kinds = datasets.Features({
        "picture": datasets.Image(), "label": datasets.ClassLabel(names=["b", "a"]),
        "annotation": datasets.Image(),
    })  # fmt: skip
    table = datasets.Dataset.from_dict(rows, features=kinds)
    table.to_parquet(str(tmp_path / "data" / "train.parquet"))
    for source in (tmp_path / "data", f"hf:{tmp_path / 'data'}"):
        found = load(source)
        assert found.classes == ["b", "a"] and len(found.train) + len(found.validation) == 12
        row = int(found.train.table.rows[3])
        assert found.train.label(3) == row % 2 and found.train.columns[0].key(row) == f"{row}.jpg"
        assert np.abs(found.train.pixels(3).astype(int) - photo(row)).mean() < 8
        assert np.array_equal(found.train.mask(3), photo(row)[..., 0])
        assert len(found.train.digest) == 24 and isinstance(found.train.columns[0], HubMedia)
    with pytest.raises(ValueError, match=r"no column 'lable' .*; did you mean label"):
        load(tmp_path / "data", label_column="lable")
    # Plain bytes are images, too.
    files = [encoded(photo(n, 12, 16)) for n in range(12)]
    path = tmp_path / "train.parquet"
    datasets.Dataset.from_dict({"image": files, "label": [0, 1] * 6}).to_parquet(str(path))
    found = load(path)
    assert len(found.train) + len(found.validation) == 12
    assert np.array_equal(found.train.pixels(2), photo(int(found.train.table.rows[2]), 12, 16))


def test_digits_and_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr("magneto.vision.images.SCENES", {"train": 6, "validation": 60})
    compose, drawn = images._compose, list[set[bytes]]()
    monkeypatch.setattr(images, "_compose", lambda digits, *given: drawn.append(
        {digit.tobytes() for digit in digits}) or compose(digits, *given))  # fmt: skip
    found, scenes = load("builtin:digits"), load("builtin:scenes")
    assert (len(found.train), len(found.validation), len(found.classes)) == (1438, 359, 10)
    assert found.train.pixels(0).shape == (8, 8, 1) and found.train.columns[0].peak == 240
    image, mask = scenes.train.pixels(5), scenes.train.mask(5)
    assert image.shape == (48, 48, 3) and mask.shape == (48, 48)
    seen = {int(c) for n in range(60) for c in np.unique(scenes.validation.mask(n))}
    assert seen == set(range(len(scenes.classes))) == set(range(11))
    assert len({scenes.validation.pixels(n).tobytes() for n in range(60)}) == 60
    # Digits are brighter than what is behind them.
    assert image[mask > 0].mean() > image[mask == 0].mean() + 30
    rows, other = (
        [{*part.table.rows.tolist()} for part in (splits.train, splits.validation)]
        for splits in (found, load_images(ImageDataConfig(source="builtin:digits"), 2))
    )
    assert rows[0] | rows[1] == {*range(1797)} and not rows[0] & rows[1] and rows != other
    assert len(drawn) == 2 and not drawn[0] & drawn[1], "digits to validate on are others"
