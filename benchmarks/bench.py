r"""Time of one training step in every field, compared with other libraries.

    python -m benchmarks.bench
    python -m benchmarks.bench --fields causal-lm --shapes "6 x 256" --seconds 10
    python -m benchmarks.bench --profile

The contenders of a cell (a field at a shape) take turns in a new random order each round, each in
its own process (benchmarks/turns.py). benchmarks/results/bench-cpu.json and .md are rewritten after
each cell. Cells of the same commit and the same settings are kept, so a stopped run resumes.
`--profile` adds the time of each kind of operation of Magneto's step. `make bench` installs the
other libraries, runs this and writes docs/results/speed.md.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench_cases import FIELDS, SHAPES, case_of
from benchmarks.bench_contenders import LIMIT, NOTES, PEERS, REFERENCE, contenders
from benchmarks.bench_tables import markdown
from benchmarks.step_profile import profile_of
from benchmarks.training_step import ROOT, earlier_result, machine, source_commit, write_result
from benchmarks.turns import Entry, summary, take_turns
from magneto.progress import ProgressBars

PACKAGES = ("x-transformers", "torchscale", "timm")


def measure(field: str, shape: str, args: argparse.Namespace, report: ProgressBars) -> Any:
    """Measure a cell; return its contenders, those that could not be measured, and the load."""
    began, load = time.monotonic(), os.getloadavg()[0]
    small, case = case_of(field, "tiny"), case_of(field, shape)
    entries = [
        Entry(name, partial(make, small), partial(make, case))
        for name, make in contenders(field).items()
        if not args.only or name in args.only
    ]

    name = f"{field}, {shape}: rounds"
    rounds = take_turns(
        entries, args.seconds, args.threads, lambda number: report.update(name, number, None)
    )
    report.update(name, rounds, rounds)
    return {
        "field": field,
        "shape": shape,
        "sizes": case.describe(),
        "outputs": case.outputs,
        "peers": list(PEERS[field]),
        "rows": [summary(entry) for entry in entries if not entry.failed],
        "left_out": {entry.name: entry.failed for entry in entries if entry.failed},
        "took": time.monotonic() - began,
        "load": [load, os.getloadavg()[0]],
    }


def arguments(words: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--fields", nargs="+", choices=FIELDS, default=FIELDS)
    add("--shapes", nargs="+", choices=SHAPES, default=[s for s in SHAPES if s != "tiny"])
    add("--only", nargs="+", metavar="CONTENDER", help="contenders to time (default: all)")
    add("--seconds", type=float, default=20.0, help="time for the rounds of a cell (default: 20)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads (default: all)")
    add("--profile", action="store_true", help="also profile Magneto's step in every cell")
    add("--fresh", action="store_true", help="ignore the existing results")
    add("--commit", help="commit of the source if git is missing")
    add("--out", type=Path, default=ROOT / "benchmarks" / "results")
    add("--name", default="bench-cpu", help="name of the result (default: bench-cpu)")
    return parser.parse_args(words)


def kept(args: argparse.Namespace, commit: str) -> dict[str, Any]:
    """Return the cells that an earlier run measured at this commit with these settings."""
    found = {} if args.fresh else earlier_result(args.out, args.name, commit)
    return found["cells"] if found.get("settings") == settings(args) else {}


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that a cell's numbers depend on, apart from the commit."""
    return {"seconds": args.seconds, "threads": args.threads, "only": args.only}


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; return and write the result."""
    args = arguments(words)
    where = machine(torch.device("cpu"), PACKAGES) | {"threads": args.threads}
    commit = args.commit or source_commit()
    result: dict[str, Any] = {
        "name": args.name, "commit": commit, "machine": where, "settings": settings(args),
        "limit": LIMIT, "reference": REFERENCE, "notes": NOTES, "cells": kept(args, commit),
    }  # fmt: skip
    report = ProgressBars()
    chosen = [(field, shape) for field in args.fields for shape in args.shapes]
    for number, (field, shape) in enumerate(chosen, 1):
        name = f"{field}, {shape}"
        cells = result["cells"]
        report.update("cells", number - 1, len(chosen))
        if name in cells:
            report.say(f"{name}: measured before, at this commit")
        else:
            cells[name] = measure(field, shape, args, report)
            report.say(f"{name}: {cells[name]['took']:.0f} s; cell {number} of {len(chosen)}")
        if args.profile and "profile" not in cells[name]:
            cells[name]["profile"] = profile_of(case_of(field, shape), args.threads)
        write_result(result, markdown(result), args.out)
    report.finish()
    print(markdown(result))
    return result


if __name__ == "__main__":
    main()
