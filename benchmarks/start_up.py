"""What a start and a resumption cost over corpora of 10 MB, 100 MB and 1 GB of text.

    python -m benchmarks.start_up --out benchmarks/results

A small language model of bytes is trained for two steps and resumed for two more, each in a process
of its own, after the corpus has been tokenised once. Up to the end of the first step of a process
are counted: bytes that it read by calls (of Linux's /proc/self/io), the largest memory it had
resident (mapped tokens that were looked at are in it), processor time, and time by the clock. The
first two do not depend on what else the machine does. The order of an epoch takes 8 bytes for each
window of the corpus; nothing else may grow with it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.training_step import measured, write_result
from magneto.files import write_json
from magneto.progress import ProgressBars
from magneto.recipe import load_recipe
from magneto.training.hooks import Hook
from magneto.training.loop import train
from magneto.training.state import TrainingState

MB = 1_000_000
BLOCK = 4 * MB
SETTINGS = {
    "data.tokenizer": "bytes", "training.device": "cpu", "training.tensorboard": "false",
    "training.evaluate_limit": "1", "training.save_every": "0", "training.threads": "1",
    "model.layers": "2", "model.width": "64", "model.ffn_width": "128", "model.heads": "2",
}  # fmt: skip
KINDS = ("start", "resume")
MEASURED = ("read", "resident", "processor", "seconds")


def write_text(path: Path, size: int) -> None:
    """Write so many bytes of words drawn at random, in paragraphs of a few hundred."""
    draw = np.random.default_rng(7)
    letters = draw.integers(97, 123, size=(20_000, 8), dtype=np.uint8)
    words = [row[: 2 + i % 7].tobytes().decode() for i, row in enumerate(letters)]
    with path.open("w", encoding="ascii") as file:
        written = 0
        while written < size:
            chosen = draw.integers(len(words), size=min(BLOCK, size - written) // 5)
            lines = [" ".join(words[i] for i in part) for part in np.array_split(chosen, 1000)]
            text = "\n\n".join(lines)[: size - written]
            file.write(text)
            written += len(text)


def measure(corpus: Path, run: Path, kind: str, began: float, out: Path) -> None:
    """Train two steps in this process; write what came up to the end of the first."""
    steps = "4" if kind == "resume" else "2"
    settings = {**SETTINGS, "data.source": str(corpus), "training.steps": steps}
    recipe = load_recipe("causal-lm/tiny", settings)
    found: dict[str, float] = {}

    def note(state: TrainingState) -> None:
        if not found:
            used = resource.getrusage(resource.RUSAGE_SELF)
            lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
            found.update(
                read=float(next(line.split()[1] for line in lines if line.startswith("rchar"))),
                resident=used.ru_maxrss * 1024.0,
                processor=used.ru_utime + used.ru_stime,
                seconds=time.time() - began,
            )

    report = ProgressBars(quiet=True)
    task = recipe.build_task()
    task.prepare(report)
    train(
        task, recipe.training, run, seed=1, resume=kind == "resume", hooks=[Hook(1, note)],
        report=report, recipe=recipe.to_mapping(),
    )  # fmt: skip
    write_json(out, found)


def spawn(corpus: Path, run: Path, kind: str) -> dict[str, float]:
    """Measure in a process of its own."""
    out = run.with_name("measured.json")
    words = ["--worker", str(corpus), str(run), kind, repr(time.time()), str(out)]
    subprocess.run([sys.executable, "-m", "benchmarks.start_up", *words], check=True)
    return json.loads(out.read_text())


def rows_of(sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """Return medians for each size and kind; the sizes take turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["MAGNETO_CACHE"] = str(folder / "cache")
        found: dict[tuple[int, str], list[dict[str, float]]] = {}
        for size in sizes:
            write_text(folder / f"{size}.txt", size * MB)
        time.sleep(3)  # a file that changed a moment ago is hashed again
        for size in sizes:
            print(f"tokenising {size} MB", file=sys.stderr)
            spawn(folder / f"{size}.txt", folder / f"first-{size}", "start")
        for number in range(rounds):
            for size in sizes:
                run = folder / f"{size}-{number}"
                for kind in KINDS:
                    values = spawn(folder / f"{size}.txt", run, kind)
                    found.setdefault((size, kind), []).append(values)
    return [
        {"megabytes": size, "kind": kind}
        | {key: median(values[key] for values in several) for key in MEASURED}
        for (size, kind), several in found.items()
    ]


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with a table."""
    where = result["machine"]
    lines = [
        "# Starting over a large corpus",
        "",
        f"{where['processor']}, {where['cores']} cores; torch {where['packages']['torch']}; commit "
        f"{where['commit']}; {result['date']}; load {result['load'][0]:.1f} processes in the "
        f"minute before and {result['load'][1]:.1f} at the end. Medians of {result['rounds']}.",
        "",
        "From the start of a process, imports included, to the end of its first step; the corpus "
        "was tokenised before. One small language model; only the text differs.",
        "",
        "| text, MB | | read, MB | resident at most, MB | processor, s | clock, s |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['megabytes']} | {row['kind']} | {row['read'] / MB:.0f} | "
            f"{row['resident'] / MB:.0f} | {row['processor']:.1f} | {row['seconds']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", type=int, default=[10, 100, 1000], help="in MB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="start-up-cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.worker:
        corpus, run, kind, began, out = args.worker
        measure(Path(corpus), Path(run), kind, float(began), Path(out))
        return
    with measured(args.name) as result:
        result["rounds"] = args.rounds
        result["rows"] = rows_of(args.sizes, args.rounds)
    write_result(result, markdown(result), args.out)


if __name__ == "__main__":
    main()
