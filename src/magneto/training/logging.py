"""Logs of a run: metrics, trackers, throughput, environment, and the result.

Torch is imported inside functions, so that `magneto plan --help` starts without it.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from magneto.data.problems import PROBLEMS_FILE
from magneto.files import DamagedError, import_extra, plain, read_json, write_json, write_text
from magneto.progress import clock
from magneto.tasks import command
from magneto.training.config import TrainingConfig

if TYPE_CHECKING:
    import torch

PendingStep = tuple[int, list[str], "torch.Tensor"]
"""Tuple of a step's number, the names of the logged values, and the values on the device."""
METRICS_FILE = "metrics.jsonl"
RESULT_FILE = "result.json"


class MetricsLogger:
    """Writer of metrics to metrics.jsonl and to trackers such as TensorBoard.

    On resumption, rows after the checkpoint's step are removed, since the run repeats these steps.
    """

    def __init__(self, run: Path, from_step: int, trackers: Sequence[Tracker] = ()) -> None:
        self.path = run / METRICS_FILE
        if self.path.exists():
            cut_after(self.path, from_step)
        self.file = self.path.open("ab")
        self.trackers = trackers

    def add(self, row: dict[str, Any]) -> None:
        """Write a row of metrics. The row must have the key "step".

        Raises:
            FileNotFoundError: If the log was removed.
        """
        self.check()
        self.file.write(json.dumps(plain(row)).encode() + b"\n")
        self.file.flush()
        values = {
            grouped(key): value
            for key, value in row.items()
            if key != "step" and isinstance(value, int | float)
        }
        for tracker in self.trackers:
            tracker.add(values, row["step"])

    def check(self) -> None:
        """Raise FileNotFoundError if the log was removed.

        The operating system reports no error when a process writes to a removed file.
        """
        held = os.fstat(self.file.fileno())
        if not self.path.exists() or not os.path.samestat(self.path.stat(), held):
            raise FileNotFoundError(
                f"{self.path} is gone: the run's directory was removed or moved during training"
            )

    def close(self) -> None:
        self.file.close()
        for tracker in self.trackers:
            tracker.close()


def read_steps(pending: Sequence[PendingStep]) -> list[dict[str, Any]]:
    import torch

    if not pending:
        return []
    table = torch.stack([values for _, _, values in pending]).tolist()
    return [
        {"step": step, **dict(zip(names, row, strict=True))}
        for (step, names, _), row in zip(pending, table, strict=True)
    ]


def mean_of_steps(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one row of metrics for several steps.

    The gradient norm is that of the last step. Each other metric is the mean over all predictions
    of the steps, so that a step with more predictions counts more.
    """
    names = [key for key in steps[0] if key not in ("step", "count", "gradient_norm")]
    count = max(sum(step["count"] for step in steps), 1)
    means = {name: sum(step[name] for step in steps) / count for name in names}
    return {"step": steps[-1]["step"], **means, "gradient_norm": steps[-1]["gradient_norm"]}


def read_metrics(run: Path) -> list[dict[str, Any]]:
    return read_rows(run / METRICS_FILE)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file: JSON objects with the key "step", one per line.

    Other lines are skipped, for example the incomplete line of a killed process.
    """
    rows = []
    for line in path.read_bytes().split(b"\n"):
        with suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("step"), int)]


def cut_after(path: Path, step: int) -> None:
    rows = [row for row in read_rows(path) if row["step"] <= step]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


# Metrics of speed, besides those that end in "_per_second".
SPEED_METRICS = ("flops_utilisation", "data_wait_seconds")
# File in a run with the run's id at Weights & Biases, which a resumed run continues.
WANDB_FILE = "wandb.json"


def grouped(key: str) -> str:
    """Return a metric's name with a group, such as "validation/loss"."""
    if key.startswith("validation_"):
        return f"validation/{key.removeprefix('validation_')}"
    if key in SPEED_METRICS or key.endswith("_per_second"):
        return f"speed/{key}"
    return f"train/{key}"


def flatten(values: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Flatten nested mappings, with keys such as "model.width". Lists and None become text."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{section}{key}.")
        else:
            usual = isinstance(value, bool | int | float | str)
            found[f"{section}{key}"] = value if usual else str(value)
    return found


def open_trackers(
    run: Path,
    from_step: int,
    config: TrainingConfig,
    recipe: Mapping[str, Any],
    say: Callable[[str], None],
) -> list[Tracker]:
    """Open the configured trackers. TensorBoard hides old events of steps after `from_step`."""
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
    """TensorBoard event files in RUN/tensorboard."""

    def __init__(self, run: Path, from_step: int, recipe: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes seconds to import
        from torch.utils.tensorboard.summary import hparams

        self.writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=from_step + 1)
        measured = {name: 0 for name in ("train/loss", "validation/loss")}
        for part in hparams(flatten(recipe), measured):
            self.writer.file_writer.add_summary(part)

    def add(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """Tracker of a run at Weights & Biases, in the project $WANDB_PROJECT (default: magneto)."""

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
        self.session.log({n: v for n, v in values.items() if math.isfinite(v)}, step=step)

    def close(self) -> None:
        self.session.finish()


Tracker = TensorBoard | WeightsAndBiases


def import_wandb() -> Any:
    return import_extra("wandb", "wandb", "training.tracker 'wandb' needs Weights & Biases")


PACKAGES = (
    "foundation-transformers",
    "torch",
    "numpy",
    "safetensors",
    "transformers",
    "tokenizers",
)


def environment() -> dict[str, Any]:
    import torch

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
    """Append this process's environment to environment.json.

    If environment.json is damaged, a new file is started, and the damaged file is renamed.
    """
    path, earlier = run / "environment.json", []
    if path.exists():
        try:
            earlier = read_environments(path)
        except DamagedError:
            path.replace(path.with_name("environment.damaged.json"))
    write_json(path, [*earlier, environment()])


def read_environments(path: Path) -> list[dict[str, Any]]:
    """Return a record of the environment for each start and each resumption of a run.

    Raises:
        DamagedError: If the file is damaged.
    """
    records = read_json(path)
    if not isinstance(records, list) or not all(isinstance(each, dict) for each in records):
        raise DamagedError(f"{path} is damaged: it must be a list of JSON objects")
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
    try:
        # The package may be installed inside another project's checkout.
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        return _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


# Peaks of dense matrix products in FLOP/s, (bf16, fp32 without TF32), from the vendors' data
# sheets. The first name that is part of the device's name is used.
PEAKS = {
    "H200": (989e12, 67e12),
    "H100 PCIe": (756e12, 51e12),
    "H100 NVL": (835e12, 60e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "L40S": (362e12, 91.6e12),
    "L40": (181e12, 90.5e12),
    "L4": (121e12, 30.3e12),
    "V100": (125e12, 15.7e12),
    "4090": (165e12, 82.6e12),
    "3090": (71e12, 35.6e12),
}


def nominal_peaks(name: str) -> tuple[float, float] | None:
    return next((peaks for part, peaks in PEAKS.items() if part in name), None)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Return a GPU's FLOP/s from the data sheet, or None if unknown."""
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peaks = nominal_peaks(name)
    return peaks and peaks[precision != "bf16"]


class Throughput:
    """Meter of throughput and of model-FLOPs utilisation. The time of pauses does not count.

    Args:
        flops_per_unit: Number of floating-point operations for a unit, such as a token.
        peak: Peak FLOP/s of the device, or None if unknown.
    """

    def __init__(self, flops_per_unit: float, peak: float | None) -> None:
        self.flops_per_unit = flops_per_unit
        self.peak = peak
        self.units = 0
        self.start = time.perf_counter()
        self.paused = 0.0

    def add(self, units: int) -> None:
        self.units += units

    def pause(self, seconds: float) -> None:
        self.paused += seconds

    def read(self, world_size: int) -> tuple[float, float | None]:
        """Return (units per second, model-FLOPs utilisation) since the previous call.

        The rate counts the units of all ranks. The utilisation is None if the peak is unknown.
        """
        now = time.perf_counter()
        seconds = max(now - self.start - self.paused, 1e-9)
        rate = self.units / seconds
        self.units, self.start, self.paused = 0, now, 0.0
        utilisation = None if self.peak is None else rate * self.flops_per_unit / self.peak
        return rate * world_size, utilisation


@dataclass(frozen=True)
class TrainingResult:
    """Result of a run, as written to result.json.

    Attributes:
        status: Status of the run: "finished", "diverged" or "interrupted".
        step: Number of completed steps.
        metrics: Metrics of the latest evaluation.
        best: Step and value of the evaluation with the best primary metric.
        diverged_at: Step of the divergence, counted from 1, or None.
        reason: Reason for a stop before the final step.
        seconds: Wall time of this process in seconds.
    """

    status: str
    step: int
    metrics: dict[str, float]
    best: dict[str, Any]
    diverged_at: int | None
    reason: str
    seconds: float


# File with the metrics of guessing by token frequency, in a run that pre-trains an encoder.
PLATEAU_FILE = "baseline.json"


def end_run(state: Any, result: TrainingResult) -> None:
    from magneto.training.task import task_entry

    run, task, say = state.run, state.task, state.report.say
    entry = task_entry(str(state.recipe.get("task", "")), type(task))
    if state.metrics_logger is not None:
        state.metrics_logger.check()
        write_json(run / RESULT_FILE, plain(asdict(result)))
        if result.status != "interrupted" and entry.plateau_batches:
            found = task.baseline(entry.plateau_batches)
            write_json(run / PLATEAU_FILE, {key: round(value, 4) for key, value in found.items()})
    if problems := task.problems.describe():
        say(f"data problems, listed in {run / PROBLEMS_FILE}: {problems}")
    for line in closing_lines(state, result, entry.verbs):
        say(line)


def closing_lines(state: Any, result: TrainingResult, verbs: Sequence[str]) -> list[str]:
    run, config = state.run, state.config
    if result.status == "interrupted":
        where = f"interrupted after step {result.step} of {config.steps}"
        return [f"{where}; resume with: {command('train --resume', run)}"]
    if result.status == "diverged":
        kept = f"weights and batch saved in {run / 'diverged'}"
        where = f"diverged at step {result.diverged_at}: {result.reason}"
        return [f"{where}; {kept}; {divergence_advice(config)}"]
    why = f": {result.reason}" if result.reason else ""
    resumed = f", {result.step - state.first_step:,} since resumption" if state.first_step else ""
    lines = [f"finished after {clock(result.seconds)}, {result.step:,} steps{resumed}{why}"]
    rows = {"training loss": fmean(state.losses)} if state.losses else {}
    rows |= {f"validation {name}": value for name, value in result.metrics.items()}
    width = max(map(len, rows), default=0)
    lines += [f"  {name:{width}}  {value:.4g}" for name, value in rows.items()]
    best = result.best
    if best and best["step"] != result.step and config.patience:
        lines.append(f"final weights and validation scores are those of step {best['step']:,}, "
                     f"the best by {state.task.primary_metric}")  # fmt: skip
    elif best and best["step"] != result.step:
        lines.append(f"best step: {best['step']} (validation {state.task.primary_metric} "
                     f"{best['value']:.4g})")  # fmt: skip
    lines.append(f"run saved in {run}; next:")
    return lines + [f"  {command(verb, run)}" for verb in ("evaluate", "report", *verbs)]


def print_evaluation(state: Any) -> None:
    """Print the latest evaluation in one line, unless `closing_lines` shows the same values."""
    step, best, metrics = state.step, state.weights.best, state.metrics
    ended = state.stop is not None or step == state.config.steps
    replaced = state.config.patience and best and best[0]["step"] != step
    if ended and not replaced:
        return
    parts = [f"training loss {fmean(state.losses):.4g}"] if state.losses else []
    parts += [f"validation {name} {metrics[name]:.4g}"
              for name in dict.fromkeys(("loss", state.task.primary_metric))
              if name in metrics]  # fmt: skip
    state.report.say(f"step {step}: {', '.join(parts)}")


def divergence_advice(config: TrainingConfig) -> str:
    """Return settings to try after a divergence, the cheapest first."""
    tries = [
        f"a lower --training.learning_rate (it was {config.learning_rate:g})",
        f"more --training.warmup_steps (there were {config.warmup_steps})",
    ]
    if config.clip_norm is None:
        tries.append("--training.clip_norm 1.0 (clipping was off)")
    return (
        f"try {', '.join(tries)}, or another --model.placement; "
        "`magneto probe` measures the cause layer by layer"
    )
