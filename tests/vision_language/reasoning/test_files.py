"""NLVR2's files: layouts, odd records, missing images."""

from pathlib import Path

import pytest

from magneto.data.counts import EMPTY, MALFORMED, Counts
from magneto.vision_language.image_files import find_images
from magneto.vision_language.reasoning.files import (
    DUPLICATES,
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


def test_the_authors_repository_has_another_set_too(tmp_path: Path) -> None:
    write_nlvr2(tmp_path, ["dev"])
    write_lines(tmp_path / "nlvr" / "nlvr" / "dev" / "dev.json", [])
    assert "nlvr2" in str(find_statement_files(tmp_path)["dev"])
    write_lines(tmp_path / "nlvr2" / "dev.json", [])
    with pytest.raises(ValueError, match="two files of dev statements"):
        find_statement_files(tmp_path)
    with pytest.raises(ValueError, match=r"none of train\.json, dev\.json"):
        find_statement_files(tmp_path / "dev")


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


def test_odd_records_are_counted(tmp_path: Path) -> None:
    write_nlvr2(tmp_path, ["dev"], groups=1)
    good = nlvr2_record("dev", 0, 0, 0, "True")
    odd = [
        {**good, "identifier": "dev-0-0-1", "label": "maybe"},
        {**good, "identifier": "dev-0-0-2", "sentence": " "},
        {"sentence": "no name", "label": "True"},
        {**good, "identifier": "dev-1"},
        good,
    ]
    path = tmp_path / "dev.json"
    write_lines(path, [good, *odd])
    with path.open("a") as file:
        file.write("{broken\n")
    counts, images = Counts(), find_images(str(tmp_path))
    assert len(read_statements(path, images, counts)) == 1
    assert counts == {STATEMENTS: 1, WITHOUT_IMAGES: 0, UNLABELLED: 1, EMPTY: 1, MALFORMED: 3,
                      DUPLICATES: 1}  # fmt: skip
    write_lines(path, odd[:2])
    with pytest.raises(ValueError, match=r"no statements in .*1 empty texts left out"):
        read_statements(path, images, Counts())
