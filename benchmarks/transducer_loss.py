"""Time and memory of a transducer's joiner and loss, forward and backward, on a CPU.

    python -m benchmarks.transducer_loss
    python -m benchmarks.transducer_loss --shape tiny --rounds 1 --out /tmp

Four ways from the joiner's features to the gradients: all logits and a log-softmax of them (plain);
the same for a quarter of the batch at a time, or one utterance, each with its backward pass (NeMo's
`fused_batch_size`); all logits, of which only the log-probabilities of blank and labels are kept
(`transducer_loss`); and no more than a tile of logits (`joiner_transducer_loss`). Every measurement
is one step in a process of its own; ways take turns, a new random order each round. Memory is the
largest resident memory above what the process held before the step, gradients included. Beside the
wall clock stands the processor time, which other work on the machine moves less.

Memory of the plain way is also measured for one and four utterances, which shows how it grows, and
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
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.fsdp_memory import resident
from benchmarks.training_step import ROOT, machine, write_result
from benchmarks.transducer_ways import GATHERED, PLAIN, SHAPES, SPLIT, Shape, inputs, way_of

Entry = tuple[str, Shape]
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
        command = [sys.executable, *words, folder]
        subprocess.run(command, check=True, cwd=ROOT)
        found = json.loads((Path(folder) / "found.json").read_text())
        gradients = load_file(Path(folder) / "gradients.safetensors")
    print(f"{name}, {shape}: {found}", file=sys.stderr)
    return found, gradients


def difference(found: dict[str, Tensor], base: dict[str, Tensor]) -> float:
    """Return the largest difference of a gradient over the largest entry of its tensor."""
    pairs = [(found[name], base[name]) for name in NAMES]
    return max(((one - other).abs().max() / other.abs().max()).item() for one, other in pairs)


def measure(
    entries: list[Entry], once: list[Entry], rounds: int, report: Callable[..., None]
) -> None:
    """Measure ways in turns, some of them in the first round only; report after each round."""
    order, taken, gradients = random.Random(1), {}, {}
    for number in range(rounds):
        for entry in order.sample(entries, len(entries)) + (once if number == 0 else []):
            found, gradients[entry] = spawn(*entry)
            taken.setdefault(entry, []).append(found)
        report([row_of(entry, taken[entry], gradients) for entry in entries + once])


def row_of(
    entry: Entry, found: list[dict[str, float]], gradients: dict[Entry, dict[str, Tensor]]
) -> dict[str, Any]:
    """Return what was measured of a way, with medians."""
    row = {key: [one[key] for one in found] for key in found[0]}
    medians = {f"median_{key}": statistics.median(values) for key, values in row.items()}
    base = gradients.get((PLAIN, entry[1]))
    differs = difference(gradients[entry], base) if base else None
    return {"way": entry[0], "shape": asdict(entry[1]), **row, **medians, "gradients": differs}


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with tables."""
    where, full = result["machine"], result["shape"]
    lines = [
        "# Transducer loss",
        "",
        f"{where['processor']}, {where['cores']} cores, {where['threads']} threads; torch "
        f"{where['packages']['torch']}; fp32; commit {where['commit']}; {where['date']}; load "
        f"{', '.join(f'{load[0]:.1f}' for load in result['load'])} before and after each round.",
        "",
        f"Joiner and loss, forward and backward: {full['time']} frames, {full['labels']} labels, "
        f"joint width {full['joint']}. Each measurement is one step in a process of its own; "
        f"medians of {len(result['rows'][0]['seconds'])} interleaved rounds, with the lowest and "
        "highest. Memory is resident memory above what was held before the step, the features' and "
        "weight's gradients included. Gradients: largest difference from plain, over the largest "
        "entry.",
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
    parser.add_argument("--batch", type=int, default=2, help="of the table; plain must fit")
    parser.add_argument("--tiles", nargs="+", default=["1024"], help="cells of a tile")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="transducer-loss-cpu")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.worker:
        work(args.worker[0], Shape(**json.loads(args.worker[1])), Path(args.worker[2]))
        return None
    full = SHAPES[args.shape]
    shapes = [replace(full, batch=args.batch, vocabulary=size) for size in args.vocabularies]
    entries = [(way, shape) for shape in shapes for way in (PLAIN, SPLIT, GATHERED, *args.tiles)]
    single = [(PLAIN, 1), (PLAIN, 4), (args.tiles[0], full.batch)]
    once = [(way, replace(shapes[-1], batch=batch)) for way, batch in single]
    result: dict[str, Any] = {"name": args.name, "shape": asdict(full), "load": [os.getloadavg()]}
    result["machine"] = machine(torch.device("cpu"))

    def report(rows: list[dict[str, Any]]) -> None:
        result["load"].append(os.getloadavg())
        result["rows"], result["growth"] = rows[: len(entries)], rows[len(entries) :]
        result["growth"] += [
            row
            for row in result["rows"]
            if row["shape"] == asdict(shapes[-1]) and row["way"] in dict(single)
        ]
        write_result(result, markdown(result), args.out, show=False)

    measure(entries, once, args.rounds, report)
    print(markdown(result))
    return result


if __name__ == "__main__":
    main()
