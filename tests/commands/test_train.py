"""`magneto train` as a user meets it when something goes wrong: what it says, what it leaves."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.commands.train import is_run
from magneto.lock import LOCK_FILE, acquire_lock
from magneto.recipe import open_run
from magneto.training.hooks import log
from magneto.training.metrics_logger import read_metrics
from magneto.training.state import TrainingState
from tests.commands.small_run import NEW, outcome

pytest.importorskip("sklearn")


def test_a_diverged_run_has_an_exit_code_of_its_own(tmp_path: Path, capsys) -> None:
    words = [*NEW, "--training.learning_rate", "1e30", "--out", tmp_path / "run", "--json"]
    code, out, err = outcome(capsys, *words)
    assert code == 3 and json.loads(out)["status"] == "diverged"
    assert "try a lower --training.learning_rate" in err.splitlines()[-1]


def test_exit_codes_are_in_the_help(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "3 if it diverged" in capsys.readouterr().out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    assert main([*NEW, "--out", str(run)]) == 0
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A finished run of six steps, with checkpoints after 4 and 6."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(capsys: pytest.CaptureFixture, *words: object) -> str:
    """Return the one line that a command refuses with."""
    code, out, err = outcome(capsys, *words)
    lines = [line for line in err.splitlines() if line.startswith("magneto:")]
    assert code == 2 and out == "" and len(lines) == 1, err
    return lines[0]


def test_a_run_that_is_being_trained_is_refused(run: Path, capsys) -> None:
    lock = acquire_lock(run)
    assert lock is not None
    before = everything(run)
    line = refused(capsys, "train", "--resume", run, "--training.steps", "8")
    assert f"is being trained by process {os.getpid()} on" in line
    assert "is being trained" in refused(capsys, *NEW, "--out", run)
    assert everything(run) == before
    lock.release()
    assert outcome(capsys, "train", "--resume", run, "--training.steps", "8")[0] == 0


def test_a_start_under_way_is_refused_too(tmp_path: Path, capsys) -> None:
    """One that has written nothing yet but its lock's file."""
    lock = acquire_lock(tmp_path)
    assert lock is not None
    assert "is being trained" in refused(capsys, *NEW, "--out", tmp_path)
    assert list(everything(tmp_path)) == [LOCK_FILE]
    lock.release()
    assert outcome(capsys, *NEW, "--out", tmp_path)[0] == 0


@pytest.mark.distributed
def test_two_that_are_started_together_make_one_run(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "magneto", *NEW, "--training.steps", "40", "--out"]
    two = [
        subprocess.Popen([*words, str(tmp_path / "run")], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate()[1] for process in two]
    assert sorted(process.returncode for process in two) == [0, 2], said
    lines = said[two.index(next(p for p in two if p.returncode))].splitlines()
    assert len(lines) == 1 and lines[0].startswith("magneto:")
    rows = [row["step"] for row in read_metrics(tmp_path / "run") if "loss" in row]
    assert rows == list(range(1, 41))


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--model.width 32", "model.width is 32 (was 16)"),
        ("--model.placement post --model.layers 2", "model.layers is 2 (was 1)"),
        ("--model.dropout 0.25", "model.dropout is 0.25"),
        ("--seed 7", "seed is 7 (was 1)"),
        ("--data.validation_fraction 0.3", "data.validation_fraction is 0.3 (was 0.2)"),
        ("--training.device cuda:99", "training.device"),
        ("--training.batch_size 1 --training.gradient_accumulation_steps 2", "is less than"),
    ],
)
def test_a_refused_resumption_leaves_the_run_as_it_was(
    run: Path, words: str, answer: str, capsys
) -> None:
    before = everything(run)
    more = [*words.split(), "--training.steps", "8"]
    assert answer in refused(capsys, "train", "--resume", run, *more)
    assert everything(run) == before


def test_settings_of_training_may_change_and_are_said(run: Path, capsys) -> None:
    words = ["--training.steps", "8", "--training.learning_rate", "1e-5"]
    code, _, err = outcome(capsys, "train", "--resume", run, *words)
    assert code == 0
    said = next(line for line in err.splitlines() if line.startswith("changed: "))
    assert "training.steps is 8 (was 6)" in said and "learning_rate is 1e-05 (was" in said
    assert open_run(run).training.steps == 8


def test_a_recipe_that_is_cut_short_is_refused(run: Path, capsys) -> None:
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text[: text.index("batch_size")])
    before = everything(run)
    line = refused(capsys, "train", "--resume", run)
    assert "recipe.yaml is cut short" in line and "learning_rates" in line
    assert everything(run) == before


def test_a_recipe_that_was_changed_by_hand_is_refused(run: Path, capsys) -> None:
    path = run / "recipe.yaml"
    path.write_text(path.read_text().replace("heads: 2", "heads: 4"))
    (run / "result.json").unlink()
    assert "model.heads is 4 (was 2)" in refused(capsys, "train", "--resume", run)


def test_a_finished_run_says_so_and_stays_as_it_is(run: Path, capsys) -> None:
    before = everything(run)
    code, out, err = outcome(capsys, "train", "--resume", run, "--json")
    assert code == 0 and f"{run} finished at step 6 already" in err
    assert json.loads(out)["metrics"] == json.loads(before["result.json"])["metrics"]
    assert everything(run) == before


def test_a_run_killed_before_its_end_was_written_ends_again(run: Path, capsys) -> None:
    expected = (run / "final" / "model.safetensors").read_bytes()
    shutil.rmtree(run / "final")
    assert outcome(capsys, "train", "--resume", run)[0] == 0
    assert (run / "final" / "model.safetensors").read_bytes() == expected


@pytest.mark.distributed
def test_a_kill_before_the_recipe_is_written_leaves_the_place_free(tmp_path: Path, capsys) -> None:
    program = (
        "import os, sys; from magneto.recipe import Recipe; from magneto.cli import main; "
        "Recipe.save = lambda self, path: os.kill(os.getpid(), 9); main(sys.argv[1:])"
    )
    out = tmp_path / "run"
    words = [*NEW, "--out", str(out)]
    assert subprocess.run([sys.executable, "-c", program, *words], check=False).returncode == -9
    assert (out / LOCK_FILE).exists()
    assert outcome(capsys, *words)[0] == 0


def test_a_folder_with_other_things_is_not_taken(tmp_path: Path, capsys) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "not empty" in refused(capsys, *NEW, "--out", tmp_path)
    assert "not empty" in refused(capsys, *NEW, "--out", tmp_path / "notes.txt")
    assert everything(tmp_path) == {"notes.txt": b"mine"}
    (tmp_path / LOCK_FILE).touch()  # of a run that was here
    assert "not empty" in refused(capsys, *NEW, "--out", tmp_path)
    assert (tmp_path / "notes.txt").read_bytes() == b"mine" and not is_run(tmp_path)


@pytest.mark.parametrize("replaced", [False, True], ids=["gone", "another's"])
def test_a_run_whose_folder_vanishes_ends_with_an_error(
    tmp_path: Path, monkeypatch, capsys, replaced: bool
) -> None:
    run, other = tmp_path / "run", {"metrics.jsonl": b""}

    def lose(state: TrainingState) -> None:
        if state.step == 3:
            run.rename(tmp_path / "elsewhere")
        if state.step == 3 and replaced:
            run.mkdir()
            (run / "metrics.jsonl").touch()
        log(state)

    monkeypatch.setattr("magneto.training.hooks.log", lose)
    line = refused(capsys, *NEW, "--out", run)
    assert "metrics.jsonl is gone" in line
    assert not (tmp_path / "elsewhere" / "result.json").exists()
    assert everything(run) == (other if replaced else {})


@pytest.mark.distributed
def test_two_ranks_hold_one_lock(tmp_path: Path, capsys) -> None:
    """Without --out each rank would name the directory itself; refusals and results agree."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["2", "-m", "magneto", *NEW]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs" / "image-classification").iterdir()
    assert json.loads((run / "result.json").read_text())["step"] == 6
    assert (run / "recipe.yaml").exists()
    code, _, err = outcome(capsys, "train", "--resume", run)
    assert code == 0 and "finished at step 6 already" in err
