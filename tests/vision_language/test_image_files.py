"""Images by file name, wherever below a folder they lie."""

from pathlib import Path

import pytest

from magneto.vision.decoding import open_image
from magneto.vision_language.image_files import find_images
from tests.vision_language.reasoning.folders import write_image


def test_folders_do_not_matter(tmp_path: Path) -> None:
    write_image(tmp_path / "train" / "7" / "a.png", 1)
    write_image(tmp_path / "b.png", 2)
    found = find_images(str(tmp_path))
    pixels = {
        name: open_image(found.store[n]).pixels()[0, 0, 0] for name, n in found.numbers.items()
    }
    assert pixels == {"a.png": 1, "b.png": 2}
    assert find_images(str(tmp_path / "b.png")).numbers.keys() == found.numbers.keys()


def test_names_of_several_files_are_counted(tmp_path: Path) -> None:
    for name in ("a/one.png", "b/one.png", "b/two.png"):
        write_image(tmp_path / name, 0)
    found = find_images(str(tmp_path))
    assert found.twice == {"one.png"} and found.store.key(found.numbers["one.png"]) == "a/one.png"
    assert found.several([found.numbers["one.png"], found.numbers["two.png"], -1]) == 1
    assert found.several([found.numbers["two.png"]]) == 0


def test_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no images below"):
        find_images(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        find_images(str(tmp_path / "none"))
