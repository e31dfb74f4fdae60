"""Whole or not there; and a package that is not there is named with what installs it."""

import json
import os
import shutil
import socket
import subprocess
import sys
import zlib
from pathlib import Path
from unittest.mock import Mock

import pytest

from magneto import files


def fill(path: Path, content: str) -> None:
    with files.temporary_directory(path) as temporary:
        (temporary / "file").write_text(content)
        files.publish(temporary, path, {"file": files.fingerprint(temporary / "file")})


def test_a_failed_write_leaves_the_old_one_and_damage_is_found(tmp_path: Path) -> None:
    """By size or by checksum."""
    file = tmp_path / "best" / "file"
    fill(tmp_path / "best", "old")
    with pytest.raises(RuntimeError), files.temporary_directory(tmp_path / "best") as temporary:
        (temporary / "file").write_text("half")
        raise RuntimeError
    assert file.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["best"]
    fill(tmp_path / "best", "new")
    assert file.read_text() == "new"
    files.check_directory(tmp_path / "best")
    for damaged in ("nex", "newer"):
        file.write_text(damaged)
        with pytest.raises(files.DamagedError, match="file is damaged: it differs"):
            files.check_directory(tmp_path / "best")


def test_a_kill_while_a_directory_is_replaced_loses_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every change of names one of the two is there whole, or is put back by what clears."""
    rename, remove, sync = Path.rename, shutil.rmtree, files.sync_to_disk
    done: list[str] = []

    def before(what: str) -> None:
        shutil.copytree(tmp_path / "run", tmp_path / f"{len(done)}")
        done.append(what)

    def renamed(path: Path, target: Path) -> Path:
        before("rename")
        return rename(path, target)

    def removed(path: Path, ignore_errors: bool = False) -> None:
        if path.exists():
            before("remove")
        remove(path, ignore_errors)

    def synced(path: Path) -> None:
        before("sync")
        sync(path)

    fill(tmp_path / "run" / "best", "old")
    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(files.shutil, "rmtree", removed)
    monkeypatch.setattr(files, "sync_to_disk", synced)
    fill(tmp_path / "run" / "best", "new")
    monkeypatch.undo()
    assert done == ["sync", "rename", "rename", "remove", "sync"]
    for number, content in enumerate(["old", "old", "old", "new", "new"]):
        copy = tmp_path / f"{number}"
        files.clear_temporary(copy)
        files.check_directory(copy / "best")
        assert (copy / "best" / "file").read_text() == content
        assert [path.name for path in copy.iterdir()] == ["best"]


def test_a_file_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is written, or is not, stays open no longer."""
    path, descriptors = tmp_path / "a.txt", set(os.listdir("/dev/fd"))
    files.write_text(path, "ö\r\n")
    assert path.read_bytes() == "ö\r\n".encode()
    files.write_json(path, {"b": Path("c")})
    assert json.loads(path.read_text()) == {"b": "c"}

    def fail(descriptor: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="full"):
        files.write_text(path, "new")
    assert json.loads(path.read_text()) == {"b": "c"}
    assert [found.name for found in tmp_path.iterdir()] == ["a.txt"]
    for use in (files.sync_to_disk, files.fingerprint):
        with pytest.raises(OSError, match="full"):
            use(path)
    monkeypatch.undo()
    fill(tmp_path / "best", "new")
    assert descriptors.issuperset(os.listdir("/dev/fd"))


def test_only_what_dead_processes_of_this_machine_left_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who writes again clears what was to be the same file or folder."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    name = f"{socket.gethostname()}.{gone.pid}"
    mine = files.temporary_path(tmp_path / "text-1").name
    kept = {mine, f".text-2.another-{name}", f".text-3.{gone.pid}", ".git", "text-4"}
    for folder in kept | {f".other.{name}", f".best.{name}"}:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").touch()
    for file in (f".x.json.{name}", f".result.json.{name}"):
        (tmp_path / file).touch()

    def left() -> set[str]:
        return {path.name for path in tmp_path.iterdir()}

    fill(tmp_path / "best", "new")
    files.write_json(tmp_path / "x.json", 1)
    kept |= {"best", "x.json"}
    assert left() == kept | {f".other.{name}", f".result.json.{name}"}
    files.clear_dead(tmp_path)
    assert left() == kept
    files.clear_temporary(tmp_path)  # of a directory that is one process's own
    assert left() == {".git", "text-4", "best", "x.json"}
    (tmp_path / f".other.{name}").mkdir()
    monkeypatch.setattr(os, "kill", Mock(side_effect=PermissionError))  # another user's
    files.clear_dead(tmp_path)
    assert f".other.{name}" in left()


def test_a_fingerprint_is_of_the_whole_file_and_the_nearest_path_of_a_folder(
    tmp_path: Path,
) -> None:
    content = bytes(5_000_000) + b"end"
    (tmp_path / "first").write_bytes(content)
    found = files.fingerprint(tmp_path / "first")
    assert found == {"bytes": len(content), "crc32": zlib.crc32(content)}
    assert str(tmp_path / "first") in files.nearest_path(tmp_path / "frist" / "deep" / "x")


def test_an_optional_package_is_named_with_its_extra(tmp_path: Path, monkeypatch) -> None:
    assert files.import_extra("json.decoder", "text", "this needs json").JSONDecoder
    with pytest.raises(ModuleNotFoundError) as caught:
        files.import_extra("no_such.part", "vision", "pictures need no-such")
    message = "pictures need no-such: pip install 'foundation-transformers[vision]'"
    assert (str(caught.value), caught.value.name) == (message, "no_such")
    (tmp_path / "broken_one.py").write_text("import no_such_either")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"\[text\]' \(No module named 'no_such_either'"):
        files.import_extra("broken_one", "text", "it needs broken-one")


def test_json_that_is_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    for content in (b'{"recipe": "cau', b"\xff\xfe", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(files.DamagedError, match=r"result\.json is damaged"):
            files.read_json(path)
    for text in ("[]", "3", "null", '{"b": 1}'):
        path.write_text(text)
        with pytest.raises(files.DamagedError, match=r"result\.json is damaged"):
            files.read_object(path, "a")
    files.write_json(path, {"a": 1})
    assert files.read_json(path) == files.read_object(path, "a") == {"a": 1}
