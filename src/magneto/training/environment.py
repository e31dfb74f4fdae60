"""What a run was made with: versions, machine, commit and command, in environment.json."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from magneto.files import Damaged, read_json, write_json

PACKAGES = (
    "foundation-transformers",
    "torch",
    "numpy",
    "safetensors",
    "transformers",
    "tokenizers",
)


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
    """Write environment.json; a resumed run keeps the first one and adds its own.

    One that can't be read is set aside.
    """
    path, earlier = run / "environment.json", []
    if path.exists():
        try:
            earlier = read_environments(path)
        except Damaged:
            path.replace(path.with_name("environment.damaged.json"))
    write_json(path, [*earlier, environment()])


def read_environments(path: Path) -> list[dict[str, Any]]:
    """Read environment.json: what each start of a run was made with.

    Raises:
        Damaged: If it holds something else; names it.
    """
    records = read_json(path)
    if not isinstance(records, list) or not all(isinstance(each, dict) for each in records):
        raise Damaged(f"{path} is damaged: it must hold a list of JSON objects")
    return records


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
