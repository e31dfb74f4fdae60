"""Time of a training step of a causal language model by contender, within this process.

A step is: forward, cross-entropy over all tokens, backward, clipping, fused AdamW. Contenders take
turns in a new random order each round, so changes of the machine affect all of them. A turn has one
warm-up step and some timed steps. `make gpu` uses this. The module also describes the machine and
the commit for every benchmark, and writes results.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.bench_cases import Case
from benchmarks.contenders import build
from benchmarks.turns import timed, times_row, usual_step
from magneto.files import read_json, write_text
from magneto.training.logging import environment

ROOT = Path(__file__).parents[1]
# Steps of a turn that are timed, and steps before the first round.
TURN, WARMUP = 5, 3


@dataclass
class Timed:
    """A contender in one mode, with its measurements."""

    name: str
    mode: str
    parameters: int
    step: Any
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    first_seconds: float = 0.0

    def row(self, tokens: int) -> dict[str, Any]:
        """Return times of steps, tokens per second and memory."""
        times = times_row(self.seconds)
        return {
            "contender": self.name,
            "mode": self.mode,
            "parameters": self.parameters,
            **times,
            "tokens_per_second": 1e3 * tokens / times["median_ms"],
            "step_memory_mib": self.peak_bytes / 2**20 or None,
            "first_step_seconds": self.first_seconds,
        }


def make_step(model: nn.Module, case: Case, device: torch.device, precision: str, run: Any) -> Any:
    """Return a function that takes one training step of `model`, called through `run`."""
    generator = torch.Generator().manual_seed(2)
    size = (case.batch, case.length + 1)
    window = torch.randint(case.vocab_size, size, generator=generator).to(device)
    tokens, targets = window[:, :-1].contiguous(), window[:, 1:].flatten()

    def loss() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = run(tokens)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets)

    return usual_step(model.parameters(), loss)


def prepare(name: str, case: Case, device: torch.device, mode: str, backend: str) -> Timed:
    """Build a contender and take its first steps in bf16, "eager" or "compiled" by a backend."""
    model = build(name, case, device)
    count = sum(p.numel() for p in model.parameters())
    run = torch.compile(model, backend=backend) if mode == "compiled" else model
    entry = Timed(name, mode, count, make_step(model, case, device, "bf16", run))
    entry.first_seconds, _ = timed(entry.step, device)
    for _ in range(WARMUP):
        timed(entry.step, device)
    if device.type == "cuda":
        held = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        timed(entry.step, device)
        entry.peak_bytes = torch.cuda.max_memory_allocated(device) - held
    print(f"{name}, {mode}: first step {entry.first_seconds:.1f} s", file=sys.stderr)
    return entry


def measure(entries: Sequence[Timed], rounds: int, device: torch.device, until: float) -> None:
    """Time all entries in turns; start no round after `until` (by `time.monotonic`)."""
    order = random.Random(1)
    for number in range(rounds):
        if number and time.monotonic() > until:
            return
        for entry in order.sample(entries, len(entries)):
            timed(entry.step, device)
            entry.seconds += [timed(entry.step, device)[0] for _ in range(TURN)]
        print(f"round {number + 1} of {rounds}", file=sys.stderr)


def machine(
    device: torch.device, packages: Sequence[str] = ("x-transformers", "triton")
) -> dict[str, Any]:
    """Return the machine and the versions of Python, torch and these packages."""
    where = environment()
    del where["command"]
    for package in packages:
        try:
            where["packages"][package] = version(package)
        except PackageNotFoundError:
            where["packages"][package] = None
    where["packages"]["torch"] = torch.__version__
    where["date"] = datetime.now(UTC).strftime("%Y-%m-%d")
    where["accelerator"] = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return where


def source_commit() -> str:
    """Return the commit of the measured source; changes of results and pages do not count."""
    commit = (environment()["commit"] or "unknown").removesuffix("-dirty")
    words = ["git", "-C", str(ROOT), "diff", "--quiet", "HEAD", "--", "src", "benchmarks/*.py"]
    changed = commit != "unknown" and subprocess.run(words, check=False).returncode
    return f"{commit}-dirty" if changed else commit


def earlier_result(folder: Path, name: str, commit: str) -> dict[str, Any]:
    """Return the result of an earlier run at this commit; {} if there is none."""
    path = folder / f"{name}.json"
    if commit.endswith(("-dirty", "unknown")) or not path.is_file():
        return {}
    found = read_json(path)
    return found if found["commit"] == commit else {}


def write_result(result: dict[str, Any], page: str, folder: Path) -> None:
    """Write NAME.json and NAME.md atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{result['name']}.json", json.dumps(result, indent=1) + "\n")
    write_text(folder / f"{result['name']}.md", page)
