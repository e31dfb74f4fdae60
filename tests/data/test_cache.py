"""What is kept is whole or not there, and is known again by what it describes."""

from pathlib import Path

import numpy as np
import pytest

from magneto.data.cache import (
    also_known,
    cache_directory,
    content_digest,
    fingerprint,
    made_whole,
)


def test_the_environment_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MAGNETO_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.delenv("MAGNETO_CACHE")
    assert cache_directory() == Path.home() / ".cache" / "magneto"


def test_equal_parts_have_equal_names() -> None:
    assert fingerprint({"a": 1, "b": 2}, "x") == fingerprint({"b": 2, "a": 1}, "x")
    assert len({fingerprint("x", 1), fingerprint("x", "1"), fingerprint(["x", 1])}) == 3


def test_content_is_known_by_its_parts_and_their_ends() -> None:
    assert content_digest(b"ab", b"c") != content_digest(b"a", b"bc")
    table = np.arange(6).reshape(2, 3)
    assert content_digest(table) == content_digest(table.copy())
    assert content_digest(table[:, ::2]) == content_digest(np.ascontiguousarray(table[:, ::2]))


def test_a_directory_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "made"
    with made_whole(path) as aside:
        (aside / "file").write_text("x")
        assert not path.exists()
    assert (path / "file").read_text() == "x" and list(tmp_path.iterdir()) == [path]


def test_work_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no space"), made_whole(tmp_path / "made") as aside:
        (aside / "file").write_text("half")
        raise ValueError("no space")
    assert not list(tmp_path.iterdir())


def test_whoever_was_faster_stays(tmp_path: Path) -> None:
    path = tmp_path / "made"
    with made_whole(path) as aside:
        (aside / "file").write_text("slow")
        path.mkdir()
        (path / "file").write_text("fast")
    assert (path / "file").read_text() == "fast" and list(tmp_path.iterdir()) == [path]


def test_another_name_leads_to_it_and_makes_way_once_it_is_gone(tmp_path: Path) -> None:
    held, other = tmp_path / "held", tmp_path / "other"
    held.mkdir()
    also_known(held, other)
    also_known(held, other)
    assert other.resolve() == held.resolve()
    held.rmdir()
    with made_whole(other) as aside:
        (aside / "file").write_text("new")
    assert not other.is_symlink() and (other / "file").read_text() == "new"
