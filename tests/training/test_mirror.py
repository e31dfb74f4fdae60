"""The newest checkpoint is elsewhere too, complete or not taken for one; a failure ends nothing."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import fsspec
import pytest

from magneto.files import Damaged
from magneto.progress import SILENT
from magneto.training import mirror as module
from magneto.training.hooks import Hook
from magneto.training.loop import train
from magneto.training.metrics_logger import read_metrics
from magneto.training.mirror import Mirror, newest_snapshot, open_place
from magneto.training.state import TrainingState
from magneto.weights import list_checkpoints, open_tensors, undamaged
from tests.training.test_sharding import furthest, torchrun
from tests.training.toy import Toy, config, run_toy

STORE = "memory://runs/first"
TIMED = ("rows_per_second", "flops_utilisation", "data_wait_seconds")


@pytest.fixture(autouse=True)
def empty_store() -> Iterator[None]:
    files = fsspec.filesystem("memory")
    yield
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def rows(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMED} for row in read_metrics(run)]


def same(first: Path, second: Path) -> bool:
    a, b = (open_tensors(run / "final") for run in (first, second))
    equal = all(a[name].read().equal(b[name].read()) for name in a)
    return a.keys() == b.keys() and equal and rows(first) == rows(second)


@pytest.mark.parametrize(("kind", "async_save"), [("folder", False), ("store", True)])
def test_a_run_whose_disk_died_goes_on_as_if_it_had_not(
    tmp_path: Path, kind: str, async_save: bool
) -> None:
    place = str(tmp_path / "disk" / "copy") if kind == "folder" else STORE
    settings = {"async_save": async_save, "ema_decay": 0.9}
    run_toy(tmp_path / "whole", **settings)
    run = tmp_path / "run"

    def die(state: TrainingState) -> None:
        if state.step == 17:
            state.writer.wait()
            assert state.mirror is not None
            state.mirror.wait()
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        train(Toy(), config(mirror=place, **settings), run, seed=3, hooks=[Hook(1, die)])
    files, root = open_place(place)
    assert module.steps_in(files, root) == ["step-00000014"], "the older one is gone"
    assert not list(run.glob(".*")), "nothing is left aside"
    shutil.rmtree(run)

    snapshot, back = newest_snapshot(place), tmp_path / "back"
    assert snapshot is not None and snapshot.name == "step-00000014"
    back.mkdir()
    snapshot.copy_to(back, "recipe.yaml", SILENT)
    assert not (back / "final").exists() and not undamaged([back / "best"])[1]
    (checkpoint,) = list_checkpoints(back)
    assert not undamaged([checkpoint])[1]
    run_toy(back, resume=True, mirror=place, **settings)
    assert same(tmp_path / "whole", back)
    assert newest_snapshot(place).name == "step-00000030"  # type: ignore[union-attr]


def checkpoint(run: Path, step: int) -> Path:
    """Make a run of two files and a checkpoint of one."""
    made = run / "checkpoints" / f"step-{step:08d}"
    made.mkdir(parents=True)
    (made / "model").write_text(f"weights {step}")
    (run / "recipe.yaml").write_text("task: toy")
    (run / "lease-000000").write_text("mine")
    return made


def test_what_broke_off_is_not_taken_for_a_copy(tmp_path: Path, monkeypatch) -> None:
    said: list[str] = []
    run, place = tmp_path / "run", str(tmp_path / "mirror")
    mirror = Mirror(place, run, said.append)
    mirror.send(checkpoint(run, 5))
    mirror.wait()
    usual, left = module.copy_blocks, [1]

    def fail(source: Any, target: Any) -> dict[str, int]:
        if not left.pop():
            raise OSError("no route to the store")
        left.append(0)
        return usual(source, target)

    with monkeypatch.context() as broken:
        broken.setattr(module, "copy_blocks", fail)
        mirror.send(checkpoint(run, 10))
        mirror.wait()
    assert (tmp_path / "mirror" / "step-00000010").is_dir()
    assert newest_snapshot(place).name == "step-00000005"  # type: ignore[union-attr]
    assert "step-00000010 was not copied to" in said[-1] and "no route" in said[-1]
    mirror.send(checkpoint(run, 15))
    mirror.wait()
    assert [path.name for path in Path(place).iterdir()] == ["step-00000015"]
    names = {str(p.relative_to(place)) for p in Path(place).rglob("*") if p.is_file()}
    assert names == {f"step-00000015/{name}" for name in (
        "manifest.json", "recipe.yaml", "checkpoints/step-00000015/model")}  # fmt: skip


@pytest.mark.parametrize("content", ["", '{"recipe.yaml": {', "7"])
def test_a_manifest_that_is_cut_off_is_none(tmp_path: Path, content: str) -> None:
    run, place = tmp_path / "run", tmp_path / "mirror"
    mirror = Mirror(str(place), run, print)
    mirror.send(checkpoint(run, 5))
    mirror.wait()
    (place / "step-00000005" / "manifest.json").write_text(content)
    assert newest_snapshot(str(place)) is None


def test_a_damaged_copy_is_not_copied_back(tmp_path: Path) -> None:
    run, place, back = tmp_path / "run", tmp_path / "mirror", tmp_path / "back"
    mirror = Mirror(str(place), run, print)
    mirror.send(checkpoint(run, 5))
    mirror.wait()
    (place / "step-00000005/checkpoints/step-00000005/model").write_text("weights 6")
    back.mkdir()
    snapshot = newest_snapshot(str(place))
    assert snapshot is not None
    with pytest.raises(Damaged, match=r"checkpoints/step-00000005/model is not as it was written"):
        snapshot.copy_to(back, "recipe.yaml", SILENT)
    assert not list(back.iterdir())


def test_what_is_removed_meanwhile_is_copied_all_the_same(tmp_path: Path, monkeypatch) -> None:
    """A slow store is not waited for: the newest checkpoint takes its turn, what it was is kept."""
    go, usual = Event(), module.copy_blocks
    monkeypatch.setattr(module, "copy_blocks", lambda *rest: go.wait(20) and usual(*rest))
    run, place = tmp_path / "run", str(tmp_path / "mirror")
    mirror = Mirror(place, run, print)
    for step in (5, 10, 15):
        made = checkpoint(run, step)
        mirror.send(made)
        shutil.rmtree(made)
    go.set()
    mirror.wait()
    assert newest_snapshot(place).name == "step-00000015"  # type: ignore[union-attr]
    assert (Path(place) / "step-00000015/checkpoints/step-00000015/model").read_text() == (
        "weights 15"
    )
    assert not [path for path in run.iterdir() if path.name.startswith(".")]


def test_a_file_system_without_links_copies(tmp_path: Path, monkeypatch) -> None:
    def no_links(*rest: Any) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(module.os, "link", no_links)
    run = tmp_path / "run"
    mirror = Mirror(STORE, run, print)
    mirror.send(checkpoint(run, 5))
    mirror.wait()
    assert newest_snapshot(STORE) is not None


def test_places_that_can_not_be(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ValueError, match=r"^nosuch://x is no path and no URL"):
        Mirror("nosuch://x", tmp_path, print)
    with pytest.raises(ValueError, match="lies in the run's own folder"):
        Mirror(str(tmp_path / "run" / "mirror"), tmp_path / "run", print)
    assert newest_snapshot(str(tmp_path / "none")) is None

    def missing(*rest: Any, **more: Any) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(ModuleNotFoundError, match="s3://b/run: Install s3fs"):
        Mirror("s3://b/run", tmp_path, print)


def test_a_new_run_does_not_take_the_place_of_anothers_copy(tmp_path: Path) -> None:
    run_toy(tmp_path / "first", steps=8, mirror=STORE)
    with pytest.raises(ValueError, match=r"memory://runs/first already holds a copy of a run"):
        run_toy(tmp_path / "second", steps=8, mirror=STORE)
    assert not (tmp_path / "second" / "recipe.yaml").exists()
    manifest = newest_snapshot(STORE).manifest  # type: ignore[union-attr]
    assert json.dumps(manifest) and all("lease" not in name for name in manifest)


@pytest.mark.distributed
def test_a_checkpoint_in_shards_goes_and_comes_back_whole(tmp_path: Path) -> None:
    """Written by two ranks, and gone on with by one, as one process from beginning to end."""
    settings = {"ema_decay": 0.9}
    run_toy(tmp_path / "whole", **settings)
    place = tmp_path / "mirror"
    words = ["distributed=fsdp", f"mirror={place}", "async_save=1", "ema_decay=0.9"]
    torchrun(2, "toy.py", str(tmp_path / "run"), *words)
    snapshot, back = newest_snapshot(str(place)), tmp_path / "back"
    assert snapshot is not None and snapshot.name == "step-00000030"
    assert "checkpoints/step-00000030/model-00002-of-00002.safetensors" in snapshot.manifest
    back.mkdir()
    snapshot.copy_to(back, "recipe.yaml", SILENT)
    run_toy(back, resume=True, **settings)
    assert furthest(tmp_path / "whole" / "final", back / "final") < 1e-5
    assert furthest(tmp_path / "whole" / "best", back / "best") < 1e-5
