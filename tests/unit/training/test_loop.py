"""The loop's contracts: neither cutting a batch nor resuming changes a result."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from magneto.files import Damaged
from magneto.progress import ProgressBars
from magneto.training.checkpoint import load_weights
from magneto.training.config import learning_rate
from magneto.training.distributed import one_process
from magneto.training.evaluation import evaluate
from magneto.training.logging import read_metrics
from magneto.training.loop import Hook, Stop, train
from magneto.weights import find_weights, list_checkpoints, open_tensors, undamaged
from tests.problems import listed
from tests.ranks import run_alone, run_ranks, start
from tests.unit.training.toy import Noting, Toy, ToyData, config, run_toy

TOY = Path(__file__).with_name("toy.py")
TIMED = ("rows_per_second", "flops_utilisation", "data_wait_seconds")


def weights(run: Path, which: str = "final") -> dict[str, torch.Tensor]:
    return {name: tensor.read() for name, tensor in open_tensors(run / which).items()}


def rows(run: Path) -> list[dict]:
    return [{k: v for k, v in row.items() if k not in TIMED} for row in read_metrics(run)]


def same(first: Path, second: Path) -> bool:
    a, b = weights(first), weights(second)
    return rows(first) == rows(second) and all(torch.equal(a[name], b[name]) for name in a)


def furthest(first: Path, second: Path) -> float:
    a, b = weights(first), weights(second)
    return max((a[name] - b[name]).abs().max().item() for name in a)


def test_it_learns_and_writes_everything_down(tmp_path: Path) -> None:
    result = run_toy(tmp_path, steps=200, evaluate_every=50)
    assert result.status == "finished" and result.step == 200
    metrics = read_metrics(tmp_path)
    evaluations = [row["validation_loss"] for row in metrics if "validation_loss" in row]
    unexplained = Toy().set[1].var().item()
    assert evaluations[-1] < 0.1 * unexplained
    logged = next(row for row in metrics if row["step"] == 100 and "loss" in row)
    assert set(TIMED) < set(logged) and {"loss", "absolute", "gradient_norm"} < set(logged)
    assert logged["learning_rate"] == learning_rate(config(steps=200), 99), "of the 100th step"
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["metrics"] == result.metrics and written["best"]["value"] == min(evaluations)
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment[0]["packages"]["torch"] == torch.__version__
    assert not list(tmp_path.rglob(".*")), "no file left aside"


def test_same_seed_same_bits(tmp_path: Path) -> None:
    run_toy(tmp_path / "a", dropout=0.2)
    run_toy(tmp_path / "b", dropout=0.2)
    assert same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("gradient_accumulation_steps", [2, 3, 4])
def test_micro_batches_change_nothing(tmp_path: Path, gradient_accumulation_steps: int) -> None:
    run_toy(tmp_path / "one", clip_norm=0.5)
    run_toy(
        tmp_path / "more", clip_norm=0.5, gradient_accumulation_steps=gradient_accumulation_steps
    )
    assert furthest(tmp_path / "one", tmp_path / "more") < 1e-5


@pytest.mark.parametrize(
    ("async_save", "at"),
    [(False, 17), (True, 17), (False, 20), (False, 30)],
    ids=["17", "17 in the background", "20, which is evaluated", "30, the last"],
)
def test_resumed_equals_uninterrupted(tmp_path: Path, async_save: bool, at: int) -> None:
    settings = {"ema_decay": 0.9, "dropout": 0.1, "average_checkpoints": 2, "average_by": "best"}
    run_toy(tmp_path / "whole", **settings)
    settings["async_save"] = async_save

    def stop(trainer) -> None:
        trainer.stop = Stop("interrupted")

    kept = {key: value for key, value in settings.items() if key != "dropout"}
    result = train(
        Toy(dropout=0.1), config(**kept), tmp_path / "cut", seed=3, report=ProgressBars(quiet=True),
        hooks=[Hook(at, stop)],
    )  # fmt: skip
    assert (result.status, result.step) == ("interrupted", at)
    run_toy(tmp_path / "cut", resume=True, **settings)
    assert same(tmp_path / "whole", tmp_path / "cut")
    for name in ("best", "averaged"):
        a, b = weights(tmp_path / "whole", name), weights(tmp_path / "cut", name)
        assert all(torch.equal(a[key], b[key]) for key in a)


def kill_at_random_moments(tmp_path: Path, kills: int, *more: str) -> None:
    """Kill -9 a run again and again; it must end as if nothing had happened."""
    extra = ["pause=0.03", "save_every=3", "steps=40", *more]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run_alone(str(TOY), str(whole), *extra)
    chance = random.Random(0)
    for _ in range(kills):
        process = start([str(TOY), str(cut), *extra], os.environ, tmp_path / "output")
        started = time.time()
        environment_file = cut / "environment.json"
        while process.exitcode is None:
            if environment_file.exists() and environment_file.stat().st_mtime > started:
                break  # it is about to take steps
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 1.2))
        process.kill()
        process.join()
    run_alone(str(TOY), str(cut), *extra)
    assert same(whole, cut)


@pytest.mark.distributed
def test_killed_thrice(tmp_path: Path) -> None:
    kill_at_random_moments(tmp_path, 3)


@pytest.mark.slow
@pytest.mark.parametrize("async_save", [0, 1])
def test_killed_twenty_times(tmp_path: Path, async_save: int) -> None:
    kill_at_random_moments(tmp_path, 20, f"async_save={async_save}")


def test_interrupt_leaves_a_checkpoint(tmp_path: Path) -> None:
    def interrupt(trainer) -> None:
        signal.raise_signal(signal.SIGINT)

    result = train(
        Toy(),
        config(),
        tmp_path,
        seed=3,
        report=ProgressBars(quiet=True),
        hooks=[Hook(9, interrupt)],
    )
    assert (result.status, result.step) == ("interrupted", 9)
    assert list_checkpoints(tmp_path)[-1].name == "step-00000009"
    assert run_toy(tmp_path, resume=True).status == "finished"


def test_damaged_checkpoint_is_named_and_the_one_before_used(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run_toy(tmp_path / "whole", steps=20)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for name in ("final", "best"):
        shutil.rmtree(tmp_path / "cut" / name)
    last, before = reversed(list_checkpoints(tmp_path / "cut"))
    model = last / "model.safetensors"
    flip_a_bit(model)
    found, problems = undamaged(list_checkpoints(tmp_path / "cut"))
    assert found == [before] and "model.safetensors" in problems[0]
    run_toy(tmp_path / "cut", resume=True, steps=20)
    assert same(tmp_path / "whole", tmp_path / "cut")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("which", ["auto", "best", "final", "averaged", "last", "14"])
def test_damaged_weights_are_named_and_so_are_the_undamaged(tmp_path: Path, which: str) -> None:
    """They were read without their manifest: a flipped bit gave a loss that is no number."""
    run_toy(tmp_path, steps=20, average_checkpoints=2)
    found = find_weights(tmp_path, which)
    flip_a_bit(found / "model.safetensors")
    others = {"best": "best", "final": "final", "averaged": "averaged", "step-00000014": "14"}
    others = [name for folder, name in others.items() if folder != found.name]
    with pytest.raises(Damaged, match=rf"{found.name}/model.*as it was written") as caught:
        load_weights(Toy().build_model(), tmp_path, which)
    assert set(others) <= set(str(caught.value).split("undamaged are ")[1].split(", "))


def test_only_undamaged_checkpoints_count(tmp_path: Path) -> None:
    """Damaged ones and stray folders took the places, and a new checkpoint was removed at once."""
    run_toy(tmp_path, steps=20, save_every=6, keep_checkpoints=3)
    assert [path.name[-2:] for path in list_checkpoints(tmp_path)] == ["12", "18", "20"]
    for step in (18, 20):
        flip_a_bit(tmp_path / "checkpoints" / f"step-{step:08d}" / "model.safetensors")
    for stray in ("step-abc", "step-99999999x", "notes"):
        (tmp_path / "checkpoints" / stray).mkdir()
    (tmp_path / "checkpoints" / "step-00000001").write_text("no folder")
    (tmp_path / "result.json").unlink()  # as if killed; a finished run is left as it is
    run_toy(tmp_path, steps=20, save_every=4, keep_checkpoints=3, resume=True)
    whole, problems = undamaged(list_checkpoints(tmp_path))
    assert [path.name[-2:] for path in whole] == ["12", "16", "20"] and len(problems) == 1
    assert (tmp_path / "checkpoints" / "step-abc").is_dir()


@pytest.mark.parametrize("name", ["state.json", "manifest.json", "optimizer.safetensors"])
def test_a_missing_file_is_damage(tmp_path: Path, name: str) -> None:
    run_toy(tmp_path, steps=15)
    (list_checkpoints(tmp_path)[-1] / name).unlink()
    found, problems = undamaged(list_checkpoints(tmp_path))
    assert found == list_checkpoints(tmp_path)[:1] and name in problems[0]


def test_not_finite_is_divergence_at_its_step(tmp_path: Path) -> None:
    result = run_toy(tmp_path, task=Toy(ToyData(explode_at=0.9)), steps=100, evaluate_every=4)
    assert result.status == "diverged" and "nan" in result.reason
    first = result.diverged_at
    assert first is not None and first <= result.step < first + 4
    assert json.loads((tmp_path / "result.json").read_text())["diverged_at"] == first
    evaluated = [row["step"] for row in rows(tmp_path) if "validation_loss" in row]
    assert result.step % 4 == 0 and result.step not in evaluated


def test_the_batch_that_diverged_is_kept(tmp_path: Path) -> None:
    task = Toy(ToyData(explode_at=0.9))
    first = run_toy(tmp_path, task=task, steps=100).diverged_at
    assert first is not None
    (expected,) = task.train_stream(16, 3).batch(first - 1)
    kept = load_file(tmp_path / "diverged" / "batch.safetensors")
    assert torch.equal(kept["batch.0"], expected[0]) and torch.equal(kept["batch.1"], expected[1])
    state = json.loads((tmp_path / "diverged" / "state.json").read_text())
    assert state["diverged_at"] == first and None in state["losses"]
    weights(tmp_path, "diverged")


def test_no_checkpoint_is_written_of_a_run_gone_wrong(tmp_path: Path) -> None:
    """Saving finds the divergence before the log would, and whole checkpoints stay."""
    task = Toy(ToyData(explode_at=0.9))
    result = run_toy(tmp_path, task=task, steps=100, log_every=50, save_every=1)
    assert result.status == "diverged" and result.step == result.diverged_at
    last = list_checkpoints(tmp_path)[-1]
    assert last.name == f"step-{result.step - 1:08d}"
    assert all(tensor.isfinite().all() for tensor in load_file(last / "model.safetensors").values())


def test_too_high_a_rate_is_divergence(tmp_path: Path) -> None:
    result = run_toy(tmp_path, steps=400, learning_rate=30.0, divergence_patience=20)
    assert result.status == "diverged" and result.diverged_at is not None


def test_precision_and_sgd(tmp_path: Path) -> None:
    result = run_toy(tmp_path, precision="bf16", optimizer="sgd", learning_rate=0.05, steps=60)
    assert result.metrics["loss"] < 2


def test_averaging_the_last(tmp_path: Path) -> None:
    run_toy(tmp_path, average_checkpoints=2)
    kept = [load_file(path / "model.safetensors") for path in list_checkpoints(tmp_path)]
    mean = {name: (kept[0][name] + kept[1][name]) / 2 for name in kept[0]}
    averaged = weights(tmp_path, "averaged")
    assert len(kept) == 2
    assert all(torch.allclose(averaged[name], mean[name], atol=1e-7) for name in mean)


def test_ema_is_what_is_evaluated(tmp_path: Path) -> None:
    run_toy(tmp_path, ema_decay=0.99)
    model = Toy().build_model()
    load_weights(model, tmp_path, "best")
    best = json.loads((tmp_path / "best" / "state.json").read_text())
    measured = evaluate(Toy(), model, one_process(torch.device("cpu")), "fp32").metrics
    assert measured["loss"] == pytest.approx(best["metrics"]["loss"], rel=1e-6)


def test_wrong_weights_are_refused(tmp_path: Path) -> None:
    run_toy(tmp_path, steps=5)
    with pytest.raises(ValueError, match="another model's weights"):
        load_weights(torch.nn.Linear(3, 3), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no averaged weights.*it has best, final"):
        find_weights(tmp_path, "averaged")


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_equal_one_process(tmp_path: Path, kind: str) -> None:
    """To 1e-5; and what 2 ranks wrote 1 goes on from, and the other way."""
    settings = {"clip_norm": 0.5, "ema_decay": 0.9, "gradient_accumulation_steps": 2}
    run_toy(tmp_path / "one", task=Toy(ToyData(wrong_way=True)), **settings)
    words = ["wrong_way=1", "clip_norm=0.5", "ema_decay=0.9", f"distributed={kind}"]
    run_ranks(2, str(TOY), str(tmp_path / "two"), *words, "gradient_accumulation_steps=1")
    assert furthest(tmp_path / "one", tmp_path / "two") < 1e-5

    for first, second in ((2, 1), (1, 2)):
        run = tmp_path / f"{first}-then-{second}"
        shutil.copytree(tmp_path / ("two" if first == 2 else "one"), run)
        for path in (list_checkpoints(run)[-1], run / "final"):
            shutil.rmtree(path)
        if second == 1:
            run_toy(run, resume=True, task=Toy(ToyData(wrong_way=True)), **settings)
        else:
            run_ranks(2, str(TOY), str(run), *words, "gradient_accumulation_steps=1")
        assert furthest(tmp_path / "one", run) < 1e-5


@pytest.mark.distributed
def test_a_run_lists_what_all_ranks_found(tmp_path: Path) -> None:
    run_ranks(2, str(TOY), str(tmp_path / "run"), "noting=1", "distributed=ddp", "steps=4")
    found = listed(tmp_path / "run")
    assert sorted(name for _, name, _ in found) == ["of all", "of rank 0", "of rank 1"]


def test_what_is_wrong_with_data_is_said_once_and_counted_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for old in ("image_problems.tsv", "excluded.json"):  # of runs before there was one list
        (tmp_path / old).write_text("{}")
    for steps in (4, 8):
        train(Noting(), config(steps=steps, save_every=4), tmp_path, seed=3, resume=steps > 4)
        said = capsys.readouterr().err
        assert ("odd row: of all (found before training)" in said) == (steps == 4)
        assert ("late row: of rank 0 (found in training)" in said) == (steps == 4)
        (total,) = [line for line in said.splitlines() if "data problems, listed" in line]
        assert total.endswith("data_problems.tsv: odd row: 1; late row: 1")
    assert len(listed(tmp_path)) == 2


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run_toy(tmp_path, steps=8)
    with pytest.raises(ValueError, match=r"already holds a run.*--resume"):
        run_toy(tmp_path, steps=8)
    assert run_toy(tmp_path, steps=12, resume=True).step == 12


def test_ema_may_begin_later(tmp_path: Path) -> None:
    run_toy(tmp_path, steps=8)
    assert run_toy(tmp_path, steps=12, resume=True, ema_decay=0.9).status == "finished"


def test_wrong_settings_fail_before_any_step(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"batch_size \(2\) is less than"):
        run_toy(tmp_path, batch_size=2, gradient_accumulation_steps=4)
    with pytest.raises(ValueError, match="learning_rate is not set"):
        run_toy(tmp_path, learning_rate=None)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_in_place(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one test by inductor, which takes long to compile."""
    used, plain = [], torch.nn.Module.compile

    def compile_in_place(model: torch.nn.Module) -> None:
        used.append(backend)
        plain(model, backend=backend)

    monkeypatch.setattr(torch.nn.Module, "compile", compile_in_place)
    run_toy(tmp_path / "plain")
    run_toy(tmp_path / "compiled", compile=True)
    assert used == [backend]
    assert furthest(tmp_path / "plain", tmp_path / "compiled") < 1e-4


def test_no_step_reads_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between logs nothing turns a tensor into a number."""
    reads = []
    for name in ("item", "tolist", "__bool__", "__float__", "cpu"):
        kept = getattr(torch.Tensor, name)

        def read(self, *rest, kept=kept, name=name):
            reads.append(name)
            return kept(self, *rest)

        monkeypatch.setattr(torch.Tensor, name, read)
    seen = []
    run_toy_with = [Hook(1, lambda trainer: seen.append(len(reads)))]
    train(
        Toy(), config(steps=30, log_every=30, save_every=0, evaluate_every=0, clip_norm=1.0),
        tmp_path, seed=3, report=ProgressBars(quiet=True), hooks=run_toy_with,
    )  # fmt: skip
    assert seen[0] == seen[28] and reads.count("tolist") > 0
