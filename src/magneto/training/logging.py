"""What a run records: metrics, trackers, throughput, what it was made with, how it ended.

Torch is imported where it is used: `magneto plan --help` lists the peaks of GPUs without it.
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
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from magneto.data.problems import PROBLEMS_FILE
from magneto.files import Damaged, import_extra, plain, read_json, write_json, write_text
from magneto.progress import clock
from magneto.tasks import TASKS, command
from magneto.training.config import TrainingConfig

if TYPE_CHECKING:
    import torch

    from magneto.training.task import Task

METRICS_FILE = "metrics.jsonl"
RESULT_FILE = "result.json"


class MetricsLogger:
    """Rows of metrics, appended to metrics.jsonl and given to trackers, with names in groups.

    Rows of a step beyond the checkpoint that a run resumes from are cut away first: those steps
    will be taken, and recorded, again.
    """

    def __init__(self, run: Path, from_step: int, trackers: Sequence[Tracker] = ()) -> None:
        self.path = run / METRICS_FILE
        if self.path.exists():
            cut_after(self.path, from_step)
        self.file = self.path.open("ab")
        self.trackers = trackers

    def add(self, row: dict[str, Any]) -> None:
        """Write one row, which has the key "step"; it is an error if the file is gone."""
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


def mean_of_steps(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a row of steps' sums, each divided by all counts; the gradient's norm is the last."""
    names = [key for key in steps[0] if key not in ("step", "count", "gradient_norm")]
    count = max(sum(step["count"] for step in steps), 1)
    means = {name: sum(step[name] for step in steps) / count for name in names}
    return {"step": steps[-1]["step"], **means, "gradient_norm": steps[-1]["gradient_norm"]}


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
SPEED_METRICS = ("flops_utilisation", "data_wait_seconds")
# In a run: what Weights & Biases calls it, so that a resumed run goes on there.
WANDB_FILE = "wandb.json"


def grouped(key: str) -> str:
    """Return a row's name with its group."""
    if key.startswith("validation_"):
        return f"validation/{key.removeprefix('validation_')}"
    if key in SPEED_METRICS or key.endswith("_per_second"):
        return f"speed/{key}"
    return f"train/{key}"


def flatten(values: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Return nested hyper-parameters by dotted names; lists and what is None as text."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{section}{key}.")
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
    """Open what a configuration asks for; what was shown of later steps is forgotten.

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
        for part in hparams(flatten(recipe), measured):  # which the curves' own values fill
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


Tracker = TensorBoard | WeightsAndBiases


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


def open_records(
    run: Path,
    step: int,
    config: TrainingConfig,
    recipe: Mapping[str, Any],
    say: Callable[[str], None],
) -> MetricsLogger:
    """Open a run's rows and trackers, and write what it was made with."""
    logger = MetricsLogger(run, step, open_trackers(run, step, config, recipe, say))
    write_environment(run)
    return logger


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


# Dense matrix-product peaks by part of the device's name, FLOP/s in (bf16, fp32 with TF32 off).
# The first part that is in the name counts. Source: the vendors' data sheets.
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
    """Return the data sheet's FLOP/s (bf16, fp32) of a device by its name, or None."""
    return next((peaks for part, peaks in PEAKS.items() if part in name), None)


# Rows of the matrices by which a device's peak is first timed, and the seconds that are enough.
SMALLEST_PRODUCT = 256
LEAST_SECONDS = 0.02


def peak_flops(device: torch.device, precision: str) -> float:
    """Return the device's peak in FLOP/s: from the table, or from a matrix product timed here."""
    import torch

    if device.type == "cuda":
        peaks = nominal_peaks(torch.cuda.get_device_name(device))
        if peaks is not None:
            return peaks[0 if precision == "bf16" else 1]
    return measured_peak(device, torch.bfloat16 if precision == "bf16" else torch.float32)


def measured_peak(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float:
    """Time square matrix products; return the best rate in FLOP/s.

    Args:
        device: Where.
        dtype: Of the factors, which are random: a GPU multiplies zeros and ones faster.
        size: Rows; by default as many as take a while, up to 1024 on a CPU, and 8192 elsewhere,
            where less would time the launch. A processor that has no bfloat16 is done with 256.
    """
    accelerated = device.type != "cpu"
    largest, products = size or (8192 if accelerated else 1024), 10 if accelerated else 1
    size = size or SMALLEST_PRODUCT
    seconds = product_seconds(device, dtype, size, products)
    while size < largest and seconds < LEAST_SECONDS:
        size *= 2
        seconds = product_seconds(device, dtype, size, products)
    return 2 * size**3 * products / seconds


def product_seconds(device: torch.device, dtype: torch.dtype, size: int, products: int) -> float:
    """Return how long some products of random matrices take, the least of five times."""
    import torch

    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best, product = float("inf"), left
    for _ in range(5):  # the first of which warms up
        start = time.perf_counter()
        for _ in range(products):
            product = left @ right
        product[0, 0].item()
        best = min(best, time.perf_counter() - start)
    return best


class Throughput:
    """Counts units between two readings, and the seconds that training itself took."""

    def __init__(self, flops_per_unit: float, peak: float) -> None:
        self.flops_per_unit = flops_per_unit
        self.peak = peak
        self.units = 0
        self.start = time.perf_counter()
        self.paused = 0.0

    def add(self, units: int) -> None:
        """Count units of this rank."""
        self.units += units

    def pause(self, seconds: float) -> None:
        """Leave out seconds spent on evaluation or saving."""
        self.paused += seconds

    def read(self, world_size: int) -> tuple[float, float]:
        """Return (units per second over all ranks, model-FLOPs utilisation), and start again."""
        now = time.perf_counter()
        seconds = max(now - self.start - self.paused, 1e-9)
        rate = self.units / seconds
        self.units, self.start, self.paused = 0, now, 0.0
        return rate * world_size, rate * self.flops_per_unit / self.peak


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended.

    Attributes:
        status: "finished", "diverged" or "interrupted".
        step: Steps taken.
        metrics: The last evaluation.
        best: The best evaluation by the task's primary metric: its step and value.
        diverged_at: Step at which it diverged, counted from 1, or None.
        reason: In words, where it did not finish.
        seconds: Wall time of this process.
    """

    status: str
    step: int
    metrics: dict[str, float]
    best: dict[str, Any]
    diverged_at: int | None
    reason: str
    seconds: float


# In a run whose encoder others begin with: the metrics of guessing by frequency.
PLATEAU_FILE = "baseline.json"


def end_run(
    run: Path,
    task: Task,
    config: TrainingConfig,
    recipe: Mapping[str, Any],
    result: TrainingResult,
    began: int,
    losses: Sequence[float],
    logger: MetricsLogger | None,
    say: Callable[[str], None],
) -> None:
    """Write how a run ended, on the main process, which has a logger, and say what is next.

    Where others begin with such a run's encoder, what guessing by frequency scores is kept too.
    """
    from magneto.training.task import task_entry

    name = str(recipe.get("task", ""))
    entry = TASKS.get(name) or task_entry(name, type(task))
    if logger is not None:
        logger.check()
        write_json(run / RESULT_FILE, plain(asdict(result)))
        if result.status != "interrupted" and entry.plateau_batches:
            found = task.baseline(entry.plateau_batches)
            write_json(run / PLATEAU_FILE, {key: round(value, 4) for key, value in found.items()})
    if problems := task.problems.describe():
        say(f"data problems, listed in {run / PROBLEMS_FILE}: {problems}")
    for line in closing_lines(result, run, config, task.primary_metric, began, losses, entry.verbs):
        say(line)


def closing_lines(
    result: TrainingResult,
    run: Path,
    config: TrainingConfig,
    metric: str,
    began: int,
    losses: Sequence[float],
    verbs: Sequence[str],
) -> list[str]:
    """Say how a run ended and what can be done now.

    `metric` is the primary one, `began` the step that this process went on from, `losses` are of
    the steps last logged, `verbs` commands that use the run (`magneto.tasks.TaskEntry`).
    """
    if result.status == "interrupted":
        where = f"interrupted after step {result.step} of {config.steps}"
        return [f"{where}; go on with: {command('train --resume', run)}"]
    if result.status == "diverged":
        kept = f"weights and batch are kept in {run / 'diverged'}"
        where = f"diverged at step {result.diverged_at}: {result.reason}"
        return [f"{where}; {kept}; {divergence_advice(config)}"]
    why = f": {result.reason}" if result.reason else ""
    now = f", {result.step - began:,} of them since it was resumed" if began else ""
    lines = [f"finished after {clock(result.seconds)}, {result.step:,} steps{now}{why}"]
    rows = {"training loss": fmean(losses)} if losses else {}
    rows |= {f"validation {name}": value for name, value in result.metrics.items()}
    width = max(map(len, rows), default=0)
    lines += [f"  {name:{width}}  {value:.4g}" for name, value in rows.items()]
    best = result.best
    if best and best["step"] != result.step and config.patience:
        lines.append(f"the final weights, and these validation scores, are those of step "
                     f"{best['step']:,}, the best by {metric}")  # fmt: skip
    elif best and best["step"] != result.step:
        lines.append(f"the best was step {best['step']}: validation {metric} {best['value']:.4g}")
    lines.append(f"the run is in {run}; next:")
    return lines + [f"  {command(verb, run)}" for verb in ("evaluate", "report", *verbs)]


def brief_losses(losses: Sequence[float], metrics: Mapping[str, float], primary: str) -> str:
    """Write the training loss, the validation loss and the primary metric in a line."""
    said = [f"training loss {fmean(losses):.4g}"] if losses else []
    said += [f"validation {name} {metrics[name]:.4g}"
             for name in dict.fromkeys(("loss", primary)) if name in metrics]  # fmt: skip
    return ", ".join(said)


def divergence_advice(config: TrainingConfig) -> str:
    """Say what is worth trying after a divergence, what is cheapest first."""
    tries = [
        f"a lower --training.learning_rate (it was {config.learning_rate:g})",
        f"more --training.warmup_steps (there were {config.warmup_steps})",
    ]
    if config.clip_norm is None:
        tries.append("--training.clip_norm 1.0 (nothing was clipped)")
    return (
        f"try {', '.join(tries)}, or another --model.placement; "
        "`magneto probe` looks for the reason, layer by layer"
    )
