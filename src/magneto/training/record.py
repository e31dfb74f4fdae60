"""What is written down of a run: metrics.jsonl, TensorBoard, the environment, the result."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from magneto.training.files import plain, write_json

PACKAGES = (
    "foundation-transformers",
    "torch",
    "numpy",
    "safetensors",
    "transformers",
    "tokenizers",
)

METRICS_FILE = "metrics.jsonl"


class Record:
    """Rows of metrics, appended to metrics.jsonl and, if asked, to TensorBoard.

    Rows of a step beyond the checkpoint that a run resumes from are cut away first: those steps
    will be taken, and recorded, again.
    """

    def __init__(
        self, run: Path, from_step: int, tensorboard: bool, say: Callable[[str], None] = print
    ) -> None:
        self.path = run / METRICS_FILE
        if self.path.exists():
            cut_after(self.path, from_step)
        self.file = self.path.open("a", encoding="utf-8")
        self.writer: Any = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter  # takes seconds to import
            except ImportError:
                say("no TensorBoard files: the package tensorboard is not installed")
            else:
                self.writer = SummaryWriter(str(run / "tensorboard"), purge_step=from_step + 1)

    def add(self, row: dict[str, Any]) -> None:
        """Write one row; it has the key "step"."""
        self.file.write(json.dumps(plain(row)) + "\n")
        self.file.flush()
        if self.writer is not None:
            for key, value in row.items():
                if key != "step" and isinstance(value, int | float):
                    self.writer.add_scalar(key, value, row["step"])

    def close(self) -> None:
        """Close the files."""
        self.file.close()
        if self.writer is not None:
            self.writer.close()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Read a run's rows."""
    return read_rows(run / METRICS_FILE)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a file of one JSON object per line; a last line cut short by a kill is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def cut_after(path: Path, step: int) -> None:
    """Keep the rows up to and with a step, aside and renamed."""
    rows = [row for row in read_rows(path) if row["step"] <= step]
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    aside.replace(path)


def environment() -> dict[str, Any]:
    """Return what is needed to repeat a run: versions, machine, commit, command."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "commit": _commit(),
    }


def write_environment(run: Path) -> None:
    """Write environment.json; a resumed run keeps the first one and adds its own."""
    path = run / "environment.json"
    earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    write_json(path, [*earlier, environment()])


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()


def _commit() -> str | None:
    """Return the commit of the source tree this package runs from, marked if it was changed."""
    try:
        # Installed inside somebody's checkout, the commit would be of something else.
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        return _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
