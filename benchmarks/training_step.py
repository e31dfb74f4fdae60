r"""Time one training step of the same shape: our placements, torch, transformers, x-transformers.

    python benchmarks/training_step.py --shape cpu
    python benchmarks/training_step.py --shape gpu --device cuda --precision bf16 \
        --modes eager compiled

A step is: forward, cross-entropy over all tokens, backward, clipping, fused AdamW. Contenders take
turns, a new random order each round, so that a change of the machine's mood meets all of them; a
turn is one step that does not count and `--turn` that do. Results go to
benchmarks/results/NAME.json and .md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.contenders import CONTENDERS, NOTES, SHAPES, Shape, build
from benchmarks.usual_step import usual_step
from magneto.files import write_text
from magneto.training.logging import environment

ROOT = Path(__file__).parents[1]
REFERENCE = "magneto pre"


@dataclass
class Timed:
    """A contender in one mode, and what was measured of it."""

    name: str
    mode: str
    parameters: int
    step: Any
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    first_seconds: float = 0.0

    def row(self, tokens: int) -> dict[str, Any]:
        """Return the numbers: milliseconds, with quartiles."""
        low, median, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return {
            "contender": self.name,
            "mode": self.mode,
            "parameters": self.parameters,
            "steps": len(self.seconds),
            "median_ms": 1e3 * median,
            "quartile_1_ms": 1e3 * low,
            "quartile_3_ms": 1e3 * high,
            "tokens_per_second": tokens / median,
            "step_memory_mib": self.peak_bytes / 2**20 or None,
            "first_step_seconds": self.first_seconds,
        }


def make_step(
    model: nn.Module, shape: Shape, device: torch.device, precision: str, run: Any
) -> Any:
    """Return a function that takes one training step of `model`, calling it through `run`."""
    generator = torch.Generator().manual_seed(2)
    size = (shape.batch, shape.length + 1)
    window = torch.randint(shape.vocab_size, size, generator=generator).to(device)
    tokens, targets = window[:, :-1].contiguous(), window[:, 1:].flatten()

    def loss() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = run(tokens)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets)

    return usual_step(model.parameters(), loss)


def wait(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(step: Any, device: torch.device) -> float:
    """Return the seconds of one step."""
    wait(device)
    start = time.perf_counter()
    step()
    wait(device)
    return time.perf_counter() - start


def prepare(name: str, args: argparse.Namespace, device: torch.device) -> list[Timed]:
    """Build a contender and take its first steps, in every mode."""
    model = build(name, args.sizes, device)
    count = sum(p.numel() for p in model.parameters())
    made = []
    for mode in args.modes:
        run = torch.compile(model, backend=args.backend) if mode == "compiled" else model
        entry = Timed(name, mode, count, make_step(model, args.sizes, device, args.precision, run))
        entry.first_seconds = timed(entry.step, device)
        for _ in range(args.warmup):
            timed(entry.step, device)
        if device.type == "cuda":
            held = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            timed(entry.step, device)
            entry.peak_bytes = torch.cuda.max_memory_allocated(device) - held
        made.append(entry)
        print(f"{name}, {mode}: first step {entry.first_seconds:.1f} s", file=sys.stderr)
    return made


def prepare_all(args: argparse.Namespace, device: torch.device) -> tuple[list[Timed], list[str]]:
    """Return what can be timed, and a line for each contender that cannot be."""
    entries: list[Timed] = []
    left_out = []
    for name in args.only or CONTENDERS:
        try:
            entries += prepare(name, args, device)
        except ImportError as error:
            left_out.append(not_there(name, error))
    return entries, left_out


def not_there(name: str, error: ImportError) -> str:
    """Say why a contender cannot be built."""
    missing = isinstance(error, ModuleNotFoundError)
    return f"{name}: {error.name} is not installed" if missing else f"{name}: {error}"


def measure(
    entries: list[Timed],
    args: argparse.Namespace,
    device: torch.device,
    until: float = math.inf,
) -> None:
    """Time all entries in turns; after the time `until`, by `time.monotonic`, no further round."""
    order = random.Random(1)
    for number in range(args.rounds):
        if number and time.monotonic() > until:
            return
        for entry in order.sample(entries, len(entries)):
            timed(entry.step, device)
            entry.seconds += [timed(entry.step, device) for _ in range(args.turn)]
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)


def machine(
    device: torch.device, packages: Sequence[str] = ("x-transformers", "triton")
) -> dict[str, Any]:
    """Describe the machine and the versions; of these packages too."""
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
    """Return the commit of what is measured; results and pages that were written are no change."""
    commit = (environment()["commit"] or "unknown").removesuffix("-dirty")
    words = ["git", "-C", str(ROOT), "diff", "--quiet", "HEAD", "--", "src", "benchmarks/*.py"]
    changed = commit != "unknown" and subprocess.run(words, check=False).returncode
    return f"{commit}-dirty" if changed else commit


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with a table."""
    where, rows = result["machine"], result["rows"]
    base = {r["mode"]: r["median_ms"] for r in rows if r["contender"] == REFERENCE}
    timed_packages = ("torch", "transformers", "x-transformers", "triton")
    versions = ", ".join(f"{k} {v}" for k in timed_packages if (v := where["packages"][k]))
    lines = [
        f"# One training step: {result['name']}",
        "",
        f"{result['shape']}; {result['precision']}; {where['accelerator'] or where['processor']}, "
        f"{where['cores']} cores, {where['threads']} threads; Python {where['python']}, "
        f"{versions}; commit {result['commit']}; {where['date']}.",
        "",
        f"Median of {rows[0]['steps']} steps in {result['rounds']} interleaved rounds, with "
        f"quartiles; ratio to {REFERENCE} in the same mode. Less is better.",
        "",
        "| contender | mode | parameters | ms | quartiles | ratio | tokens/s | step memory (MiB) |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for r in sorted(rows, key=lambda r: (r["mode"] != "eager", r["median_ms"])):
        ratio = f"{r['median_ms'] / base[r['mode']]:.3f}" if r["mode"] in base else ""
        memory = f"{r['step_memory_mib']:,.0f}" if r["step_memory_mib"] else ""
        lines.append(
            f"| {r['contender']} | {r['mode']} | {r['parameters']:,} | {r['median_ms']:.2f} | "
            f"{r['quartile_1_ms']:.2f} to {r['quartile_3_ms']:.2f} | {ratio} | "
            f"{r['tokens_per_second']:,.0f} | {memory} |"
        )
    lines += ["", *(f"- {name}: {note}." for name, note in result["notes"].items())]
    lines += [f"- Left out: {line}." for line in result["left_out"]]
    return "\n".join(lines) + "\n"


def arguments(words: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="cpu")
    for size in Shape.__dataclass_fields__:
        parser.add_argument(f"--{size.replace('_', '-')}", type=int, help="instead of the shape's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--modes", nargs="+", choices=("eager", "compiled"), default=["eager"])
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--only", nargs="+", choices=tuple(CONTENDERS), help="these contenders")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turn", type=int, default=3, help="timed steps in a turn")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the first round")
    parser.add_argument("--threads", type=int, help="CPU threads of torch")
    parser.add_argument("--commit", help="of the source, where git cannot tell")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--name", help="of the result; by default from shape, device and precision")
    args = parser.parse_args(words)
    changes = {s: getattr(args, s) for s in Shape.__dataclass_fields__ if getattr(args, s)}
    args.sizes = replace(SHAPES[args.shape], **changes)
    args.name = args.name or f"training-step-{args.shape}-{args.device}-{args.precision}"
    return args


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; return and write the result."""
    args = arguments(words)
    if args.threads:
        torch.set_num_threads(args.threads)
    # One forward serves several placements and modes: let each have its compiled form.
    torch._dynamo.config.recompile_limit = 64  # type: ignore[attr-defined]
    device = torch.device(args.device)
    entries, left_out = prepare_all(args, device)
    measure(entries, args, device)
    tokens = args.sizes.batch * args.sizes.length
    where = machine(device)
    result = {
        "name": args.name,
        "shape": ", ".join(f"{k} {v}" for k, v in asdict(args.sizes).items()),
        "precision": "bf16 autocast over fp32 weights" if args.precision == "bf16" else "fp32",
        "rounds": args.rounds,
        "commit": args.commit or where["commit"] or "unknown",
        "machine": where,
        "rows": [entry.row(tokens) for entry in entries],
        "notes": NOTES,
        "left_out": left_out,
    }
    write_result(result, markdown(result), args.out)
    return result


@contextmanager
def measured(name: str) -> Iterator[dict[str, Any]]:
    """Yield a result to be filled: name, machine, date, and the load before and after the body."""
    where = environment()
    del where["command"]
    result: dict[str, Any] = {
        "name": name, "load": [os.getloadavg()[0]], "machine": where,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip
    yield result
    result["load"].append(os.getloadavg()[0])


def write_result(result: dict[str, Any], page: str, folder: Path, show: bool = True) -> None:
    """Write NAME.json and NAME.md, aside and renamed, and print the page if it is to be shown."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{result['name']}.json", json.dumps(result, indent=1) + "\n")
    write_text(folder / f"{result['name']}.md", page)
    if show:
        print(page)


if __name__ == "__main__":
    main()
