"""Directories are written whole, at once or in the background."""

from pathlib import Path
from threading import Event

import pytest
import torch

from magneto.training import checkpoint as module
from magneto.training.checkpoint import CheckpointWriter
from magneto.training.distributed import World, piece_of
from magneto.weights import open_tensors, undamaged

ALONE = World(0, 1, torch.device("cpu"), "none")


def test_the_background_writes_what_was_there_at_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, usual = Event(), module.write_tensors
    monkeypatch.setattr(module, "write_tensors", lambda *rest: go.wait(20) and usual(*rest))
    writer, tensor, said = CheckpointWriter(ALONE, background=True), torch.ones(3), []
    kinds = {"model": {"a": piece_of(tensor)}}
    writer.write(tmp_path / "one", kinds, {"step": 1}, lambda: said.append("done"))
    tensor.fill_(2)
    assert not (tmp_path / "one").exists() and not said
    go.set()
    writer.wait()
    assert said == ["done"] and undamaged([tmp_path / "one"])[1] == []
    assert torch.equal(open_tensors(tmp_path / "one")["a"].read(), torch.ones(3))


@pytest.mark.parametrize("background", [False, True])
def test_what_fails_is_raised_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    def fail(*rest: object) -> None:
        raise OSError("no space left")

    writer = CheckpointWriter(ALONE, background)
    kinds = {"model": {"a": piece_of(torch.ones(3))}}
    writer.write(tmp_path / "best", kinds, {})
    writer.wait()
    monkeypatch.setattr(module, "publish", fail)
    with pytest.raises(OSError, match="no space left"):
        writer.write(tmp_path / "best", kinds, {})
        writer.write(tmp_path / "other", kinds, {})  # at the latest
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    assert undamaged([tmp_path / "best"])[1] == []
