r"""One training step of the product in every field, beside its peers and the products alone.

    python -m benchmarks.bench
    python -m benchmarks.bench --fields causal-lm --shapes "6 x 256" --seconds 10
    python -m benchmarks.bench --profile

Contenders of a cell (a field at a shape) take turns, a new random order each round, each in a
process of its own (benchmarks/turns.py). After each cell benchmarks/results/bench-cpu.json and .md
are written anew; cells that stand there from the same commit with the same settings are kept, so
that a run that was stopped goes on. `--profile` adds where the time of the product's step goes.
`make bench` installs the peers, runs this and writes docs/results/speed.md.
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
from benchmarks.training_step import ROOT, machine, source_commit, write_result
from benchmarks.turns import Entry, summary, take_turns
from magneto.files import read_json
from magneto.progress import ProgressBars

PACKAGES = ("x-transformers", "torchscale", "timm")


def measure(field: str, shape: str, args: argparse.Namespace, report: ProgressBars) -> Any:
    """Measure a cell: rows of contenders, what could not be measured, and the load."""
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
    add("--only", nargs="+", metavar="CONTENDER", help="these contenders; by default all")
    add("--seconds", type=float, default=20.0, help="of the rounds of a cell (20)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="of each contender; all cores")
    add("--profile", action="store_true", help="profile the product's step in every cell too")
    add("--fresh", action="store_true", help="measure again what stands in the results")
    add("--commit", help="of the source, where git cannot tell")
    add("--out", type=Path, default=ROOT / "benchmarks" / "results")
    add("--name", default="bench-cpu", help="of the result")
    return parser.parse_args(words)


def kept(args: argparse.Namespace, commit: str) -> dict[str, Any]:
    """Return the cells that an earlier run has measured at this commit with these settings."""
    path = args.out / f"{args.name}.json"
    if args.fresh or commit.endswith(("-dirty", "unknown")) or not path.is_file():
        return {}
    found = read_json(path)
    same = found["commit"] == commit and found["settings"] == settings(args)
    return found["cells"] if same else {}


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return what a cell's numbers depend on, beside the commit."""
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
