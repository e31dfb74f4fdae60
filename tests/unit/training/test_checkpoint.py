"""Checkpoints are whole or not there, a damaged one is named, and resuming changes nothing."""

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from magneto.files import read_json
from magneto.runs import load_weights
from magneto.training import checkpoint as module
from magneto.training.checkpoint import CheckpointWriter
from magneto.training.distributed import Piece, World, piece_of, single_process
from magneto.training.evaluation import evaluate
from magneto.training.logging import TrainingResult
from magneto.training.loop import Hook, Stop, TrainingState
from magneto.weights import find_weights, list_checkpoints, open_tensors, undamaged
from tests.unit.training.toy import (
    Moving,
    Toy,
    equal,
    flip_a_bit,
    run_toy,
    same,
    tensors,
    toy_model,
)

ALONE = single_process(torch.device("cpu"))


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run; it has checkpoints of the steps 28 and 30."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_weights_of_a_step_are_the_averages_that_were_evaluated(run: Path) -> None:
    for which in ("30", "last"):
        model = toy_model()
        load_weights(model, find_weights(run, which))
        for name, tensor in tensors(run / "final").items():
            assert torch.equal(model.state_dict()[name], tensor)


def resume(run: Path, **changes: Any) -> TrainingResult:
    """Go on with a run, or begin it, with the settings of the finished one."""
    kept = {"ema_decay": 0.9, "average_checkpoints": 2, "average_by": "best", "dropout": 0.1}
    return run_toy(run, resume=True, **{**kept, **changes})


@pytest.mark.parametrize(
    ("async_save", "at"),
    [(True, 17), (False, 20), (False, 30)],
    ids=["17 in the background", "20, which is evaluated", "30, the last"],
)
def test_resumed_equals_uninterrupted(
    tmp_path: Path, finished: Path, async_save: bool, at: int
) -> None:
    def stop(state: TrainingState) -> None:
        state.stop = Stop("interrupted")

    result = resume(tmp_path, hooks=[Hook(at, stop)], async_save=async_save)
    assert (result.status, result.step) == ("interrupted", at)
    resume(tmp_path, async_save=async_save)
    assert same(finished, tmp_path)
    for name in ("best", "averaged"):
        assert equal(finished / name, tmp_path / name)
    one, other = (
        read_json(list_checkpoints(run)[-1] / "state.json") for run in (finished, tmp_path)
    )
    assert one["detector"] == other["detector"] and one["best"] == other["best"]
    one, other = (read_json(run / "result.json") for run in (finished, tmp_path))
    assert one["metrics"] == other["metrics"]


def test_nothing_is_unpickled(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", pytest.fail)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, pytest.fail)
    resume(run, steps=32)
    load_weights(Toy().build_model(), find_weights(run))


def test_a_companion_is_in_no_checkpoint_and_values_of_data_are_in_each(tmp_path: Path) -> None:
    task = Moving()
    run_toy(tmp_path / "cut", task=task, steps=7, schedule="constant")
    assert not task.teacher.training
    assert not any(p.requires_grad for p in task.teacher.parameters())
    assert torch.equal(task.teacher.weight, torch.full((1, 4), 0.5))
    for kind in ("model", "optimizer"):
        names = open_tensors(list_checkpoints(tmp_path / "cut")[-1], kind)
        assert names and not any("companion" in name for name in names)
    for name in ("cut", "whole"):
        run_toy(tmp_path / name, task=Moving(), steps=12, schedule="constant", resume=True)
    assert equal(tmp_path / "whole" / "final", tmp_path / "cut" / "final")


def test_only_undamaged_checkpoints_count(tmp_path: Path) -> None:
    """Damaged ones and stray folders took the places, and a new checkpoint was removed at once."""
    run_toy(tmp_path, steps=20, save_every=6, keep_checkpoints=3, average_checkpoints=2)
    averaged = read_json(tmp_path / "averaged" / "state.json")["average_of"]
    assert averaged == ["step-00000018", "step-00000020"]
    assert [path.name[-2:] for path in list_checkpoints(tmp_path)] == ["12", "18", "20"]
    assert find_weights(tmp_path, "last") == list_checkpoints(tmp_path)[-1]
    for step in (18, 20):
        flip_a_bit(tmp_path / "checkpoints" / f"step-{step:08d}" / "model.safetensors")
    for stray in ("step-abc", "step-99999999x", "notes"):
        (tmp_path / "checkpoints" / stray).mkdir()
    (tmp_path / "checkpoints" / "step-00000001").write_text("no folder")
    (tmp_path / "result.json").unlink()  # as if killed; a finished run is left as it is
    left = [tmp_path / ".best.x.7", tmp_path / "checkpoints" / ".step-00000024.x.7"]
    for path in left:
        path.mkdir()
    run_toy(tmp_path, steps=20, save_every=4, keep_checkpoints=3, resume=True)
    whole, problems = undamaged(list_checkpoints(tmp_path))
    assert [path.name[-2:] for path in whole] == ["12", "16", "20"] and len(problems) == 1
    assert (tmp_path / "checkpoints" / "step-abc").is_dir()
    assert not any(path.exists() for path in left)


def test_wrong_weights_are_refused_and_no_run_is_overwritten(
    finished: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"already holds a run.*--resume"):
        run_toy(finished)
    with pytest.raises(ValueError, match="weights of another model"):
        load_weights(torch.nn.Linear(3, 3), find_weights(finished))
    with pytest.raises(ValueError, match="weights of another model"):
        module.load_pieces({}, {"more": torch.ones(2)}, "a file")
    run_toy(tmp_path, steps=5)
    with pytest.raises(
        FileNotFoundError, match=r"no weights 'averaged'.*existing weights: best, final"
    ):
        find_weights(tmp_path, "averaged")


def test_another_place_of_data_is_allowed_if_their_content_is_compared(tmp_path: Path) -> None:
    kept, recipe = ({"data": {"source": place, "size": 3}} for place in "ab")
    with pytest.raises(ValueError, match=r"another recipe: data.source is b \(was a\);"):
        module.compare_recipe(tmp_path, kept, recipe)
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "data.digest").touch()
    assert module.compare_recipe(tmp_path, kept, recipe) == []
    with pytest.raises(ValueError, match=r"data.size is 4 \(was 3\)"):
        module.compare_recipe(tmp_path, kept, {"data": {"source": "b", "size": 4}})


def test_the_average_of_weights_is_what_is_evaluated_and_may_begin_later(tmp_path: Path) -> None:
    run_toy(tmp_path, steps=8)
    before = tensors(tmp_path / "final")
    assert run_toy(tmp_path, steps=12, resume=True, ema_decay=0.99999).status == "finished"
    for name, tensor in tensors(tmp_path / "final").items():
        assert torch.allclose(tensor, before[name], atol=1e-5), "it begins at the weights"
    model = Toy().build_model()
    load_weights(model, tmp_path / "best")
    best = json.loads((tmp_path / "best" / "state.json").read_text())
    found = evaluate(Toy(), model, ALONE, "fp32").metrics
    assert found["loss"] == pytest.approx(best["metrics"]["loss"], rel=1e-6)


def test_from_step_0_nothing_is_written_over_that_can_not_be_had_again(run: Path) -> None:
    """A finished run whose checkpoints were all damaged began again, and lost its results."""

    def refuses(**changes: int) -> None:
        with pytest.raises(ValueError, match="no intact checkpoint"):
            resume(run, **changes)

    flip_a_bit(run / "final" / "model.safetensors")
    resume(run)
    assert not undamaged([run / "final"])[1], "had again from the last checkpoint"
    kept = [run / "result.json", run / "metrics.jsonl"]
    before = [path.read_bytes() for path in kept]
    for directory in list_checkpoints(run):
        (directory / "state.json").write_text("{")
    refuses(steps=40)
    shutil.rmtree(run / "checkpoints")
    refuses(steps=40)
    assert [path.read_bytes() for path in kept] == before and find_weights(run, "final").is_dir()
    resume(run)  # finished: left as it is
    assert [path.read_bytes() for path in kept] == before
    for name in ("final", "averaged"):
        shutil.rmtree(run / name)
    (run / "result.json").unlink()
    refuses()  # the best of a long run is left
    (run / "metrics.jsonl").unlink()
    refuses()


@pytest.mark.parametrize(
    ("last", "async_save"), [(10, False), (11, False), (15, True), (20, True), (21, True)]
)
def test_weights_of_before_the_first_checkpoint_stop_nothing(
    tmp_path: Path, last: int, async_save: bool
) -> None:
    """A kill left the best of an evaluation. In the background, a checkpoint may come later."""
    run = tmp_path / "run"
    run_toy(run, steps=last, log_every=1, evaluate_every=5)
    for name in ("checkpoints", "final"):
        shutil.rmtree(run / name)
    (run / "result.json").unlink()
    saving = {"save_every": 10, "steps": 30, "resume": True, "async_save": async_save}
    if last % 10 != 1:
        again, whole = (run_toy(path, **saving) for path in (run, tmp_path / "whole"))
        assert (again.status, again.best, again.metrics) == ("finished", whole.best, whole.metrics)
    else:
        with pytest.raises(ValueError, match="no intact checkpoint"):
            run_toy(run, **saving)


def test_the_background_writes_what_was_there_at_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, usual = Event(), module.write_tensors
    monkeypatch.setattr(module, "write_tensors", lambda *rest: go.wait(20) and usual(*rest))
    writer, tensor, calls = CheckpointWriter(ALONE, background=True), torch.ones(3), []
    kinds = {"model": {"a": piece_of(tensor)}}
    writer.write(tmp_path / "one", kinds, {"step": 1}, lambda: calls.append("done"))
    tensor.fill_(2)
    assert not (tmp_path / "one").exists() and not calls
    go.set()
    writer.wait()
    assert calls == ["done"] and undamaged([tmp_path / "one"])[1] == []
    assert torch.equal(open_tensors(tmp_path / "one")["a"].read(), torch.ones(3))


def test_ranks_write_one_copy_and_each_reads_its_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 ranks hold 2 copies of 5 rows in 2 shards. Of whole copies, the main process writes one."""
    parts, whole = list[Any](), torch.arange(10.0).reshape(5, 2)

    def gather(some: list[Any], *_: Any) -> list[Any]:
        parts[:0] = some
        return parts  # of the ranks in their order

    monkeypatch.setattr(module, "broadcast_from_main", lambda *_: "one.1")
    names = iter("abcdefghi")  # each process has another
    monkeypatch.setattr(module, "process_name", lambda: next(names))
    monkeypatch.setattr(module, "gather_lists", gather)
    monkeypatch.setattr(module.dist, "new_group", lambda **_: None)
    shards = Piece(whole[:3], 0, (5, 2), True), Piece(whole[3:], 3, (5, 2), True)
    for name, factor in (("a", 1.0), ("b", 4.0)):
        parts.clear()
        for rank in (3, 2, 1, 0):
            shard, world = shards[rank % 2], World(rank, 4, ALONE.device, "hybrid", 2)
            piece = replace(shard, tensor=shard.tensor * factor, replica=rank // 2)
            CheckpointWriter(world, False).write(tmp_path / name, {"model": {"w": piece}}, {})
        files = sorted(path.name for path in (tmp_path / name).glob("*.safetensors"))
        assert files == [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
        assert torch.equal(open_tensors(tmp_path / name)["w"].read(), whole * factor)
    mine = {"w": replace(shards[1], tensor=torch.zeros(2, 2))}
    for stored, factor in ((open_tensors(tmp_path / "b"), 4.0), ({"w": whole * 3}, 3.0)):
        module.load_pieces(mine, stored, "a file")
        assert torch.equal(mine["w"].tensor, whole[3:] * factor)
    averaged = module.average_weights(mine, [tmp_path / "a", tmp_path / "b"])
    assert torch.equal(averaged["w"].tensor, whole[3:] * 2.5)
    monkeypatch.setattr(module, "copy_to_cpu", pytest.fail)
    writer = CheckpointWriter(World(1, 2, ALONE.device, "ddp"), background=True)
    writer.write(tmp_path / "copies", {"model": {"a": piece_of(torch.ones(3))}}, {})
    writer.wait()


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
