"""Files are known by their content, which is read again only where it may have changed."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from magneto.data import contents
from magneto.data.contents import file_contents
from magneto.progress import Progress


@pytest.fixture(autouse=True)
def no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "TICK", 0)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list to which every file is added that is hashed as a whole."""
    found: list[Path] = []
    usual = contents._hashed

    def noted(path: Path, progress: Progress) -> Any:
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


def test_a_damaged_note_is_no_note(tmp_path: Path, cache: Path, hashed: list[Path]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = file_contents([path])
    (note,) = (cache / "contents").iterdir()
    whole = json.loads(note.read_text())
    (noted,) = whole["files"].values()
    texts = ["", "[]", "{}", '{"files": 3}', '{"files": {"a.txt": 3}}', "\0"]
    for key, value in (("blocks", 3), ("blocks", [[0, 1]]), ("digest", 3), ("state", [])):
        texts.append(json.dumps({"files": {"a.txt": {**noted, key: value}}}))
    for text in texts:
        note.write_text(text)
        assert file_contents([path]) == before
    assert len(hashed) == 1 + len(texts)


def test_of_many_files_only_some_blocks_are_read_again(
    tmp_path: Path, cache: Path, hashed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"{number % 3}" / f"{number}.wav" for number in range(100)]
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text(path.name)
    before = file_contents(files)
    assert len(hashed) == 100 and len(list((cache / "contents").iterdir())) == 3
    read: list[Path] = []
    usual = contents.block_checksums
    monkeypatch.setattr(
        contents, "block_checksums", lambda path, blocks: read.append(path) or usual(path, blocks)
    )
    assert file_contents(files) == before and len(hashed) == 100
    assert len(read) == len(set(read)) == contents.SAMPLE
