"""Images with texts as they lie in files; what is odd is counted, nothing is lost in silence."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magneto.config import ConfigError
from magneto.data.counts import EMPTY, MALFORMED
from magneto.vision.decoding import BrokenImage
from magneto.vision.images import WITHOUT_IMAGE
from magneto.vision_language.config import PairDataConfig
from magneto.vision_language.pairs import MISSING, TWICE, PairSplits, load_pairs
from tests.vision.image_files import encoded, photo, write


def jsonl(path: Path, records: list[Any]) -> str:
    lines = (record if isinstance(record, str) else json.dumps(record) for record in records)
    return str(write(path, "\n".join(lines).encode()))


def images(folder: Path, count: int = 6) -> list[str]:
    for number in range(count):
        write(folder / f"{number}.png", encoded(photo(number, 8, 8)))
    return [f"{number}.png" for number in range(count)]


def load(source: str, **changes: Any) -> PairSplits:
    return load_pairs(PairDataConfig(source=source, **changes))


def texts(splits: PairSplits) -> set[str]:
    return {*splits.train.texts, *splits.validation.texts}


def test_a_file_with_everything_that_can_be_odd(tmp_path: Path) -> None:
    names = images(tmp_path)
    records: list[Any] = [
        {"image": names[0], "caption": "a  house\n"},
        {"image": names[0], "caption": "a house"},
        {"image": names[0], "caption": "another"},
        {"image": "gone.png", "caption": "not there"},
        {"image": names[1], "caption": " "},
        {"image": names[1]},
        {"caption": "alone"},
        {"image": 3, "caption": "a number"},
        "[1, 2]",
        {"image": names[2], "caption": ["one", "two", "one"]},
        *({"image": name, "caption": f"last {name}"} for name in names[3:]),
    ]
    found = load(jsonl(tmp_path / "pairs.jsonl", records), validation_fraction=0.5)
    assert texts(found) == {"a house", "another", "one", "two", *(f"last {n}" for n in names[3:])}
    counts = found.counts
    kinds = (TWICE, MISSING, EMPTY, WITHOUT_IMAGE, MALFORMED)
    assert [counts[kind] for kind in kinds] == [2, 1, 2, 2, 1]
    assert f"1 malformed records left out [{tmp_path / 'pairs.jsonl'}, line 9" in found.describe()
    for split in (found.train, found.validation):
        for number in range(len(split)):
            name = Path(split.name(number)).name
            assert np.array_equal(split.open(number).pixels(), photo(int(name[0]), 8, 8))
    held = {Path(found.validation.name(i)).name for i in range(len(found.validation))}
    kept = {Path(found.train.name(i)).name for i in range(len(found.train))}
    assert not held & kept, "all texts of an image are in one split"


def test_the_same_images_are_held_out_wherever_they_stand(tmp_path: Path) -> None:
    records = [{"image": name, "caption": name} for name in images(tmp_path, 20)]
    held = [
        set(load(jsonl(tmp_path / "pairs.jsonl", some), validation_fraction=0.5).validation.texts)
        for some in (records, records[::-1], records[1:])
    ]
    assert 0 < len(held[0]) < 20
    assert held[1] == held[0] and held[2] == held[0] - {records[0]["caption"]}


def test_too_few_pairs_say_what_was_left_out(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "pairs.jsonl", [{"image": images(tmp_path)[0], "caption": "a"}, "[1]"])
    wanted = (
        r"1 rows with 1 value of 'image' \(1 malformed records left out \[.*none can be held out"
    )
    with pytest.raises(ValueError, match=wanted):
        load(path)


def test_ids_tell_pairs_apart(tmp_path: Path) -> None:
    names = images(tmp_path)
    records = [{"image": name, "caption": "the same", "id": number // 2}
               for number, name in enumerate(names)]  # fmt: skip
    path = jsonl(tmp_path / "a.jsonl", records)
    found = load(path, id_column="id", validation_source=path)
    assert len(found.train) == 3 and found.counts[TWICE] == 6
    assert len(load(path, validation_source=path).train) == 6


def test_splits_and_another_folder_of_images(tmp_path: Path) -> None:
    names = images(tmp_path / "pictures")
    for split, some in (("train", names[:4]), ("val", names[4:])):
        jsonl(tmp_path / f"{split}.jsonl", [{"path": n, "text": f"{split} {n}"} for n in some])
    found = load(str(tmp_path), image_folder=str(tmp_path / "pictures"))
    assert len(found.train) == 4 and found.validation.text(1) == "val 5.png"
    with pytest.raises(ValueError, match="0 pairs to train on"):
        load(str(tmp_path))


def test_of_another_source_its_test_split_is_rather_measured_than_its_training_split(
    tmp_path: Path,
) -> None:
    for split, name in zip(("train", "test"), images(tmp_path, 2), strict=True):
        jsonl(tmp_path / f"{split}.jsonl", [{"image": name, "caption": f"of {split}"}])
    found = load(str(tmp_path), validation_source=str(tmp_path))
    assert list(found.validation.texts) == ["of test"] and list(found.train.texts) == ["of train"]


def test_images_that_can_not_be_decoded_are_told_when_they_are_read(tmp_path: Path) -> None:
    write(tmp_path / "bad.png", b"no image")
    path = jsonl(tmp_path / "a.jsonl", [{"image": "bad.png", "caption": "x"}])
    found = load(path, validation_source=path)
    with pytest.raises(BrokenImage):
        found.train.open(0)


def test_unknown_fields(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"pictur": "a.png", "caption": "x"}])
    with pytest.raises(ValueError, match=r"no column 'image' among 'pictur', 'caption': name it"):
        load(path)
    with pytest.raises(ValueError, match=r"no column 'pictures' .*did you mean pictur\?"):
        load(path, image_column="pictures")
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        load(str(tmp_path / "b.jsonl"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no image files in"):
        load(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="builtin:shapes"):
        PairDataConfig(source="builtin:shape")


def shard(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


def test_tar_shards(tmp_path: Path) -> None:
    picture = [encoded(photo(number, 8, 8), "JPEG") for number in range(5)]
    shard(tmp_path / "train-0.tar", {
        "a.jpg": picture[0], "a.txt": b"a text",
        "b.jpg": picture[1], "b.json": b'{"caption": "in json", "label": 3}',
        "c.jpg": picture[2], "d.txt": b"no image", "a.b.jpg": picture[3],
    })  # fmt: skip
    shard(tmp_path / "val-0.tar", {"e.jpg": picture[4], "e.txt": b"held out"})
    found = load(str(tmp_path))
    assert list(found.train.texts) == ["a text", "in json"]
    assert list(found.validation.texts) == ["held out"]
    assert found.counts[EMPTY] == 2 and found.counts[WITHOUT_IMAGE] == 1
    assert found.train.open(1).pixels().shape == (8, 8, 3)
    assert load(str(tmp_path)).train.digest == found.train.digest


def test_a_folder_like_a_data_set_of_the_hub(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({
        "picture": datasets.Image(), "captions": datasets.Sequence(datasets.Value("string")),
    })  # fmt: skip
    rows = {"picture": [{"bytes": encoded(photo(n, 8, 8)), "path": f"{n}.png"} for n in range(8)],
            "captions": [[f"one {n}", f"two {n}"] for n in range(8)]}  # fmt: skip
    table = datasets.Dataset.from_dict(rows, features=features)
    (tmp_path / "data").mkdir()
    table.to_parquet(tmp_path / "data" / "train.parquet")
    found = load(f"hf:{tmp_path / 'data'}", validation_fraction=0.4)
    assert texts(found) == {f"{which} {n}" for n in range(8) for which in ("one", "two")}
    some = found.train.images.numbers
    assert len(np.unique(some)) * 2 == len(some) == len(found.train)
    number = int(found.train.text(0).split()[1])
    assert np.array_equal(found.train.open(0).pixels(), photo(number, 8, 8))


def test_the_drawn_scenes() -> None:
    found = load("builtin:shapes")
    assert (len(found.train), len(found.validation)) == (4000, 400)
    assert len(found.train.single_images) == 4000
