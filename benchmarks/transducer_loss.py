"""Time and memory of a transducer's joiner and loss, forward and backward, on a CPU.

    python -m benchmarks.transducer_loss
    python -m benchmarks.transducer_loss --shape tiny --rounds 1 --out /tmp

Four ways from the joiner's features to the gradients: all logits and a log-softmax of them (plain);
the same for a quarter of the batch at a time, each with its backward pass (NeMo's
`fused_batch_size`); all logits, of which only the log-probabilities of blank and labels are kept
(`transducer_loss`); and no more than a tile of logits (`joiner_transducer_loss`). Every measurement
is one step in a process of its own; ways take turns, a new random order each round. Memory is the
largest resident memory above what the process held before the step, gradients included. Beside the
wall clock stands the processor time, which other work on the machine moves less.

Memory of the plain way is also measured for one and two utterances, which shows how it grows, and
that of the tiles at the full batch. Results go to benchmarks/results/NAME.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.fsdp_memory import MMAP_THRESHOLD, resident
from benchmarks.training_step import ROOT, machine, write_result
from benchmarks.transducer_ways import GATHERED, PLAIN, SHAPES, SPLIT, Shape, inputs, way_of

NAMES = ("encoder", "predictor", "weight", "bias")
MB = 1e6


def work(name: str, shape: Shape, path: Path) -> None:
    """Measure one step in this process, and write what it took and its gradients."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    way = way_of(name)
    given, rest = inputs(SHAPES["tiny"])
    way(given, *rest)  # loads libraries
    given, rest = inputs(shape)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    start, processor = time.perf_counter(), time.process_time()
    loss = way(given, *rest)
    found = {
        "seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - processor,
        "peak_bytes": resident("VmHWM") - before,
        "loss": loss.item(),
    }
    gradients = {name: x.grad for name, x in zip(NAMES, given, strict=True) if x.grad is not None}
    save_file(gradients, path / "gradients.safetensors")
    (path / "found.json").write_text(json.dumps(found), encoding="utf-8")


def spawn(name: str, shape: Shape) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Measure one step in a new process; return what it took, and its gradients."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "benchmarks.transducer_loss", "--worker", name, json.dumps(asdict(shape))]
        # Freed memory goes back at once: what is resident is what is used.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": MMAP_THRESHOLD}
        command = [sys.executable, *words, folder]
        subprocess.run(command, check=True, env=environment, cwd=ROOT)
        found = json.loads((Path(folder) / "found.json").read_text())
        gradients = load_file(Path(folder) / "gradients.safetensors")
    print(f"{name}, {shape}: {found}", file=sys.stderr)
    return found, gradients


def difference(found: dict[str, Tensor], base: dict[str, Tensor]) -> float:
    """Return the largest difference of a gradient over the largest entry of its tensor."""
    pairs = [(found[name], base[name]) for name in NAMES]
    return max(((one - other).abs().max() / other.abs().max()).item() for one, other in pairs)


def measure(shape: Shape, ways: list[str], rounds: int) -> list[dict[str, Any]]:
    """Measure all ways at one shape, in turns."""
    order, taken, gradients = random.Random(1), {name: [] for name in ways}, {}
    for _ in range(rounds):
        for name in order.sample(ways, len(ways)):
            found, gradients[name] = spawn(name, shape)
            taken[name].append(found)
    rows = []
    for name, found in taken.items():
        row = {key: [one[key] for one in found] for key in found[0]}
        medians = {f"median_{key}": statistics.median(values) for key, values in row.items()}
        differs = difference(gradients[name], gradients[ways[0]])
        rows.append({"way": name, "shape": asdict(shape), **row, **medians, "gradients": differs})
    return rows


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with tables."""
    where, full = result["machine"], result["shape"]
    lines = [
        "# Transducer loss",
        "",
        f"{where['processor']}, {where['cores']} cores, {where['threads']} threads; torch "
        f"{where['packages']['torch']}; fp32; commit {where['commit']}; {where['date']}; load "
        f"{', '.join(f'{load:.1f}' for load in result['load'])} before and after.",
        "",
        f"Joiner and loss, forward and backward: {full['time']} frames, {full['labels']} labels, "
        f"joint width {full['joint']}. Each measurement is one step in a process of its own; "
        f"medians of {result['rounds']} interleaved rounds, with the lowest and highest. Memory is "
        "resident memory above what was held before the step, the features' and weight's "
        "gradients included. Gradients: largest difference from plain over the largest entry.",
    ]
    for vocabulary in dict.fromkeys(row["shape"]["vocabulary"] for row in result["rows"]):
        rows = [r for r in result["rows"] if r["shape"]["vocabulary"] == vocabulary]
        lines += [
            "",
            f"## Vocabulary {vocabulary}, batch {rows[0]['shape']['batch']}",
            "",
            "| way | MB | of plain | s | processor s | of plain | gradients |",
            "|---|--:|--:|--:|--:|--:|--:|",
            *(table_row(row, rows[0]) for row in rows),
        ]
    lines += [
        "",
        "## Memory and batch",
        "",
        "| way | vocabulary | batch | MB |",
        "|---|--:|--:|--:|",
    ]
    lines += [
        f"| {title(row['way'])} | {row['shape']['vocabulary']} | {row['shape']['batch']} | "
        f"{row['median_peak_bytes'] / MB:,.0f} |"
        for row in sorted(result["growth"], key=lambda r: (r["way"], r["shape"]["batch"]))
    ]
    return "\n".join(lines) + "\n"


def title(name: str) -> str:
    """Return a way's name in words."""
    return f"tiles of {name} cells" if name.isdigit() else name


def table_row(row: dict[str, Any], base: dict[str, Any]) -> str:
    """Return a line of the table."""
    memory, used = (row[f"median_{k}"] for k in ("peak_bytes", "processor_seconds"))
    of = (memory / base["median_peak_bytes"], used / base["median_processor_seconds"])
    low, high = min(row["processor_seconds"]), max(row["processor_seconds"])
    return (
        f"| {title(row['way'])} | {memory / MB:,.0f} | {of[0]:.3f} | {row['median_seconds']:.1f} | "
        f"{used:.1f} ({low:.1f} to {high:.1f}) | {of[1]:.2f} | {row['gradients']:.1e} |"
    )


def main(words: list[str] | None = None) -> dict[str, Any] | None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="librispeech")
    parser.add_argument("--vocabularies", nargs="+", type=int, default=[500, 5000])
    parser.add_argument("--batch", type=int, default=4, help="of the table; plain must fit")
    parser.add_argument("--tiles", nargs="+", default=["1024"], help="cells of a tile")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="transducer-loss-cpu")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.worker:
        work(args.worker[0], Shape(**json.loads(args.worker[1])), Path(args.worker[2]))
        return None
    full, load = SHAPES[args.shape], [os.getloadavg()[0]]
    shapes = [replace(full, batch=args.batch, vocabulary=size) for size in args.vocabularies]
    ways = [PLAIN, SPLIT, GATHERED, *args.tiles]
    rows = [row for shape in shapes for row in measure(shape, ways, args.rounds)]
    last = shapes[-1]
    single = [(PLAIN, 1), (PLAIN, 2), (args.tiles[0], 1), (args.tiles[0], full.batch)]
    growth = [measure(replace(last, batch=batch), [way], 1)[0] for way, batch in single]
    growth += [row for row in rows if row["shape"] == asdict(last) and row["way"] in dict(single)]
    where = machine(torch.device("cpu"))
    load.append(os.getloadavg()[0])
    result = {"name": args.name, "shape": asdict(full), "rounds": args.rounds, "load": load,
              "machine": where, "rows": rows, "growth": growth}  # fmt: skip
    write_result(result, markdown(result), args.out)
    return result


if __name__ == "__main__":
    main()
