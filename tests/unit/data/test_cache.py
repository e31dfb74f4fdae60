"""What is kept is whole or not there, and is known again by what it describes."""

import json
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest

from magneto.data import cache
from magneto.data.cache import add_alias, content_digest, create_cached, file_states, is_cached
from magneto.files import MANIFEST
from tests.recorded_progress import RecordedProgress


def test_content_is_known_by_its_parts_and_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert content_digest(b"ab", b"c") != content_digest(b"a", b"bc")
    table = np.arange(6).reshape(2, 3)
    assert content_digest(table) == content_digest(table.copy())
    assert content_digest(table[:, ::2]) == content_digest(np.ascontiguousarray(table[:, ::2]))
    before = cache.fingerprint("a", 1)
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    assert cache.fingerprint("a", 1) != before == before.lower(), "another version makes it anew"


def test_a_directory_appears_when_it_is_complete_and_whoever_was_faster_stays(
    tmp_path: Path,
) -> None:
    dead = tmp_path / f".third.{socket.gethostname()}.{1 << 30}"
    dead.mkdir()  # by a process that was killed
    for path, faster in ((tmp_path / "made", None), (tmp_path / "other", "fast")):
        with create_cached(path) as temporary:
            (temporary / "file").write_text("slow")
            assert not path.exists()
            if faster:
                path.mkdir()
                (path / "file").write_text(faster)
        assert (path / "file").read_text() == (faster or "slow")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "made", tmp_path / "other"]


def test_another_name_leads_to_it_and_makes_way_once_it_is_gone(tmp_path: Path) -> None:
    held, other = tmp_path / "held", tmp_path / "other"
    held.mkdir()
    for _ in range(2):
        add_alias(held, other)
        assert other.resolve() == held.resolve()
    held.rmdir()
    with create_cached(other) as temporary:
        (temporary / "file").write_text("new")
    assert not other.is_symlink() and (other / "file").read_text() == "new"
    add_alias(other, held)
    (other / "file").write_text("damaged")
    assert not is_cached(held) and not other.exists(), "what the name leads to is taken away"


@pytest.mark.parametrize("place", ["file", "file/cache", "readonly"])
def test_a_cache_that_cannot_be_written_says_what_to_do(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that can only be read is usual in containers."""
    (tmp_path / "file").write_text("")
    (tmp_path / "readonly").mkdir()
    usual = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: "readonly" not in str(p) and usual(p, mode))
    wanted = pytest.raises(OSError, match=r"^cache folder .* is not writable .*MAGNETO_CACHE=")
    with wanted, create_cached(tmp_path / place / "text-1"):
        pass


def test_a_file_is_another_once_it_is_written_or_moved(tmp_path: Path) -> None:
    path, link = tmp_path / "a.txt", tmp_path / "link"
    path.write_text("one")
    link.symlink_to(tmp_path)
    before = file_states([path])
    assert file_states([link / "a.txt"]) == before
    old = path.stat()
    while path.stat().st_ctime_ns == old.st_ctime_ns:  # file systems count time in ticks
        path.write_text("two")
        os.utime(path, ns=(old.st_mtime_ns, old.st_mtime_ns))
    assert path.stat().st_mtime_ns == old.st_mtime_ns and file_states([path]) != before
    moved = path.rename(tmp_path / "b.txt")
    assert file_states([moved]) != before


@pytest.fixture
def held(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "text-1"
    with create_cached(path) as temporary:
        (temporary / "train.bin").write_bytes(bytes(range(256)))
        (temporary / "empty").touch()
    return path


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "manifest", "no manifest"])
def test_what_is_damaged_is_taken_away_and_said(held: Path, damage: str) -> None:
    file, manifest, progress = held / "train.bin", held / MANIFEST, RecordedProgress()
    assert is_cached(held, progress) and not progress.lines
    {
        "flip": lambda: file.write_bytes(bytes(256)),
        "cut": lambda: os.truncate(file, 9),
        "remove": file.unlink,
        "manifest": lambda: manifest.write_text(json.dumps({"train.bin": 3})),
        "no manifest": manifest.unlink,
    }[damage]()
    assert not is_cached(held, progress) and not list(held.parent.iterdir())
    (line,) = progress.lines
    assert str(held) in line and "creating the directory again" in line


def test_a_copy_is_compared_by_its_checksum(held: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(held, tmp_path / "copied", copy_function=shutil.copyfile))
    os.utime(copied / "train.bin", ns=(0, 0))
    assert is_cached(copied)
