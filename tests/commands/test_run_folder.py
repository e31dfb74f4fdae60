"""The folder that is trained in: new, gone on with by the same command, or held by another."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from magneto.commands import run_folder
from magneto.commands.run_folder import held, is_run, lease_of
from magneto.lease import acquire_lease
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
    run, place = tmp_path / "run", tmp_path / "mirror"
    words = [*NEW, "--training.mirror", place, "--auto-resume", "--out", run]
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

    shutil.rmtree(run)
    code, _, err = outcome(capsys, *words)  # its disk is gone
    assert code == 0 and "going on from" in err and weights(run) == whole

    again = tmp_path / "again"
    code, _, _ = outcome(capsys, "train", "--resume", place, "--out", again)
    assert code == 0 and weights(again) == whole
    line = refused(capsys, *NEW, "--training.mirror", place, "--out", tmp_path / "other")
    assert f"{place} already holds a copy of a run" in line
    assert not (tmp_path / "other").exists()
    line = refused(capsys, *words, "--model.width", "32")
    assert "model.width is 32 (was 16)" in line
    line = refused(capsys, "train", "--resume", place, "--out", run)
    assert "not empty; go on with it: magneto train --resume" in line
    line = refused(capsys, "train", "--resume", run, "--out", tmp_path / "other")
    assert f"{run} holds no complete copy of a run" in line


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("image-classification/tiny --auto-resume", "name it by --out"),
        ("image-classification/tiny --resume x", "the run's own recipe"),
        ("--auto-resume --out x", "give a recipe"),
        ("--resume nothing --out x", "nothing holds no complete copy of a run"),
        ("image-classification/tiny --out x --training.mirror nosuch://x --auto-resume",
         "nosuch://x is no path and no URL"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(
    words: str, answer: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer in refused(capsys, "train", *words.split())
    assert not list(tmp_path.iterdir())


def test_a_lost_machine_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease of another machine is taken over when it is stale; at once only where it is asked."""
    lease = acquire_lease(tmp_path)
    assert lease is not None
    lease._stop.set()  # as a machine that is lost: nothing is renewed, and nothing is given up
    lease.path.write_text("elsewhere 12 34")
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            monkeypatch.setattr("magneto.lease.STALE", 0.0)
            monkeypatch.setattr(run_folder, "acquire_lease", lambda run: acquire_lease(run, 0.0))

    monkeypatch.setattr(run_folder.time, "sleep", nap)
    with pytest.raises(FileExistsError, match="being trained by process 12 on elsewhere"):
        lease_of(tmp_path, SILENT, patient=False)
    assert not naps
    taken = lease_of(tmp_path, SILENT, patient=True)
    assert len(naps) == 3 and taken.path.name == "lease-000001"
    taken.release()


def test_a_living_process_of_this_machine_is_not_waited_for(tmp_path: Path) -> None:
    with (
        held(tmp_path, SILENT, new=True, patient=False),
        pytest.raises(FileExistsError, match=f"on {socket.gethostname()}"),
    ):
        lease_of(tmp_path, SILENT, patient=True)


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
