"""Files are known by their content, which is read again only where it may have changed."""

import os
from pathlib import Path

import pytest

from magneto.data import contents
from magneto.data.contents import file_contents
from magneto.progress import Progress


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(contents, "TICK", 0)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list to which every file is added that is hashed as a whole."""
    found: list[Path] = []
    usual = contents._hashed

    def noted(path: Path, progress: Progress) -> str:
        found.append(path)
        return usual(path, progress)

    monkeypatch.setattr(contents, "_hashed", noted)
    return found


def test_the_content_counts_and_not_place_or_time(tmp_path: Path) -> None:
    first, moved = tmp_path / "a.txt", tmp_path / "elsewhere" / "a.txt"
    moved.parent.mkdir()
    first.write_text("one")
    moved.write_text("one")
    os.utime(moved, (1, 1))
    assert file_contents([first]) == file_contents([moved])
    moved.write_text("two")
    os.utime(moved, (1, 1))
    assert file_contents([first]) != file_contents([moved])


def test_what_is_unchanged_is_hashed_once(tmp_path: Path, hashed: list[Path]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    assert file_contents([path]) == file_contents([path]) and len(hashed) == 1


def test_other_content_of_the_same_size_and_time_is_seen(
    tmp_path: Path, hashed: list[Path]
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    os.utime(path, (1, 1))
    before = file_contents([path])
    path.write_text("two")
    os.utime(path, (1, 1))
    assert file_contents([path]) != before and len(hashed) == 2


def test_a_file_that_changed_a_moment_ago_is_not_noted(
    tmp_path: Path, hashed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "TICK", 10**12)
    path = tmp_path / "a.txt"
    path.write_text("one")
    file_contents([path])
    file_contents([path])
    assert len(hashed) == 2


def test_a_damaged_note_is_no_note(tmp_path: Path, hashed: list[Path]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = file_contents([path])
    (note,) = (tmp_path / "cache" / "contents").iterdir()
    for text in ("", "[]", "{}", '{"blocks": 3}', "\0"):
        note.write_text(text)
        assert file_contents([path]) == before
    assert len(hashed) == 6
