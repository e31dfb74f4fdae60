"""What each rank of a sharded run has in memory, beside the size of the whole model.

    python -m benchmarks.fsdp_memory --ranks 1 2 4 --out benchmarks/results

Every process builds a language model, takes one step, writes a checkpoint and reads it, on a CPU
with gloo. After each phase it says the largest resident memory it had meanwhile (VmHWM of Linux,
which is set back before the phase), less what it had before the model was built. "whole" builds the
model on each rank before it is sharded, as is done where a model can't be drawn module by module.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.training_step import write_result
from magneto.files import write_json
from magneto.language.causal_lm import CausalLanguageModeling
from magneto.language.config import LanguageModelConfig, TextDataConfig
from magneto.language.model import LanguageModel
from magneto.training.checkpoint import (
    OPTIMIZER,
    load_checkpoint,
    model_pieces,
    optimizer_pieces,
)
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World, barrier, join_world
from magneto.training.environment import environment
from magneto.training.initial import initial_model
from magneto.training.optimizer import build_optimizer
from magneto.training.sharding import shard_model
from magneto.training.writer import Writer
from magneto.weights import MODEL

SHAPES: dict[str, dict[str, Any]] = {
    "cpu": {"width": 768, "layers": 12, "heads": 12, "ffn_width": 3072, "vocab_size": 16384},
    "tiny": {"width": 64, "layers": 2, "heads": 2, "ffn_width": 128, "vocab_size": 512},
}
PHASES = ("build", "step", "save", "load")
MB = 1e6
MMAP_THRESHOLD = "65536"  # bytes; the value of MALLOC_MMAP_THRESHOLD_


class Model(CausalLanguageModeling):
    """The language model of a shape, without text."""

    def build_model(self) -> LanguageModel:
        """Build it."""
        return LanguageModel(self.model_config)


def resident(field: str) -> float:
    """Return a memory field of this process (VmRSS, VmHWM), in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(field))


@contextmanager
def peak(found: dict[str, float], phase: str, before: float, world: World) -> Iterator[None]:
    """Note the largest resident memory of a phase, less `before`."""
    barrier(world)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    yield
    found[phase] = resident("VmHWM") - before
    barrier(world)


def measure(shape: dict[str, Any], way: str, folder: Path) -> None:
    """Go through the phases on this rank, and write what they took."""
    strategy = "fsdp" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else "none"
    config = TrainingConfig(device="cpu", distributed=strategy, learning_rate=1e-3)
    task = Model(LanguageModelConfig(**shape), TextDataConfig(), 1)
    found: dict[str, float] = {}
    with join_world(config) as world:
        warm(folder / f"warm-{world.rank}")
        before = resident("VmRSS")
        with peak(found, "build", before, world):
            if way == "whole":
                torch.manual_seed(1)
                model = shard_model(task.build_model(), world)
            else:
                model = initial_model(task, 1, world)
        optimizer = build_optimizer(model, config)
        with peak(found, "step", before, world):
            tokens = torch.zeros(1, 16, dtype=torch.long)
            model(tokens, targets=tokens).total.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        kinds = {MODEL: model_pieces(model), OPTIMIZER: optimizer_pieces(model, optimizer)}
        with peak(found, "save", before, world):
            Writer(world, background=False).write(folder / "checkpoint", kinds, {})
        del kinds, optimizer
        optimizer = build_optimizer(model, config)
        with peak(found, "load", before, world):
            load_checkpoint(folder / "checkpoint", model, optimizer)
        pieces = model_pieces(model).values()
        found["share"] = float(sum(p.tensor.numel() * p.tensor.element_size() for p in pieces))
        found["whole"] = float(sum(p.numel() * p.element_size() for p in model.parameters()))
        write_json(folder / f"rank-{world.rank}.json", found)


def warm(folder: Path) -> None:
    """Build, train and write a very small model, so that libraries are loaded before measuring."""
    alone = World(0, 1, torch.device("cpu"), "none")
    task = Model(LanguageModelConfig(**SHAPES["tiny"]), TextDataConfig(), 1)
    model = initial_model(task, 1, alone)
    tokens = torch.zeros(1, 16, dtype=torch.long)
    model(tokens, targets=tokens).total.backward()
    build_optimizer(model, TrainingConfig(learning_rate=1e-3)).step()
    Writer(alone, background=False).write(folder, {MODEL: model_pieces(model)}, {})


def spawn(shape: str, ranks: int, way: str) -> dict[str, Any]:
    """Measure on so many ranks; return the largest of them for each phase."""
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable]
        if ranks > 1:
            start += ["-m", "torch.distributed.run", "--standalone"]
            start += ["--nproc-per-node", str(ranks)]
        words = ["-m", "benchmarks.fsdp_memory", "--shape", shape, "--worker", way, folder]
        # Freed memory goes back at once: what is resident is what is used.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": MMAP_THRESHOLD}
        subprocess.run([*start, *words], check=True, env=environment)
        found = [json.loads(path.read_text()) for path in Path(folder).glob("rank-*.json")]
    largest = {key: max(row[key] for row in found) for key in found[0]}
    return {"ranks": ranks, "way": way, **largest}


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with a table."""
    where, shape = result["machine"], result["shape"]
    whole = result["rows"][0]["whole"]
    lines = [
        "# Memory of a rank",
        "",
        f"{where['processor']}; torch {where['packages']['torch']}; commit {where['commit']}; "
        f"{result['date']}. gloo, fp32, AdamW; a language model of {shape['layers']} layers of "
        f"width {shape['width']} and {shape['vocab_size']} tokens: {whole / MB:.0f} MB of weights.",
        "",
        "MB of resident memory above what a process had before, the largest rank's peak in each "
        "phase; in brackets over the size of all weights. After the first step each rank has "
        "weights, and twice as much of the optimizer's. What is read is mapped and counted too. "
        f"`MALLOC_MMAP_THRESHOLD_={MMAP_THRESHOLD}` is set, by which freed memory goes back at "
        "once; without it more stays resident.",
        "",
        "| ranks | model | a rank's weights | build | step | save | load |",
        "|--:|---|--:|--:|--:|--:|--:|",
    ]
    names = {"module": "drawn module by module", "whole": "whole on each rank, then sharded"}
    for row in result["rows"]:
        cells = " | ".join(f"{row[p] / MB:.0f} ({row[p] / row['whole']:.2f})" for p in PHASES)
        lines.append(
            f"| {row['ranks']} | {names[row['way']]} | {row['share'] / MB:.0f} | {cells} |"
        )
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="cpu")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--name", default="fsdp-memory-cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--worker", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.worker:
        measure(SHAPES[args.shape], args.worker[0], Path(args.worker[1]))
        return
    rows = [spawn(args.shape, ranks, way) for ranks in args.ranks for way in ("module", "whole")]
    where = environment()
    del where["command"]
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    result = {
        "name": args.name,
        "rows": rows,
        "shape": SHAPES[args.shape],
        "machine": where,
        "date": date,
    }
    write_result(result, markdown(result), args.out)


if __name__ == "__main__":
    main()
