"""How far `magneto plan` is from the memory that a training step really takes, on a CPU.

    python -m benchmarks.plan_memory --out benchmarks/results
    python -m benchmarks.plan_memory --only masked-lm/small

Each recipe takes two steps of the product's own loop in a process of its own, on a batch of the
largest shape that it allows (`Task.example_batch`), and the plan says beforehand what a step needs.
Two numbers are measured. "allocated": the most bytes that torch's allocator had given out at once
during the second step, by the profiler's record of every allocation since before the model was
built: exact, and what `torch.cuda.max_memory_allocated` says on a GPU. "resident": the
process's largest resident memory during that step (VmHWM of Linux, set back before it) less what
it had before the model was built, with `MALLOC_MMAP_THRESHOLD_=65536`, by which freed memory goes
back at once; libraries' own buffers and code that is read in are in it. The error is the plan's, of
the allocated bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.allocations import count_from_here, most_allocated, recorded
from benchmarks.training_step import ROOT, machine, write_result
from magneto.analysis.plan.trace import trace_step
from magneto.files import write_json
from magneto.progress import ProgressBars
from magneto.recipe import Recipe, load_recipe
from magneto.training.companion import place_companion
from magneto.training.distributed import one_process
from magneto.training.loop import begin_state, train_step

CPU = torch.device("cpu")
# Recipe: examples of the step. Fewer than the recipe's batch where a step of it would take minutes.
RECIPES = {
    "causal-lm/small": 2,
    "masked-lm/small": 8,
    "text-classification/small": 32,
    "translation/small": 2,
    "image-classification/small": 64,
    "image-modelling/small": 64,
    "vision-language-modelling/small": 24,
    "transducer/small": 1,
}
STEPS = 2
GOAL = 0.1
MMAP_THRESHOLD = "65536"  # bytes; the value of MALLOC_MMAP_THRESHOLD_


class SameBatch:
    """A stream that gives the same pieces for ever, so that none is made while it is measured."""

    def __init__(self, piece: Any) -> None:
        self.piece = piece

    def next(self, parts: int, wanted: Any) -> list[Any]:
        """Return the piece."""
        return [self.piece for _ in wanted]

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: it stands nowhere."""
        return {}


def load(name: str, examples: int, changes: dict[str, Any]) -> Recipe:
    """Load a recipe whose step is one micro-batch of so many examples on the CPU."""
    same = {
        "training.device": "cpu", "training.batch_size": examples, "training.epochs": None,
        "training.warmup_ratio": None, "training.steps": 100, "training.num_workers": 0,
        "training.gradient_accumulation_steps": 1,
    }  # fmt: skip
    return load_recipe(name, {**same, **changes})


def steps(recipe: Recipe, piece: Any, task: Any) -> Iterator[int]:
    """Take steps; yield the number of the one that comes next."""
    task.train_stream = lambda batch_size, seed: SameBatch(piece)
    world, report = one_process(CPU), ProgressBars(quiet=True)
    nowhere = Path(os.devnull) / "run"
    with closing(begin_state(task, recipe.training, nowhere, 1, world, report)) as state:
        for number in range(STEPS):
            yield number
            train_step(state, [piece])


def allocated(recipe: Recipe, piece: Any, task: Any) -> int:
    """Return the most bytes that were allocated during the last step."""
    with recorded() as record:
        for _ in steps(recipe, piece, task):
            count_from_here()
    return most_allocated(record)


def resident(recipe: Recipe, piece: Any, task: Any) -> int:
    """Return by how much the resident memory of the last step is above what was there before."""
    before = memory_field("VmRSS")
    for _ in steps(recipe, piece, task):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return memory_field("VmHWM") - before


def memory_field(name: str) -> int:
    """Return a memory field of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def worker(name: str, examples: int, changes: dict[str, Any], way: str, out: Path) -> None:
    """Measure one recipe in one way, and write what was found."""
    recipe = load(name, examples, changes)
    task = recipe.build_task()
    piece = task.example_batch(examples)
    found = {"allocated": allocated, "resident": resident}[way](recipe, piece, task)
    write_json(out, {"bytes": found})


def measure(
    name: str, examples: int, changes: dict[str, Any], ways: tuple[str, ...] = ("allocated",)
) -> dict[str, Any]:
    """Plan one recipe, measure it in each way, and return a row of the table."""
    recipe = load(name, examples, changes)
    task = recipe.build_task()
    piece = task.example_batch(examples)
    place_companion(task, CPU)
    plan = trace_step(task, piece, recipe.training, gpu=False)
    row: dict[str, Any] = {
        "recipe": name, "examples": examples, "changes": changes, "load": os.getloadavg()[0],
        "precision": recipe.training.precision, "state": plan.state.total,
        "planned": plan.total - plan.batch,
    }  # fmt: skip
    for way in ways:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "found.json"
            words = [name, str(examples), json.dumps(changes), way, str(out)]
            environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": MMAP_THRESHOLD}
            start = [sys.executable, "-m", "benchmarks.plan_memory", "--worker", *words]
            subprocess.run(start, check=True, env=environment, cwd=ROOT)
            row[way] = json.loads(out.read_text(encoding="utf-8"))["bytes"]
    row["error"] = row["planned"] / row["allocated"] - 1
    return row


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page."""
    where, rows = result["machine"], result["rows"]
    worst = max(rows, key=lambda row: abs(row["error"]))
    lines = [
        "# What a step was planned to need, and what it took",
        "",
        f"{where['processor']}, {where['threads']} thread; torch {where['packages']['torch']}; "
        f"commit {result['commit']}; {where['date']}. Batches of the largest shape that a recipe "
        "allows, so many examples as stand there; a step of the product's own loop, the second.",
        "",
        "MB (1e6 bytes). \"allocated\" is the most that torch's allocator had given out at once, "
        "\"resident\" the process's growth (benchmarks/plan_memory.py says how). The error is the "
        f"plan's, of what was allocated; the goal is {GOAL:.0%}.",
        "",
        "| recipe | examples | precision | recomputed | planned | allocated | error | resident |",
        "|---|--:|---|---|--:|--:|--:|--:|",
    ]  # fmt: skip
    for row in rows:
        again = "yes" if row["changes"] else "no"
        planned, taken = (row[key] / 1e6 for key in ("planned", "allocated"))
        whole = f"{row['resident'] / 1e6:,.1f}" if "resident" in row else ""
        lines.append(
            f"| {row['recipe']} | {row['examples']} | {row['precision']} | {again} | "
            f"{planned:,.1f} | {taken:,.1f} | {row['error']:+.1%} | {whole} |"
        )
    met = sum(abs(row["error"]) <= GOAL for row in rows)
    lines += ["", f"{met} of {len(rows)} within {GOAL:.0%}; the worst is {worst['recipe']}, "
              f"{worst['error']:+.1%}."]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; return the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", metavar="RECIPE", help="these recipes")
    add("--examples", type=int, help="of each step, instead of the table's")
    add("--resident", action="store_true", help="also measure what is resident")
    add("--plain", action="store_true", help="without the rows of recomputed layers")
    add("--out", type=Path, help="folder of the result")
    add("--worker", nargs=5, metavar="WORD", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.worker:
        name, examples, changes, way, out = args.worker
        worker(name, int(examples), json.loads(changes), way, Path(out))
        return {}
    where, rows = machine(CPU), []
    result = {
        "name": "plan-memory-cpu", "commit": where["commit"], "machine": where, "rows": rows
    }  # fmt: skip
    ways = ("allocated", "resident") if args.resident else ("allocated",)
    for name in args.only or RECIPES:
        for again in (False,) if args.plain else (False, True):
            changes = {"model.checkpoint_activations": True} if again else {}
            rows.append(measure(name, args.examples or RECIPES[name], changes, ways))
            last = rows[-1]
            planned, taken = last["planned"] / 1e6, last["allocated"] / 1e6
            print(f"{name}: planned {planned:,.1f} MB, allocated {taken:,.1f} "
                  f"({last['error']:+.1%})", file=sys.stderr)  # fmt: skip
            if args.out:  # what is cut off keeps what it has
                write_result(result, markdown(result), args.out, show=False)
    return result


if __name__ == "__main__":
    main()
