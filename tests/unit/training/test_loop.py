"""The loop's promises: neither cutting a batch nor repeating changes a result; what ends a run."""

import json
import math
import re
import signal
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from magneto.data.stream import BatchStream
from magneto.training import loop
from magneto.training.config import learning_rate
from magneto.training.distributed import World
from magneto.training.logging import Throughput, read_metrics
from magneto.training.loop import Hook, TrainingState, accumulate, step_seed
from magneto.training.model import initial_model
from magneto.training.task import NON_FINITE, Loss, add_losses
from magneto.weights import list_checkpoints
from tests.problems import listed
from tests.unit.training.toy import (
    TIMED,
    Moving,
    Noting,
    Toy,
    ToyData,
    config,
    rows,
    run_toy,
    tensors,
)
from tests.watched import host_reads


def test_everything_is_written_down(finished: Path) -> None:
    """That a run learns, as a plain loop of torch, is in the oracles."""
    metrics, written = read_metrics(finished), json.loads((finished / "result.json").read_text())
    assert (written["status"], written["step"]) == ("finished", 30)
    evaluations = [row for row in metrics if "validation_loss" in row]
    assert [row["step"] for row in evaluations] == [10, 20, 30]
    logged = next(row for row in metrics if row["step"] == 20 and "loss" in row)
    assert {*TIMED, "loss", "absolute", "gradient_norm"} < set(logged)
    assert min(logged[name] for name in TIMED) > 0
    assert logged["learning_rate"] == learning_rate(config(), 19), "of the 20th step"
    assert written["metrics"]["loss"] == evaluations[-1]["validation_loss"]
    assert written["best"]["value"] == min(row["validation_loss"] for row in evaluations)
    assert not list(finished.rglob(".*")), "no file left aside"


def test_utilisation_is_of_the_operations_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magneto.training.loop.count_flops", lambda *_: (60.0, 4))
    monkeypatch.setattr("magneto.training.loop.peak_flops", lambda *_: 1e6)
    run_toy(tmp_path, steps=2, log_every=1)
    logged = [row for row in read_metrics(tmp_path) if "loss" in row]
    assert len(logged) == 2
    for row in logged:
        expected = row["rows_per_second"] * (60 / 4) / 1e6
        assert row["flops_utilisation"] == pytest.approx(expected)


def test_divergence_is_judged_by_the_loss_per_row(tmp_path: Path) -> None:
    """The rows of a batch weigh differently, so sums would jump from step to step."""
    seen: list[float] = []
    run_toy(tmp_path, steps=3, log_every=1, hooks=[Hook(1, lambda s: seen.extend(s.losses))])
    logged = [row["loss"] for row in read_metrics(tmp_path) if "loss" in row]
    assert len(seen) == 3 and seen == pytest.approx(logged)


def test_losses_of_groups_add_up_by_name() -> None:
    one, ten = (
        Loss(torch.tensor(1.0 * n), torch.tensor(2 * n), {"a": torch.tensor(3 * n)}, units)
        for n, units in ((1, 4), (10, 5))
    )
    both = add_losses([one, ten])
    assert (both.total, both.count, both.logs, both.units) == (11, 22, {"a": 33}, 9)


def test_too_small_a_batch_is_refused_before_data_are_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Toy, "prepare", lambda *_: pytest.fail())
    with pytest.raises(ValueError, match=r"batch_size \(16\) is less than .*\(1 x 17\)"):
        run_toy(tmp_path, gradient_accumulation_steps=17)


def test_no_two_steps_ranks_or_runs_draw_the_same_numbers(tmp_path: Path, monkeypatch) -> None:
    assert len({step_seed(*each) for each in product((1, 2), repeat=3)}) == 8
    seen = []
    monkeypatch.setattr(torch, "manual_seed", seen.append)
    run_toy(tmp_path, steps=3)
    assert seen == [step_seed(3, step, 0) for step in range(3)]


def test_values_made_of_data_and_of_steps(tmp_path: Path) -> None:
    """The mean of two batches, moved after each step by the step's own; however these are cut."""
    run_toy(tmp_path / "whole", task=Moving(), steps=3)
    stream = Moving().train_stream(16, 3).batches()
    batches = [next(stream)[0][0] for _ in range(3)]
    mean = torch.cat(batches[:2]).mean(0)
    for batch in batches:
        mean = mean.lerp(batch.mean(0), 0.1)
    assert torch.allclose(tensors(tmp_path / "whole" / "final")["mean"], mean, atol=1e-6)
    run_toy(tmp_path / "cut", task=Moving(), steps=3, gradient_accumulation_steps=4)
    assert torch.allclose(tensors(tmp_path / "cut" / "final")["mean"], mean, atol=1e-6)


def test_each_weight_learns_at_its_own_rate(tmp_path: Path) -> None:
    """A first step of Adam is the rate, whatever the gradient."""
    world, rate = World(0, 1, torch.device("cpu"), "none"), 1e-3
    changes = {"warmup_steps": 0, "schedule": "constant", "weight_decay": 0.0, "eps": 1e-20}
    run_toy(tmp_path, task=Moving(), steps=1, learning_rate=rate, **changes)
    after, before = tensors(tmp_path / "final"), initial_model(Moving(), 3, world).state_dict()
    for name in ("into.weight", "layers.0.weight", "out.weight"):
        step = (after[name] - before[name]).abs().max().item()
        assert step == pytest.approx(rate * (0.1 if name == "into.weight" else 1), rel=1e-3), name


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_a_model_computes_in_the_precision_that_is_asked_for(
    precision: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro-batch by micro-batch; ranks exchange gradients in the last, and then the sums."""
    seen, last = [], list[bool]()
    exchange = lambda model, flag: last.append(flag) or nullcontext()  # noqa: E731
    monkeypatch.setattr(loop, "gradient_sync", exchange)
    monkeypatch.setattr(loop, "all_reduce_sum", lambda total, world: total * 10)

    class Watched(Toy):
        def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
            seen.append(model(batch[0]).dtype)
            return super().loss(model, batch)

    task, world = Watched(), World(0, 1, torch.device("cpu"), "none")
    pieces = task.validation_batches()[:3]
    found = accumulate(task, task.build_model(), pieces, config(precision=precision), world)
    assert seen == [getattr(torch, dtype)] * 3 and last == [False, False, True]
    counts = sum(((x[:, 0] > 0) + 0.5).sum().item() for x, _ in pieces)
    assert (found[0][1], found[1:]) == (10 * counts, (["loss", "count", "absolute"], 25 + 7 + 19))


def test_no_step_reads_the_device(tmp_path: Path) -> None:
    """Between logs nothing turns a tensor into a number."""
    seen = []
    settings: dict[str, Any] = {"log_every": 30, "save_every": 0, "evaluate_every": 0}
    with host_reads() as reads:
        hooks = [Hook(1, lambda state: seen.append(len(reads)))]
        run_toy(tmp_path, hooks=hooks, clip_norm=1.0, ema_decay=0.9, **settings)
    assert seen[0] == seen[28] and reads.count("tolist") > 0


def test_what_is_wrong_with_data_is_said_once_and_counted_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for steps in (4, 8):
        run_toy(tmp_path, steps > 4, Noting(), quiet=False, steps=steps, save_every=4)
        output = capsys.readouterr().err
        assert ("odd row: of all (found before training)" in output) == (steps == 4)
        assert ("late row: of rank 0 (found in training)" in output) == (steps == 4)
        (total,) = [line for line in output.splitlines() if "data problems, listed" in line]
        assert total.endswith("data_problems.tsv: odd row: 1; late row: 1")
    assert len(listed(tmp_path)) == 2


def test_time_of_evaluations_and_checkpoints_is_no_training(tmp_path: Path, monkeypatch) -> None:
    pauses, added = list[float](), list[int]()
    monkeypatch.setattr(Throughput, "add", lambda meter, units: added.append(units))
    monkeypatch.setattr(Throughput, "pause", lambda meter, seconds: pauses.append(seconds))
    monkeypatch.setattr(Toy, "summarise", lambda task, _, found: {"loss": float(len(found))})
    result = run_toy(tmp_path, steps=4, evaluate_every=2, save_every=1, evaluate_limit=3)
    assert len(pauses) == 2 + 4 and min(pauses) > 0 and added == [16] * 4
    assert result.metrics == {"loss": 3}, "the batches that are evaluated"


# A run that went wrong says so: what is not finite is no result.


@pytest.mark.parametrize(("lost", "status"), [(0.0, "finished"), (2.0, "diverged")])
def test_a_batch_that_predicts_nothing_is_divergence_if_no_loss_is_finite(
    tmp_path: Path, lost: float, status: str
) -> None:
    class Empty(Toy):
        """Whose first batch predicts nothing: a sum of 0, which is not the first loss."""

        first = True

        def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
            found, empty, self.first = super().loss(model, batch), self.first, False
            counted = 1.0 - empty
            return Loss(found.total * counted, found.count * counted,
                        {NON_FINITE: torch.tensor(lost * empty)})  # fmt: skip

    settings: dict[str, Any] = {"steps": 12, "evaluate_every": 0, "divergence_patience": 4}
    assert run_toy(tmp_path, task=Empty(), **settings).status == status


def test_a_loss_that_is_no_number_is_divergence_at_its_step(tmp_path: Path) -> None:
    """Neither evaluation nor checkpoint follows; weights and batch are kept."""

    class Shared(Toy):
        """Whose batches have a tensor twice, which a file can not."""

        def train_stream(self, batch_size: int, seed: int) -> BatchStream:
            usual = super().train_stream(batch_size, seed)
            return replace(usual, make=lambda rows: (*(made := usual.make(rows)), made[0]))

        def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Loss:
            return super().loss(model, batch[:2])

    task = Shared(ToyData(explode_at=0.9))
    result = run_toy(tmp_path, task=task, steps=100, evaluate_every=4)
    assert result.status == "diverged" and "nan" in result.reason
    first = result.diverged_at
    assert first is not None and first <= result.step < first + 4
    assert json.loads((tmp_path / "result.json").read_text())["diverged_at"] == first
    evaluated = [row["step"] for row in rows(tmp_path) if "validation_loss" in row]
    assert result.step % 4 == 0 and result.step not in evaluated
    assert not (tmp_path / "final").exists()
    (expected,) = task.train_stream(16, 3).batch(first - 1)
    kept = load_file(tmp_path / "diverged" / "batch.safetensors")
    assert torch.equal(kept["batch.0"], expected[0]) and torch.equal(kept["batch.1"], expected[1])
    state = json.loads((tmp_path / "diverged" / "state.json").read_text())
    assert state["diverged_at"] == first and None in state["losses"]
    assert state["weights_after_step"] == result.step
    assert tensors(tmp_path / "diverged").keys() == task.build_model().state_dict().keys() - {
        "head.weight"  # tied
    }


def test_no_checkpoint_is_written_of_a_run_gone_wrong(tmp_path: Path) -> None:
    """Saving finds the divergence before the log would, and whole checkpoints stay."""
    task = Toy(ToyData(explode_at=0.9))
    result = run_toy(tmp_path, task=task, steps=100, log_every=50, save_every=1)
    assert result.status == "diverged" and result.step == result.diverged_at
    last = list_checkpoints(tmp_path)[-1]
    assert last.name == f"step-{result.step - 1:08d}"
    assert all(tensor.isfinite().all() for tensor in tensors(last).values())


BEST_TWO: dict[str, Any] = {"average_checkpoints": 2, "average_by": "best"}


class Scored(Toy):
    """A task whose evaluations give these validation losses and values of its metric."""

    primary_metric = "sign"

    def __init__(self, *scores: tuple[float, float]) -> None:
        super().__init__(ToyData(wrong_way=True))  # the higher the better
        self.scores = list(scores)

    def summarise(self, sums, predictions) -> dict[str, float]:
        loss, sign = self.scores.pop(0)
        return {"loss": loss, "sign": sign}


def test_a_validation_loss_that_is_no_number_is_divergence_and_never_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    task = Scored((1.0, 0.5), (math.nan, 1.0))
    result = run_toy(tmp_path, task=task, quiet=False, **BEST_TWO)
    assert (result.status, result.diverged_at) == ("diverged", 20)
    assert "validation loss is nan" in result.reason and result.metrics["sign"] == 1.0
    assert result.best == {"step": 10, "value": 0.5}
    assert json.loads((tmp_path / "best" / "state.json").read_text())["step"] == 10
    assert [path.name for path in (tmp_path / "candidates").iterdir()] == ["step-00000010"]
    last = capsys.readouterr().err.splitlines()[-1]
    for word in ("learning_rate", "warmup_steps", "clip_norm", "placement", "magneto probe"):
        assert word in last


@pytest.mark.parametrize(
    ("values", "best", "held"),
    [((0.5, 0.9, 0.7), 20, [20, 30]), ((0.5, math.nan, 0.7), 30, [10, 30])],
)
def test_the_best_is_of_the_highest_metric_that_is_a_number(
    tmp_path: Path, values: tuple[float, ...], best: int, held: list[int]
) -> None:
    """Others are held beside it, for an average."""
    result = run_toy(tmp_path, task=Scored(*((1.0, value) for value in values)), **BEST_TWO)
    assert result.status == "finished" and result.best["step"] == best
    assert json.loads((tmp_path / "best" / "state.json").read_text())["step"] == best
    found = sorted(path.name for path in (tmp_path / "candidates").iterdir())
    assert found == [f"step-{step:08d}" for step in held]


def test_the_best_of_a_killed_run_is_what_its_folder_holds(tmp_path: Path) -> None:
    """Where the steps since the checkpoint are not repeated exactly, as on a GPU."""

    def killed(state: TrainingState) -> None:
        raise KeyboardInterrupt

    settings = {"save_every": 15, **BEST_TWO}
    with pytest.raises(KeyboardInterrupt):
        task = Scored((1.0, 0.5), (1.0, 0.9))
        run_toy(tmp_path, task=task, hooks=[Hook(21, killed)], **settings)
    result = run_toy(tmp_path, resume=True, task=Scored((1.0, 0.3), (1.0, 0.4)), **settings)
    assert result.best == {"step": 20, "value": 0.9}
    kept = json.loads((tmp_path / "best" / "state.json").read_text())
    assert (kept["step"], kept["metrics"]["sign"]) == (20, 0.9)
    averaged = json.loads((tmp_path / "averaged" / "state.json").read_text())
    assert averaged == {"average_of": ["step-00000010", "step-00000020"]}


def test_an_evaluation_without_a_number_is_no_better(tmp_path: Path) -> None:
    result = run_toy(tmp_path, task=Scored((1.0, 0.5), (1.0, math.nan)), patience=1)
    assert (result.step, result.best["step"]) == (20, 10)


@pytest.mark.parametrize(("at", "status"), [(9, "interrupted"), (30, "finished")])
def test_a_signal_ends_a_run_after_its_step(tmp_path: Path, at: int, status: str) -> None:
    seen = []
    hooks = [Hook(at, lambda state: signal.raise_signal(signal.SIGTERM)),
             Hook(at, lambda state: seen.append(len(state.batches.processes))),
             Hook(at, lambda state: seen.append(state.detector.patience))]  # fmt: skip
    result = run_toy(tmp_path, hooks=hooks, divergence_patience=7, num_workers=2)
    assert (result.status, result.step, seen[:2]) == (status, at, [2, 7])
    assert list_checkpoints(tmp_path)[-1].name == f"step-{at:08d}"


def test_a_run_that_fewer_steps_end_is_evaluated(tmp_path: Path) -> None:
    stop = Hook(17, lambda state: signal.raise_signal(signal.SIGTERM))
    run_toy(tmp_path, hooks=[stop])
    result = run_toy(tmp_path, resume=True, steps=17)
    assert (result.status, result.step) == ("finished", 17)
    trained, evaluated = [row for row in read_metrics(tmp_path) if row["step"] == 17]
    assert "loss" in trained and result.metrics["loss"] == evaluated["validation_loss"]


class UnseenWeight(Toy):
    """A task whose evaluation does not notice what its weights are."""

    def summarise(self, sums, predictions) -> dict[str, float]:
        return {"loss": 1.0}


@pytest.mark.parametrize("at", [8, 30])
def test_weights_that_are_not_finite_are_divergence(tmp_path: Path, at: int) -> None:
    """Whether a checkpoint finds it, or the end."""

    def break_weights(state: TrainingState) -> None:
        with torch.no_grad():
            state.parameters[0].fill_(float("inf"))

    hooks = [Hook(at, break_weights)]
    result = run_toy(tmp_path, task=UnseenWeight(), hooks=hooks, save_every=4, log_every=30)
    assert (result.status, result.reason) == ("diverged", "the weights are not finite")
    assert result.diverged_at == at
    assert f"step-{at:08d}" not in {path.name for path in list_checkpoints(tmp_path)}
    assert not (tmp_path / "final").exists()


def test_a_run_says_each_evaluation_once_and_what_is_next(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = tmp_path / "a run"
    result = run_toy(run, quiet=False, steps=8, evaluate_every=4)
    evaluated, done, training, *metrics = capsys.readouterr().err.splitlines()[1:]
    assert re.fullmatch(r"step 4: training loss [\d.]+, validation loss [\d.]+", evaluated)
    assert done.startswith("finished after") and done.endswith("8 steps")
    assert training.split()[:2] == ["training", "loss"]
    known = [["validation", name, f"{value:.4g}"] for name, value in result.metrics.items()]
    assert [line.split() for line in metrics[: len(known)]] == known
    assert metrics[-2:] == [f"  magneto evaluate '{run}'", f"  magneto report '{run}'"]
    kept = []
    hook = Hook(1, lambda state: kept.append((state.run / "result.json").exists()))
    run_toy(run, resume=True, quiet=False, steps=12, evaluate_every=0, hooks=[hook])
    assert kept == [False] * 4, "a run that goes on has no result until its end"
    assert "12 steps, 4 since resumption\n" in capsys.readouterr().err


def test_patience_ends_training_and_the_best_weights_are_final(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Once the rate is far too high nothing gets better: that is seen, also after a resumption."""
    settings: dict[str, Any] = {"steps": 40, "evaluate_every": 4, "save_every": 4, "patience": 3}

    class Worse(Toy):
        """Whose validation loss falls to step 8 and then rises."""

        def summarise(self, sums: Any, predictions: Any) -> dict[str, float]:
            found = super().summarise(sums, predictions)
            self.evaluated = getattr(self, "evaluated", 0) + 1
            return found | {"loss": abs(self.evaluated - 2) + 1.0, "undefined": math.nan}

    result = run_toy(tmp_path, task=Worse(), quiet=False, **settings)
    assert (result.status, result.step, result.best["step"]) == ("finished", 20, 8)
    output = capsys.readouterr().err
    assert "step 20: " in output and "validation loss 4\n" in output, "what the last weights scored"
    assert output.count("step 8, ") == 1 and "the best was" not in output
    assert "no better validation loss in the last 3 evaluations" in result.reason
    best, final = (tensors(tmp_path / name) for name in ("best", "final"))
    last = tensors(list_checkpoints(tmp_path)[-1])
    assert all(torch.equal(final[name], best[name]) for name in best)
    assert any(not torch.equal(final[name], last[name]) for name in best)
    assert result.metrics["loss"] == 1.0 and math.isnan(result.metrics["undefined"])
    assert json.loads((tmp_path / "final" / "state.json").read_text())["step"] == 8
    assert '"validation_undefined": null' in (tmp_path / "metrics.jsonl").read_text(), "NaN in JSON"
    assert run_toy(tmp_path, task=Worse(), resume=True, **settings).step == 20, "left as it is"
    (tmp_path / "result.json").unlink()
    assert run_toy(tmp_path, task=Worse(), resume=True, **settings).step == 20, "killed at the end"
    more = run_toy(tmp_path, task=Worse(), resume=True, **{**settings, "patience": 4})
    assert more.step > 20
    # Where the last step comes first, or nothing is saved on the way, it is no different.
    for name, changed in (("whole", {"steps": 16}), ("unsaved", {"save_every": 0})):
        run = tmp_path / name
        done = run_toy(run, task=Worse(), **{**settings, **changed})
        assert done.metrics["loss"] == 1.0
        assert list_checkpoints(run)[-1].name == f"step-{done.step:08d}"
        best, final = (tensors(run / each) for each in ("best", "final"))
        assert all(torch.equal(final[each], best[each]) for each in best)
