"""Labels as names of files and folders, as people keep them."""

from pathlib import Path

import pytest

from magneto.data.counts import Counts
from magneto.language.classification.class_folders import class_files, read_class_folder
from magneto.language.classification.config import ClassificationDataConfig
from magneto.language.classification.data import Texts, read_texts
from magneto.language.classification.files import OTHER_CLASS, ROWS


def read(source: Path, **changes) -> Texts:
    return read_texts(ClassificationDataConfig(source=str(source), **changes))


def one_file_per_class(folder: Path, classes: tuple[str, ...] = ("neg", "pos")) -> Path:
    folder.mkdir(parents=True)
    for name in classes:
        lines = (f"{name} text {number}" for number in range(60))
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n\n")
    return folder


def one_folder_per_class(folder: Path, classes: tuple[str, ...] = ("neg", "pos")) -> Path:
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(60):
            (folder / name / f"{number}.txt").write_text(f"{name} text\nof {number}\n")
    return folder


def test_a_file_per_class_has_a_text_per_line(tmp_path: Path) -> None:
    found = read(one_file_per_class(tmp_path / "set"))
    assert found.labels == ("neg", "pos") and found.counts[ROWS] == 120
    assert len(found.train) + len(found.validation[""]) == 120
    assert {row.label for row in found.train if row.text.startswith("neg ")} == {"neg"}


def test_a_folder_per_class_has_a_text_per_file(tmp_path: Path) -> None:
    folder = one_folder_per_class(tmp_path / "set")
    (folder / "README.txt").write_text("about it")
    found = read(folder)
    assert found.labels == ("neg", "pos") and found.counts[ROWS] == 120
    assert {row.label for row in found.train if row.text.startswith("pos text\nof ")} == {"pos"}


@pytest.mark.parametrize("make", [one_file_per_class, one_folder_per_class])
def test_folders_are_splits_where_one_is_named_train(make, tmp_path: Path) -> None:
    make(tmp_path / "set" / "train", ("neg", "pos", "unsup"))
    make(tmp_path / "set" / "dev")
    found = read(tmp_path / "set", labels=("neg", "pos"))
    assert len(found.train) == len(found.validation[""]) == 120
    assert found.counts[OTHER_CLASS] == 60
    assert read(tmp_path / "set").labels == ("neg", "pos", "unsup")
    alone = str(tmp_path / "set" / "dev")
    measured = read(Path(alone), validation_source=alone)
    assert len(measured.validation[""]) == 120


def test_what_is_no_folder_of_classes(tmp_path: Path) -> None:
    for name in ("only", "test", "dev"):
        (tmp_path / f"{name}.txt").write_text("a b\n")
    assert class_files(tmp_path) == {}
    with pytest.raises(ValueError, match=r"has neither a \.txt file nor a folder"):
        next(read_class_folder(tmp_path, Counts()))
    with pytest.raises(ValueError, match=r"nothing named train \(it has dev, only, test\)"):
        read(tmp_path)
