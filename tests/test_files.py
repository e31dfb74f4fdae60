"""Whole or not there."""

from pathlib import Path

import pytest

from magneto.files import Damaged, check_directory, clear_aside, plain, whole_directory


def fill(path: Path, content: str) -> None:
    with whole_directory(path) as aside:
        (aside / "file").write_text(content)


def test_a_failed_write_leaves_the_old_one(tmp_path: Path) -> None:
    fill(tmp_path / "best", "old")
    with pytest.raises(RuntimeError), whole_directory(tmp_path / "best") as aside:
        (aside / "file").write_text("half")
        raise RuntimeError
    assert (tmp_path / "best" / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    fill(tmp_path / "best", "new")
    assert (tmp_path / "best" / "file").read_text() == "new"
    check_directory(tmp_path / "best")


@pytest.mark.parametrize("content", ["older", "wrong"])
def test_damage_is_found_by_size_or_checksum(tmp_path: Path, content: str) -> None:
    fill(tmp_path / "step", "right")
    (tmp_path / "step" / "file").write_text(content[: 5 if content == "wrong" else 3])
    with pytest.raises(Damaged, match="file is not as it was written"):
        check_directory(tmp_path / "step")


def test_what_a_kill_left_is_cleared_and_a_replacement_undone(tmp_path: Path) -> None:
    fill(tmp_path / "best", "old")
    (tmp_path / "best").rename(tmp_path / ".best.old")  # killed between two renames
    (tmp_path / ".best.4711").mkdir()
    (tmp_path / ".result.json.4711").write_text("{")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".hidden").write_text("the user's own")
    clear_aside(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"best", ".git", ".hidden"}
    check_directory(tmp_path / "best")


def test_plain() -> None:
    assert plain({"a": float("inf"), "b": [1, 2.5, float("nan")], "c": "x"}) == {
        "a": None, "b": [1, 2.5, None], "c": "x",
    }  # fmt: skip
