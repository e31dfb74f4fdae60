"""`magneto plan` of every recipe without data, and `magneto train --dry-run`."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from magneto.commands.plan import dry_run_lines
from magneto.data.stream import named_tensors
from magneto.lab.plan import without_data
from magneto.recipe import load_recipe, recipe_names
from magneto.training.model import count_flops
from magneto.training.task import Task, place_companion
from tests.commands import answer, outcome, printed, refused

TINY = [name for name in recipe_names() if name.endswith("/tiny")]
SMALL = ["plan", "causal-lm/small", "--model.width", "64",
         "--model.ffn_width", "128", "--data.max_length", "32",
         "--data.vocab_size", "500"]  # fmt: skip
EPOCHS = ["--training.epochs", "2", "--training.steps", "1"]


@pytest.fixture(autouse=True)
def nothing_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide no data; no test has a network."""
    monkeypatch.chdir(tmp_path)


def planned(name: str, changes: dict[str, Any]) -> Task:
    """Return a recipe's task as a plan builds it."""
    fields = without_data(load_recipe(name, changes))
    return load_recipe(name, {**changes, **fields}).build_task()


# The others' in the slow tests: each takes a second. Other tests here plan two more of them.
SOME = ("transducer/tiny", "vision-language-modelling/tiny")


@pytest.mark.parametrize(
    "name", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in TINY]
)
def test_every_task_has_a_batch_without_data(name: str, cache: Path) -> None:
    few = {"model.layers": 1} if name in SOME else {}
    if "transducer" in name:
        few |= {"data.max_duration": 1.0, "data.max_frames": 200}
    task = planned(name, few)
    batch = task.dummy_batch(2)
    place_companion(task, torch.device("cpu"))
    assert 0 < count_flops(task, batch)[0] < math.inf
    assert not cache.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_the_batch_is_like_one_of_data(name: str) -> None:
    """It has the same parts and types."""
    recipe = load_recipe(name)
    real = recipe.build_task()
    real.prepare()
    count = recipe.training.batch_size
    made = named_tensors(planned(name, {}).dummy_batch(count))
    known = named_tensors(real.train_stream(count, 1).batch(0)[0])
    shared = [key for key in known if key in made]
    assert len(shared) > len(known) / 2
    for key in shared:
        assert made[key].dtype == known[key].dtype, key


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in recipe_names() if n not in TINY])
def test_every_recipe_is_planned_or_says_what_it_needs(name: str, capsys: Any) -> None:
    epochs = load_recipe(name, {}).training.epochs
    words = ["plan", name, "--gpus", "64", *(["--examples", "1000000"] if epochs else []), "--json"]
    code, out, err = outcome(capsys, *words)
    if code == 2:
        assert len(err.strip().splitlines()) <= 3, err
        return
    found = json.loads(out)
    assert found["activations"]["kept"]["hours"] > 0
    assert len(found["ways"]) in (2, 6)


@pytest.mark.slow
def test_the_commands_of_the_page_work(capsys: Any) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guide" / "gpus.md").read_text(encoding="utf-8")
    commands = re.findall(r"^magneto (plan .*)$", page, re.M)
    assert len(commands) == 2
    for command in commands:
        assert outcome(capsys, *command.split())[0] == 0, command


def test_a_group_of_utterances_is_as_full_as_it_may_be() -> None:
    """10 s are 1000 frames: 5 fit, and 50,000 cells are 10 for each frame, one the end's."""
    most = {"data.max_duration": 10.0, "data.max_frames": 5000, "data.max_cells": 50_000.0}
    (group,) = load_recipe("transducer/tiny", most).build_task().dummy_batch(1)
    assert tuple(group.features.shape[:2]) == (5, 1000) and tuple(group.targets.shape) == (5, 9)
    assert group.sizes == [(1000, 9)] * 5 and group.frames == group.cells == 5000


@pytest.mark.parametrize(("tokenizer", "labels"), [("characters", 31), ("bpe", 5000)])
def test_characters_are_few(tokenizer: str, labels: int) -> None:
    recipe = load_recipe("transducer/tiny", {"data.tokenizer": tokenizer})
    assert without_data(recipe)["model.vocab_size"] == labels


def test_sizes_that_are_set_are_not_assumed() -> None:
    for task, field, given in (
        ("visual-question-answering", "answers", 7), ("image-modelling", "codes", 12),
        ("text-classification", "classes", 3),
    ):  # fmt: skip
        found = without_data(load_recipe(f"{task}/tiny", {f"model.{field}": given}))
        assert found.get(f"model.{field}", len(found.get("data.labels", ()))) == given


def test_a_plan(capsys: Any) -> None:
    words = ["--gpus", "16", "--gpu-memory", "1", "--training.batch_size", "64"]
    found = answer(capsys, *SMALL, *words, "--model.layers", "2")
    # Embeddings; per layer four square matrices with biases, two of the network with theirs, and
    # the norms' scales and shifts (three of the width, one of the network's); the last norm.
    width, inner = 64, 128
    layer = 4 * width**2 + 4 * width + 2 * width * inner + inner + width + 6 * width + 2 * inner
    assert found["parameters"] == 500 * width + 2 * layer + 2 * width
    assert found["state"]["optimizer"] == 8 * found["parameters"]
    assert (found["micro_batch"], found["steps"]) == (4, 10_000)
    kept, recomputed = (found["activations"][name] for name in ("kept", "recomputed"))
    assert kept["hours"] == pytest.approx(kept["step_flops"] * 10_000 / (0.4 * 989e12 * 16) / 3600)
    epochs = ["--training.epochs", "2", "--examples", "1601", "--training.precision", "fp32"]
    counted = answer(capsys, *SMALL, *words, *epochs, "--model.layers", "1")
    assert counted["steps"] == 51 and counted["peak_flops"] < found["peak_flops"]
    assert recomputed["step_flops"] > kept["step_flops"]
    assert recomputed["kept"] < kept["kept"] / 3
    assert [way["strategy"] for way in found["ways"]] == ["ddp", "hybrid", "fsdp"] * 2
    assert found["advice"]["options"] == (
        "--distributed ddp --model.checkpoint_activations false "
        "--training.gradient_accumulation_steps 1"
    )
    output = printed(
        capsys, *SMALL, *EPOCHS, "--model.layers", "1", "--gpus", "64", "--gpu-memory", "0.001"
    )
    parameters = f"{found['parameters'] - layer:,} parameters; "
    for words in (parameters, "assumed", "hybrid", "nothing fits in 0.001 GB", "give --examples N"):
        assert words in output


def test_assumed_sizes_are_printed(capsys: Any) -> None:
    words = ["plan", "image-classification/tiny", "--data", "nowhere", "--model.image_size", "null",
             "--model.layers", "1", "--training.batch_size", "64",
             "--model.patch_size", "8", "--model.channels", "null"]  # fmt: skip
    output = printed(capsys, *words, *EPOCHS, "--examples", "6400")
    assert "model.image_size 64, model.channels 3 (training derives" in output
    assert "; 200 steps" in output
    # The largest size that a training would derive, as it derives it.
    smaller = load_recipe("image-classification/tiny", {"model.patch_size": 4,
                                                        "model.image_size": "null"})  # fmt: skip
    assert without_data(smaller)["model.image_size"] == 64


WORDS = ["train", "text-classification/tiny", "--data.tokenizer", "bytes", "--model.width", "16",
         "--model.layers", "1", "--model.heads", "2", "--training.device", "cpu", "--dry-run",
         "--training.batch_size", "8", "--training.steps", "50"]  # fmt: skip


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"{'ab'[i % 2]} {i},{i % 2}\n" for i in range(200)))
    return path


def test_it_says_what_a_training_takes_and_writes_nothing(
    rows: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    found = answer(capsys, *WORDS, "--data", rows, "--out", "runs/x")
    assert (found["steps"], found["batch_size"], found["unit"]) == (50, 8, "texts")
    assert (found["units_per_step"], found["units"]) == (8, 400)
    assert found["peak_bytes"] > found["state_bytes"] == 16 * found["parameters"] > 0
    assert sum(found["parts"].values()) == found["parameters"] and len(found["parts"]) > 1
    assert found["seconds"] == pytest.approx(50 * found["seconds_per_step"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv"]
    words = printed(capsys, *WORDS, "--data", rows)
    for each in (
        "parameters",
        "50 of 8 examples each",
        "400, 8 per step",
        "GB",
        "no run was written",
    ):
        assert each in words
    lines = dry_run_lines({**found, "seconds": 150.0, "seconds_per_step": 3.0, "timed_steps": 4})
    assert "time        2:30, 3 s per step (median of 4), without evaluations" in "\n".join(lines)


def test_what_fills_the_memory_is_not_tried(rows: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("magneto.training.model.memory_of", lambda device: 1000)
    assert "the device (cpu) has 1e-06 GB" in refused(capsys, *WORDS, "--data", rows)
