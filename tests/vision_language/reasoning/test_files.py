"""NLVR2's and NLVR v1's files: layouts, odd records, missing images."""

import gzip
import json
from pathlib import Path

import pytest

from magneto.data.counts import EMPTY, MALFORMED, Counts
from magneto.vision_language.image_files import find_images
from magneto.vision_language.reasoning.files import (
    DUPLICATES,
    OTHER_IMAGES,
    STATEMENTS,
    UNLABELLED,
    WITHOUT_IMAGES,
    find_statement_files,
    read_statements,
)
from magneto.vision_language.reasoning.statements import MISSING
from tests.vision_language.reasoning.folders import (
    nlvr2_record,
    write_image,
    write_lines,
    write_nlvr2,
)


@pytest.mark.parametrize("shards", [True, False])
def test_both_layouts_of_nlvr2(shards: bool, tmp_path: Path) -> None:
    write_nlvr2(tmp_path, shards=shards)
    files, images, counts = find_statement_files(tmp_path), find_images(str(tmp_path)), Counts()
    assert list(files) == ["train", "dev", "test"]
    for split, path in files.items():
        found = read_statements(path, images, counts)
        assert len(found) == 12 and not found.missing
        for one in found.statements:
            left, right = (found.images.pixels(n)[0, 0, 0] for n in one.images)
            assert (left < right) == bool(one.label)
            name = path.stem
            assert found.store.key(one.images[0]).endswith(f"{one.identifier[:-2]}-img0.png")
            assert one.identifier.startswith(name), split
    assert counts == {STATEMENTS: 36, WITHOUT_IMAGES: 0}


def test_groups_and_sentences(tmp_path: Path) -> None:
    """A set of images is the second part of an identifier; a sentence has no pair in its name."""
    write_nlvr2(tmp_path, ["dev"], groups=2)
    path = find_statement_files(tmp_path)["dev"]
    found = read_statements(path, find_images(str(tmp_path)), Counts()).statements
    assert [one.group for one in found] == ["dev-0", "dev-0", "dev-1", "dev-1"]
    assert [one.said for one in found] == ["dev-0-0", "dev-0-0", "dev-1-0", "dev-1-0"]


def test_the_authors_repository_has_both_sets(tmp_path: Path) -> None:
    write_nlvr2(tmp_path, ["dev"])
    write_lines(tmp_path / "nlvr" / "nlvr" / "dev" / "dev.json", [])
    assert "nlvr2" in str(find_statement_files(tmp_path)["dev"])
    write_lines(tmp_path / "nlvr2" / "dev.json", [])
    with pytest.raises(ValueError, match="two files of dev statements"):
        find_statement_files(tmp_path)
    with pytest.raises(ValueError, match=r"none of train\.json, dev\.json"):
        find_statement_files(tmp_path / "dev")


def test_nlvr_v1_has_one_picture(tmp_path: Path) -> None:
    """As its authors give it, six files of which one is enough; or with the files in the record."""
    record = {"sentence": "There is a box.", "label": "true", "identifier": "12-3",
              "directory": "7"}  # fmt: skip
    other = {**record, "label": False, "identifier": "12-4", "images": ["odd-name.png"]}
    path = tmp_path / "dev.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write(f"{json.dumps(record)}\n{json.dumps(other)}\n")
    write_image(tmp_path / "images" / "7" / "dev-12-3-2.png", 5)
    write_image(tmp_path / "images" / "7" / "dev-12-3-4.png", 6)
    write_image(tmp_path / "odd-name.png", 7)
    assert find_statement_files(tmp_path) == {"dev": path}
    found = read_statements(path, find_images(str(tmp_path)), Counts())
    seen = [[found.images.pixels(n)[0, 0, 0] for n in one.images] for one in found.statements]
    assert seen == [[5], [7]] and found.labels.tolist() == [1, 0]
    assert {one.said for one in found.statements} == {"12"}


def test_missing_images_are_listed(tmp_path: Path) -> None:
    write_nlvr2(tmp_path, ["dev"])
    (tmp_path / "dev" / "dev-3-1-img0.png").unlink()
    counts = Counts()
    path = find_statement_files(tmp_path)["dev"]
    found = read_statements(path, find_images(str(tmp_path)), counts)
    assert found.missing == ("dev-3-1-img0.png",)
    assert len(found) == 12 and len(found.complete) == 11 and counts[WITHOUT_IMAGES] == 1
    assert found.statements[7].images[0] == MISSING
    write_image(tmp_path / "elsewhere" / "cat.png", 1)
    with pytest.raises(ValueError, match=r"no statement has all its images.*data\.image_folder"):
        read_statements(path, find_images(str(tmp_path / "elsewhere")), Counts())


def test_one_odd_identifier_does_not_change_what_all_statements_are_about(tmp_path: Path) -> None:
    """It would read as one of NLVR v1, about one picture."""
    write_nlvr2(tmp_path, ["dev"], groups=2)
    path = find_statement_files(tmp_path)["dev"]
    path.write_text(path.read_text().replace("dev-1-0-0", "dev-1"))
    counts = Counts()
    found = read_statements(path, find_images(str(tmp_path)), counts)
    assert {len(one.images) for one in found.statements} == {2} and len(found) == 3
    assert counts[OTHER_IMAGES] == 1 and not counts[WITHOUT_IMAGES]


def test_odd_records_are_counted(tmp_path: Path) -> None:
    write_nlvr2(tmp_path, ["dev"], groups=1)
    good = nlvr2_record("dev", 0, 0, 0, "True")
    odd = [
        {**good, "identifier": "dev-0-0-1", "label": "maybe"},
        {**good, "identifier": "dev-0-0-2", "sentence": " "},
        {"sentence": "no name", "label": "True"},
        good,
    ]
    path = tmp_path / "dev.json"
    write_lines(path, [good, *odd])
    with path.open("a") as file:
        file.write("{broken\n")
    counts, images = Counts(), find_images(str(tmp_path))
    assert len(read_statements(path, images, counts)) == 1
    assert counts == {STATEMENTS: 1, WITHOUT_IMAGES: 0, UNLABELLED: 1, EMPTY: 1, MALFORMED: 2,
                      DUPLICATES: 1}  # fmt: skip
    write_lines(path, odd[:2])
    with pytest.raises(ValueError, match=r"no statements in .*1 empty texts left out"):
        read_statements(path, images, Counts())
