"""The folder that is trained in: new, gone on with by the same command, or held by another."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from magneto.commands import train
from magneto.commands.train import PATIENCE, held, is_run, lock_of
from magneto.lock import acquire_lock
from magneto.progress import SILENT
from tests.commands.small_run import NEW, outcome

pytest.importorskip("sklearn")


def refused(capsys: pytest.CaptureFixture, *words: object) -> str:
    """Return the one line that a command refuses with."""
    code, out, err = outcome(capsys, *words)
    lines = [line for line in err.splitlines() if line.startswith("magneto:")]
    assert code == 2 and out == "" and len(lines) == 1, err
    return lines[0]


def weights(run: Path) -> bytes:
    return (run / "final" / "model.safetensors").read_bytes()


def test_the_same_command_begins_and_goes_on(tmp_path: Path, capsys, monkeypatch) -> None:
    run = tmp_path / "run"
    words = [*NEW, "--auto-resume", "--out", run]
    code, _, err = outcome(capsys, *words)
    assert code == 0 and "going on" not in err and is_run(run)
    whole = weights(run)

    shutil.rmtree(run / "final")
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    code, _, err = outcome(capsys, *words)  # it was stopped
    assert code == 0 and "going on from" in err and "step 4" in err and weights(run) == whole

    code, out, err = outcome(capsys, *words, "--json")  # it had finished
    assert code == 0 and "finished at step 6 already" in err and json.loads(out)["step"] == 6

    line = refused(capsys, *words, "--model.width", "32")
    assert "model.width is 32 (was 16)" in line


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("image-classification/tiny --auto-resume", "name it by --out"),
        ("image-classification/tiny --resume x", "the run's own recipe"),
        ("--auto-resume --out x", "give a recipe"),
        ("--resume x --out y", "in the run's own directory"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: str, answer: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer in refused(capsys, "train", *words.split())
    assert not list(tmp_path.iterdir())


def test_who_holds_a_folder_is_waited_for_where_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is started again may come before its predecessor has ended."""
    before, waited = acquire_lock(tmp_path), []

    def wait(run: Path, patience: float = 0.0) -> FileLock | None:
        if patience:
            assert before is not None
            before.release()
            waited.append(patience)
        return acquire_lock(run)

    monkeypatch.setattr(train, "acquire_lock", wait)
    words = f"being trained by process {os.getpid()} on {socket.gethostname()}"
    with pytest.raises(FileExistsError, match=words):
        lock_of(tmp_path, SILENT, patient=False)
    assert not waited
    lock_of(tmp_path, SILENT, patient=True).release()
    assert waited == [PATIENCE]


def test_a_folder_in_which_nothing_began_goes(tmp_path: Path) -> None:
    with held(tmp_path / "run", SILENT, new=True, patient=False):
        assert (tmp_path / "run").is_dir()
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    with held(tmp_path / "mine", SILENT, new=True, patient=False):
        pass
    assert (tmp_path / "mine").is_dir()


@pytest.mark.distributed
def test_a_lost_worker_is_started_again_by_the_same_command(tmp_path: Path) -> None:
    """The first start of rank 1 is killed in step 3; torchrun starts all again, and they go on."""
    program = (
        "import os, sys; from magneto.cli import main; from magneto.training import hooks; "
        "usual = hooks.log; first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'; "
        "lost = lambda s: os.kill(os.getpid(), 9) if s.step == 3 and first "
        "and os.environ['RANK'] == '1' else usual(s); hooks.log = lost; "
        "sys.exit(main(sys.argv[1:]))"
    )
    (tmp_path / "program.py").write_text(program)
    out = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", "1", str(tmp_path / "program.py")]
    words = [*NEW, "--auto-resume", "--out", str(out)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "going on from" in done.stderr and "step 2" in done.stderr
    assert json.loads((out / "result.json").read_text())["step"] == 6
