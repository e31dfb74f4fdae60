"""What a run records: rows of metrics, trackers that show them, and what it was made with."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import torch

from magneto.files import (
    Damaged,
    fingerprint,
    import_extra,
    plain,
    read_json,
    write_json,
    write_text,
)
from magneto.training.config import TrainingConfig

METRICS_FILE = "metrics.jsonl"


class MetricsLogger:
    """Rows of metrics, appended to metrics.jsonl and given to trackers, with names in groups.

    Rows of a step beyond the checkpoint that a run resumes from are cut away first: those steps
    will be taken, and recorded, again.

    Attributes:
        written: Size and checksum of metrics.jsonl, as `fingerprint` gives them.
    """

    def __init__(self, run: Path, from_step: int, trackers: Sequence[Tracker] = ()) -> None:
        self.path = run / METRICS_FILE
        if self.path.exists():
            cut_after(self.path, from_step)
        self.file = self.path.open("ab")
        self.written = fingerprint(self.path, sync=False)
        self.trackers = trackers

    def add(self, row: dict[str, Any]) -> None:
        """Write one row; it has the key "step".

        Raises:
            FileNotFoundError: If the file is not there any more.
        """
        self.check()
        line = json.dumps(plain(row)).encode() + b"\n"
        self.file.write(line)
        self.file.flush()
        size, checksum = self.written["bytes"] + len(line), zlib.crc32(line, self.written["crc32"])
        self.written = {"bytes": size, "crc32": checksum}
        values = {
            grouped(key): value
            for key, value in row.items()
            if key != "step" and isinstance(value, int | float)
        }
        for tracker in self.trackers:
            tracker.add(values, row["step"])

    def check(self) -> None:
        """See that the records are still where they were opened.

        An open file of a directory that was removed can be written to as before, and all is lost.

        Raises:
            FileNotFoundError: If the file is not there any more, or another run's is.
        """
        held = os.fstat(self.file.fileno())
        if not self.path.exists() or not os.path.samestat(self.path.stat(), held):
            raise FileNotFoundError(
                f"{self.path} is gone: the run's directory was removed or moved while it trained"
            )

    def close(self) -> None:
        """Close the file and the trackers."""
        self.file.close()
        for tracker in self.trackers:
            tracker.close()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Read a run's rows."""
    return read_rows(run / METRICS_FILE)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a file of one JSON object with a "step" per line; other lines are left out.

    Such are a last line cut short by a kill, and what a disk or an editor has damaged.
    """
    return [row for line in path.read_bytes().split(b"\n") if (row := as_row(line)) is not None]


def as_row(line: bytes) -> dict[str, Any] | None:
    """Return the row that a line holds, or None if it holds none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def cut_after(path: Path, step: int) -> None:
    """Keep the rows up to and with a step, aside and renamed."""
    rows = [row for row in read_rows(path) if row["step"] <= step]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


# Rows' names that are of speed, besides those that end in "_per_second".
SPEED = ("flops_utilisation", "data_wait_seconds")
# In a run: what Weights & Biases calls it, so that a resumed run goes on there.
WANDB_FILE = "wandb.json"


class Tracker(Protocol):
    """Shows the rows of a run."""

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Show the values of a step, by grouped names."""
        ...

    def close(self) -> None:
        """Finish."""
        ...


def grouped(key: str) -> str:
    """Return a row's name with its group."""
    if key.startswith("validation_"):
        return f"validation/{key.removeprefix('validation_')}"
    if key in SPEED or key.endswith("_per_second"):
        return f"speed/{key}"
    return f"train/{key}"


def flat(values: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Return nested hyper-parameters by dotted names; lists and what is None as text."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{section}{key}.")
        else:
            usual = isinstance(value, bool | int | float | str)
            found[f"{section}{key}"] = value if usual else str(value)
    return found


def check_trackers(config: TrainingConfig) -> None:
    """See that what was asked for is installed.

    Raises:
        ModuleNotFoundError: If it is not; says what to install.
    """
    if config.tracker == "wandb":
        import_wandb()


def open_trackers(
    run: Path,
    from_step: int,
    config: TrainingConfig,
    recipe: Mapping[str, Any],
    say: Callable[[str], None],
) -> list[Tracker]:
    """Open what a configuration asks for.

    Args:
        run: Directory of the run.
        from_step: Steps that were taken before; what was shown of later ones is forgotten.
        config: Of the training.
        recipe: Hyper-parameters, which are shown too.
        say: Says what is not installed.

    Raises:
        ModuleNotFoundError: If Weights & Biases is asked for and not installed.
    """
    trackers: list[Tracker] = []
    if config.tensorboard:
        try:
            trackers.append(TensorBoard(run, from_step, recipe))
        except ImportError:
            say("no TensorBoard files: the package tensorboard is not installed")
    if config.tracker == "wandb":
        trackers.append(WeightsAndBiases(run, recipe))
    return trackers


class TensorBoard:
    """Files for TensorBoard in RUN/tensorboard."""

    def __init__(self, run: Path, from_step: int, recipe: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes seconds to import
        from torch.utils.tensorboard.summary import hparams

        self.writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=from_step + 1)
        measured = {name: 0 for name in ("train/loss", "validation/loss")}
        for part in hparams(flat(recipe), measured):  # which the curves' own values fill
            self.writer.file_writer.add_summary(part)

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Write the values of a step."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Close the files."""
        self.writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, in the project "magneto" unless WANDB_PROJECT says otherwise."""

    def __init__(self, run: Path, recipe: Mapping[str, Any]) -> None:
        wandb = import_wandb()
        kept = run / WANDB_FILE
        known = read_json(kept)["id"] if kept.exists() else None
        self.session = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "magneto"),
            name=run.name,
            dir=str(run),
            id=known,
            resume="allow",
            config=plain(recipe),
        )
        write_json(kept, {"id": self.session.id})

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Send the values of a step; those that are not finite are left out."""
        self.session.log({n: v for n, v in values.items() if math.isfinite(v)}, step=step)

    def close(self) -> None:
        """Finish the session."""
        self.session.finish()


def import_wandb() -> Any:
    """Import Weights & Biases, or say what installs it."""
    return import_extra("wandb", "wandb", "training.tracker wandb needs Weights & Biases")


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
