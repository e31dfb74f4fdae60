"""A directory of the cache is used only as it was written."""

import json
import os
import shutil
from pathlib import Path

import pytest

from magneto.data import checksums
from magneto.data.cache import is_kept, made_whole
from magneto.data.checksums import BLOCK, check_checksums
from magneto.files import MANIFEST, Damaged


class Heard:
    """A progress that keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, what: str, done: int, total: int | None) -> None:
        """Show nothing."""

    def say(self, line: str) -> None:
        """Keep the line."""
        self.lines.append(line)


@pytest.fixture
def held(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "text-1"
    with made_whole(path) as aside:
        (aside / "train.bin").write_bytes(bytes(range(256)) * 8192)  # two blocks
        (aside / "index.json").write_text("{}")
        (aside / "empty").touch()
    return path


def flipped(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_what_is_whole_is_kept(held: Path) -> None:
    heard = Heard()
    assert is_kept(held, heard) and not heard.lines and not is_kept(held / "other")


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "remove", "manifest", "no manifest"])
def test_what_is_damaged_is_taken_away_and_said(held: Path, damage: str) -> None:
    file, manifest = held / "train.bin", held / MANIFEST
    if damage == "flip":
        flipped(file, BLOCK + 5)
    elif damage == "cut":
        os.truncate(file, BLOCK)
    elif damage == "grow":
        file.write_bytes(file.read_bytes() + b"x")
    elif damage == "remove":
        file.unlink()
    elif damage == "manifest":
        manifest.write_text(json.dumps({"train.bin": 3}))
    else:
        manifest.unlink()
    heard = Heard()
    assert not is_kept(held, heard) and not held.exists()
    assert len(heard.lines) == 1 and str(held) in heard.lines[0] and "made again" in heard.lines[0]
    assert not list(held.parent.iterdir())


def test_a_change_that_hides_behind_the_old_time_is_seen(
    held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where only few blocks of an untouched file are looked at."""
    monkeypatch.setattr(checksums, "SAMPLE", 1)
    file = held / "train.bin"
    before = file.stat()
    flipped(file, 0)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(8):
        with pytest.raises(Damaged, match=r"train\.bin is not as it was written"):
            check_checksums(held)


def test_of_a_large_file_that_looks_untouched_some_blocks_are_read(
    held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    usual = checksums.block_checksums

    def counted(path: Path, blocks: list[int] | None = None) -> list[int]:
        read.extend(blocks or [])
        return usual(path, blocks)

    monkeypatch.setattr(checksums, "SAMPLE", 1)
    monkeypatch.setattr(checksums, "block_checksums", counted)
    check_checksums(held)
    assert len(read) == 2  # one of train.bin's two, and index.json's only one


def test_a_copy_is_whole_and_known_again(held: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(held, tmp_path / "copied"))
    before = (copied / MANIFEST).read_text()
    check_checksums(copied)
    assert (copied / MANIFEST).read_text() != before  # the states are its own now
    check_checksums(copied)
