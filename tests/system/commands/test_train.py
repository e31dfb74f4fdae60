"""`magneto train`: refusals, resumption, locks and exit codes."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from magneto.cli import main
from magneto.commands import train
from magneto.commands.train import LOCK_TIMEOUT, lock_of, parser, read_options
from magneto.files import LOCK_FILE, acquire_lock
from magneto.progress import SILENT
from magneto.recipe import open_run, recipe_path
from magneto.training.logging import TrainingResult
from magneto.training.loop import TrainingState, log
from tests.commands import outcome, refused
from tests.system.conftest import NEW

pytest.importorskip("sklearn")


@pytest.fixture
def run(digits_run: Path, tmp_path: Path) -> Path:
    """A finished run of six steps, with checkpoints after 4 and 6."""
    return Path(shutil.copytree(digits_run, tmp_path / "run"))


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_run_is_named_after_its_recipe(tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(recipe_path("causal-lm/tiny").read_bytes())
    for name, expected in (("causal-lm/tiny", "causal-lm/tiny-"), (str(tmp_path / "own"), "own-")):
        run, _, _ = read_options(*parser().parse_with_overrides([name]))
        assert str(run).startswith(f"runs/{expected}")


def test_the_training_gets_the_recipes_seed_and_the_hook(tmp_path: Path, monkeypatch) -> None:
    result = TrainingResult("interrupted", 1, {}, {}, None, "", 0.0)
    monkeypatch.setattr("magneto.training.loop.train", take := MagicMock(return_value=result))
    assert main([*NEW, "--seed", "5", "--probe-every", "--out", str(tmp_path / "run")]) == 130
    given, (task, *_) = take.call_args.kwargs, take.call_args.args
    assert given["seed"] == given["recipe"]["seed"] == task.seed == 5 and not given["resume"]
    assert [hook.function.period for hook in given["hooks"]] == [100]


def test_a_diverged_run_has_an_exit_code_of_its_own(tmp_path: Path, capsys) -> None:
    words = [*NEW, "--training.learning_rate", "1e30", "--out", tmp_path / "run", "--json"]
    code, out, err = outcome(capsys, *words)
    assert code == 3 and json.loads(out)["status"] == "diverged"
    assert "try a lower --training.learning_rate" in err.splitlines()[-1]
    assert "no weights in" in (error := outcome(capsys, "evaluate", tmp_path / "run")[2])
    assert "the run diverged" in error


def test_the_same_command_begins_and_goes_on(run: Path, capsys) -> None:
    words, whole = [*NEW, "--auto-resume", "--out", run], everything(run)
    shutil.rmtree(run / "final")
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    code, _, err = outcome(capsys, *words)  # it was stopped
    assert code == 0 and "resuming from" in err and "step 4" in err
    final = "final/model.safetensors"
    assert (run / final).read_bytes() == whole[final]
    code, out, err = outcome(capsys, *words, "--json")  # it had finished
    assert code == 0 and "already finished at step 6" in err and json.loads(out)["step"] == 6
    assert "model.width is 32 (was 16)" in refused(capsys, *words, "--model.width", "32")
    shutil.rmtree(run)
    code, _, err = outcome(capsys, *words)
    assert code == 0 and "going on" not in err and (run / "recipe.yaml").is_file()


def test_a_run_that_is_being_trained_is_refused_until_it_is_free(
    run: Path, tmp_path: Path, capsys
) -> None:
    """This includes a run that has written only its lock file."""
    lock, begun = acquire_lock(run), acquire_lock(tmp_path / "begun")
    assert lock is not None and begun is not None
    before = everything(run)
    line = refused(capsys, "train", "--resume", run, "--training.steps", "8")
    assert f"is being trained by process {os.getpid()} on {socket.gethostname()}" in line
    assert "is being trained" in refused(capsys, *NEW, "--out", run)
    assert "is being trained" in refused(capsys, *NEW, "--out", tmp_path / "begun")
    assert everything(run) == before and list(everything(tmp_path / "begun")) == [LOCK_FILE]
    lock.release()
    begun.release()
    assert outcome(capsys, *NEW, "--out", tmp_path / "begun")[0] == 0
    # Settings of training may change, and are said.
    words = ["--training.steps", "8", "--training.learning_rate", "1e-5"]
    code, _, err = outcome(capsys, "train", "--resume", run, *words)
    assert code == 0
    changes = next(line for line in err.splitlines() if line.startswith("changed settings: "))
    assert "training.steps is 8 (was 6)" in changes and "learning_rate is 1e-05 (was" in changes
    assert open_run(run).training.steps == 8


def test_who_holds_a_folder_is_waited_for_where_it_is_asked(tmp_path: Path, monkeypatch) -> None:
    """A restarted job may begin before its predecessor has ended."""
    for patient, expected in ((False, [0.0]), (True, [0.0, LOCK_TIMEOUT])):
        asked: list[float] = []
        monkeypatch.setattr(train, "acquire_lock", lambda run, s=0.0, asked=asked: asked.append(s))
        with pytest.raises(FileExistsError, match="being trained by"):
            lock_of(tmp_path, SILENT, patient)
        assert asked == expected
    monkeypatch.setattr(train, "acquire_lock", lambda run, patience=0.0: patience or None)
    assert lock_of(tmp_path, SILENT, True) == LOCK_TIMEOUT


def test_a_refused_resumption_leaves_the_run_as_it_was(run: Path, capsys) -> None:
    before = everything(run)
    for words, answer in (
        ("--model.width 32", "model.width is 32 (was 16)"),
        ("--seed 7", "seed is 7 (was 1)"),
        ("--data.validation_fraction 0.3", "data.validation_fraction is 0.3 (was 0.2)"),
        ("--training.device cuda:99", "training.device"),
        ("--training.batch_size 1 --training.gradient_accumulation_steps 2", "is less than"),
    ):
        more = [*words.split(), "--training.steps", "8"]
        assert answer in refused(capsys, "train", "--resume", run, *more)
        assert everything(run) == before


def test_a_recipe_that_was_damaged_or_changed_by_hand_is_refused(run: Path, capsys) -> None:
    path = run / "recipe.yaml"
    text = path.read_text()
    path.write_text(text[: text.index("batch_size")])
    before = everything(run)
    line = refused(capsys, "train", "--resume", run)
    assert "recipe.yaml is incomplete" in line and "learning_rates" in line
    assert everything(run) == before
    path.write_text(text.replace("heads: 2", "heads: 4"))
    (run / "result.json").unlink()
    assert "model.heads is 4 (was 2)" in refused(capsys, "train", "--resume", run)


def test_a_folder_with_other_things_is_not_taken(tmp_path: Path, capsys) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "not empty" in refused(capsys, *NEW, "--out", tmp_path)
    assert "not empty" in refused(capsys, *NEW, "--out", tmp_path / "notes.txt")
    assert everything(tmp_path) == {"notes.txt": b"mine"}
    (tmp_path / LOCK_FILE).touch()  # of a run that was here
    assert "not empty" in refused(capsys, *NEW, "--out", tmp_path)
    assert (tmp_path / "notes.txt").read_bytes() == b"mine"
    assert not (tmp_path / "recipe.yaml").exists()


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

    monkeypatch.setattr("magneto.training.loop.log", lose)
    assert "metrics.jsonl is gone" in refused(capsys, *NEW, "--out", run)
    assert not (tmp_path / "elsewhere" / "result.json").exists()
    assert everything(run) == (other if replaced else {})


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


def on_two_ranks(folder: Path, *words: str) -> str:
    """Let torchrun run a program in a folder; return what it said on stderr."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.distributed
def test_a_lost_worker_is_started_again_by_the_same_command(tmp_path: Path) -> None:
    """Rank 1 is killed in step 3; torchrun restarts all ranks, and they resume."""
    program = (
        "import os, sys; from magneto.cli import main; from magneto.training import loop; "
        "usual = loop.log; first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'; "
        "lost = lambda s: os.kill(os.getpid(), 9) if s.step == 3 and first "
        "and os.environ['RANK'] == '1' else usual(s); loop.log = lost; "
        "sys.exit(main(sys.argv[1:]))"
    )
    (tmp_path / "program.py").write_text(program)
    out = tmp_path / "run"
    words = ["--max-restarts", "1", "program.py", *NEW, "--auto-resume", "--out", str(out)]
    output = on_two_ranks(tmp_path, *words)
    assert "resuming from" in output and "step 2" in output
    assert json.loads((out / "result.json").read_text())["step"] == 6


@pytest.mark.distributed
def test_two_ranks_hold_one_lock(tmp_path: Path, capsys) -> None:
    """Without --out the ranks agree on one directory, and on refusals and results."""
    on_two_ranks(tmp_path, "-m", "magneto", *NEW)
    (run,) = (tmp_path / "runs" / "image-classification").iterdir()
    assert json.loads((run / "result.json").read_text())["step"] == 6
    assert (run / "recipe.yaml").exists()
    code, _, err = outcome(capsys, "train", "--resume", run)
    assert code == 0 and "already finished at step 6" in err
