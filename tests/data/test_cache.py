"""Prepared data appears whole, and what killed processes left of it goes away."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from magneto.data.cache import file_states, made_whole


def test_made_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), made_whole(tmp_path / "text-1") as aside:
        (aside / "train.bin").write_bytes(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with made_whole(tmp_path / "text-1") as aside:
        (aside / "train.bin").write_bytes(b"whole")
    with made_whole(tmp_path / "text-1") as aside:  # somebody was faster
        (aside / "train.bin").write_bytes(b"later")
    assert (tmp_path / "text-1" / "train.bin").read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["text-1"]


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = tmp_path / f".text-1.{socket.gethostname()}.{gone.pid}"
    left.mkdir()
    (left / "train.bin").touch()
    with made_whole(tmp_path / "text-2"), made_whole(tmp_path / "text-3"):
        assert not left.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"text-2", "text-3"}


def test_a_file_that_changed_has_another_state(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = file_states([path])
    assert before == file_states([tmp_path / "." / "a.txt"])
    path.write_text("more")
    assert file_states([path]) != before
