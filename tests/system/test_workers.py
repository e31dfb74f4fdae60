"""Data workers end with the command: by a signal, when it is killed, or with one of them."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from magneto.cli import main
from tests.commands import started, wait_until
from tests.system.conftest import SMALL

SELF = Path("/proc/self/maps")


def children(process: int) -> list[int]:
    return [
        int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def start_training(book: Path, run: Path, *words: str) -> subprocess.Popen:
    """Start `magneto train`; wait for steps."""
    given = f"train causal-lm/tiny --data {book} --out {run}".split()
    given += [*SMALL, "--training.num_workers", "2", "--training.steps", "100000", *words]
    process = started(*given, stderr=subprocess.PIPE, text=True)
    metrics = run / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0)
    return process


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.distributed),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_all_processes_leaves_a_run_and_no_process(
    book: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    process = start_training(book, run, "--training.save_every", "0")
    os.killpg(process.pid, number)
    output = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and f"resume with: magneto train --resume {run}" in output
    assert len(list((run / "checkpoints").glob("step-*"))) == 1
    assert output.count("stopping after this step") == 1 and "Traceback" not in output
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    reached = json.loads((run / "result.json").read_text())["step"]
    more = ["--training.steps", str(reached + 3), "--training.num_workers", "0"]
    assert main(["train", "--resume", str(run), *more]) == 0
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "finished" and result["step"] == reached + 3


@pytest.mark.slow
@pytest.mark.skipif(not SELF.exists(), reason="finds the workers in /proc")
def test_workers_end_with_a_killed_main_process(book: Path, tmp_path: Path) -> None:
    process = start_training(book, tmp_path / "run")
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not any(map(running, workers)))


def running(process: int) -> bool:
    """Return whether a process that is not ours runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
