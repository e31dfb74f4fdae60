"""The probe in training: its rows, unchanged runs, and its cost."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from magneto.lab.probe import PROBE_FILE, ProbeHook
from magneto.lab.short_run import initial_model, short_run
from magneto.progress import ProgressBars
from magneto.recipe import Recipe
from magneto.training.logging import TrainingResult, read_rows
from magneto.training.loop import Hook, TrainingState, train
from tests.ranks import run_alone, run_ranks

Small = Callable[..., Recipe]


def go(made: Recipe, run: Path, *hooks: Hook, resume: bool = False) -> TrainingResult:
    return train(
        made.build_task(), made.training, run, seed=made.seed, resume=resume, hooks=list(hooks),
        report=ProgressBars(quiet=True),
    )  # fmt: skip


def test_the_hook_writes_every_period_and_changes_nothing(small: Small, tmp_path: Path) -> None:
    made = small(training__save_every=4)
    plain = go(made, tmp_path / "plain")
    assert go(made, tmp_path / "watched", ProbeHook(3).hook).metrics == plain.metrics
    rows = read_rows(tmp_path / "watched" / PROBE_FILE)
    assert [row["step"] for row in rows] == [3, 6]
    task = made.build_task()
    short = short_run(
        task, initial_model(task, made.training, made.seed), made.training, seed=made.seed, steps=6
    )
    for row in rows:
        step = short.steps[row["step"] - 1]
        assert row["learning_rate"] == step.learning_rate
        norms = [layer["gradient_norm"] for layer in row["layers"]]
        assert 0.1 < math.hypot(*norms) / step.gradient_norm < 1, "of the mean loss"
        assert row["layers"][1]["gradient_norm"] == step.layers[1].gradient_norm
        whole = step.gradient_norm**2 - sum(norm**2 for norm in norms)
        size = made.model.width * task.vocabulary()
        # The embedding has what the layers have not, but for the norm on top.
        assert 0.7 * whole < row["embedding_gradient_rms"] ** 2 * size < whole
        assert row["layers"][1]["update_ratio"] == step.layers[1].update_ratio
        assert row["layers"][1]["attention_entropy"] == step.layers[1].attention_entropy


def test_a_resumed_run_has_each_row_once(small: Small, tmp_path: Path) -> None:
    made = small(training__save_every=4)

    def kill(trainer: TrainingState) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        go(made, tmp_path, ProbeHook(2).hook, Hook(7, kill))
    assert [row["step"] for row in read_rows(tmp_path / PROBE_FILE)] == [2, 4, 6]
    go(made, tmp_path, ProbeHook(2).hook, resume=True)
    assert [row["step"] for row in read_rows(tmp_path / PROBE_FILE)] == [2, 4, 6, 8]


@pytest.mark.parametrize(("precision", "times"), [("fp32", 1), ("bf16", 0)])
def test_a_trouble_is_said_once(
    precision: str, times: int, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of fp16's range is no limit of bf16."""
    made, lines = small(training__precision=precision), list[str]()
    monkeypatch.setattr(ProgressBars, "say", lambda bars, line: lines.append(line))

    class Large(ProbeHook):
        def __call__(self, trainer) -> None:  # type: ignore[no-untyped-def]
            if trainer.step == 1:
                with torch.no_grad():
                    trainer.model.decoder.layers[1].feed_forward.mlp.fc2.weight.mul_(1e6)
            super().__call__(trainer)

    go(made, tmp_path, Large(2).hook)
    warnings = [line for line in lines if "exceeds half of fp16" in line]
    assert [line[:24] for line in warnings] == ["step 2: decoder.layers.1"] * times


def test_a_watched_step_multiplies_little_more(small: Small, tmp_path: Path) -> None:
    """Its matrix products cost less than one further step."""
    counted = []
    for hooks in ([], [ProbeHook(2).hook]):
        with FlopCounterMode(display=False) as counter:
            go(small(training__steps=4), tmp_path / str(len(hooks)), *hooks)
        counted.append(counter.get_total_flops())
    assert 0 < counted[1] - counted[0] < 2 / 4 * counted[0]


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "hybrid"])
def test_two_ranks_write_what_one_writes(small: Small, tmp_path: Path, kind: str) -> None:
    """Gradients and updates are global; activations are those of the first rank."""
    made = small()
    made.save(tmp_path / "recipe.yaml")
    words = ["-m", "magneto", "train", str(tmp_path / "recipe.yaml"), "--probe-every", "3", "--out"]
    run_alone(*words, str(tmp_path / "one"))
    extra = ["--distributed", kind, "--training.shard_size", "1"]
    run_ranks(2, *words, str(tmp_path / kind), *extra)
    rows = [read_rows(tmp_path / name / PROBE_FILE) for name in ("one", kind)]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]] == [3, 6]
    for one, two in zip(rows[0], rows[1], strict=True):
        for a, b in zip(one["layers"], two["layers"], strict=True):
            assert a["name"] == b["name"]
            assert a["gradient_norm"] == pytest.approx(b["gradient_norm"], rel=1e-4)
            assert a["update_ratio"] == pytest.approx(b["update_ratio"], rel=1e-3)


@pytest.mark.slow
def test_a_compiled_model_is_watched_as_it_is(small: Small, tmp_path: Path) -> None:
    """The first measured step is compared; later ones differ by rounding, which Adam enlarges."""
    rows = []
    for compiled in (False, True):
        run = tmp_path / str(compiled)
        go(small(training__compile=str(compiled).lower()), run, ProbeHook(2).hook)
        rows.append(read_rows(run / PROBE_FILE)[0])
    for plain, compiled in zip(rows[0]["layers"], rows[1]["layers"], strict=True):
        assert plain.pop("name") == compiled.pop("name")
        assert plain == pytest.approx(compiled, rel=1e-4)
