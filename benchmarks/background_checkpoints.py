"""What a checkpoint costs a run: written in the background, at once, and not at all.

    OMP_NUM_THREADS=1 python -m benchmarks.background_checkpoints --out benchmarks/results

A language model is trained by the loop itself, in one process. Its steps are cut into blocks, which
take turns: no checkpoint, one at the block's beginning that a thread writes while the steps go on
(`training.async_save`), one that the steps wait for. The cost of a checkpoint is what the median
block takes longer than the median block without; its share is that of the time between two
checkpoints, at the periods of the recipes. A background write must end within its block: blocks in
which it does not are counted, and want `--steps`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks.training_step import measured, write_result
from magneto.data.batching import ShuffledExamples
from magneto.language.causal_lm import CausalLanguageModeling
from magneto.language.config import LanguageModelConfig, TextDataConfig
from magneto.language.model import LanguageModel
from magneto.progress import ProgressBars
from magneto.training.config import TrainingConfig
from magneto.training.hooks import Hook, save
from magneto.training.loop import train
from magneto.training.state import Stop, TrainingState
from magneto.training.task import BatchStream

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 64, "layers": 2, "heads": 2, "ffn_width": 128, "vocab_size": 512},
    "6x256": {"width": 256, "layers": 6, "heads": 4, "ffn_width": 1024, "vocab_size": 8192},
    "4x768": {"width": 768, "layers": 4, "heads": 12, "ffn_width": 3072, "vocab_size": 8192},
}
KINDS = ("none", "background", "at once")
BATCH, LENGTH = 8, 128
# Of the recipes' `training.save_every`: 17 of 57 have the second, which is the commonest.
PERIODS = (1000, 5000)


class Model(CausalLanguageModeling):
    """The language model of a shape, over random tokens."""

    def build_model(self) -> LanguageModel:
        """Build it."""
        return LanguageModel(self.model_config)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return random tokens."""

        def make(numbers: np.ndarray) -> dict[str, torch.Tensor]:
            draw = torch.Generator().manual_seed(int(numbers[0]))
            shape, size = (len(numbers), LENGTH), self.model_config.vocab_size
            names = ("tokens", "targets")
            return {name: torch.randint(size, shape, generator=draw) for name in names}

        return ShuffledExamples(1024, batch_size, seed, make)


@dataclass
class Blocks:
    """The blocks of a run, as a hook after each step.

    Attributes:
        steps: Of a block.
        rounds: How often each kind has its turn; the first is not counted.
        seconds: Of the blocks of each kind.
        waited: Of each checkpoint, what the steps waited for it at its beginning.
        unfinished: Blocks at whose end their checkpoint was still being written.
    """

    steps: int
    rounds: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    waited: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    unfinished: int = 0
    began: float = 0.0

    def after_step(self, state: TrainingState) -> None:
        """End a block and begin the next one, where one ends."""
        if state.step % self.steps:
            return
        number = state.step // self.steps
        kind, before = KINDS[number % 3], KINDS[(number - 1) % 3]
        took = time.perf_counter() - self.began
        if before == "background" and number > 1:
            thread = state.writer._thread
            self.unfinished += thread is not None and thread.is_alive()
        state.writer.wait()
        if number > 3:
            self.seconds[before].append(took)
        if number == 3 * (self.rounds + 1):
            state.stop = Stop("interrupted", "measured")
            return
        self.began = time.perf_counter()
        if kind != "none":
            state.writer.background = kind == "background"
            save(state)
            self.waited[kind].append(time.perf_counter() - self.began)


def measure(shape: str, steps: int, rounds: int) -> dict[str, Any]:
    """Train, and return the blocks of one shape."""
    task = Model(LanguageModelConfig(**SHAPES[shape]), TextDataConfig(), 1)
    blocks = Blocks(steps, rounds)
    config = TrainingConfig(
        steps=steps * 3 * (rounds + 2), batch_size=BATCH, learning_rate=1e-4, device="cpu",
        log_every=10**6, tensorboard=False, async_save=True, keep_checkpoints=1, threads=1,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        hooks = [Hook(1, blocks.after_step)]
        train(task, config, run, seed=1, hooks=hooks, report=ProgressBars(quiet=True))
        newest = max((run / "checkpoints").iterdir())
        size = sum(path.stat().st_size for path in newest.iterdir())
    step = median(blocks.seconds["none"]) / steps
    cost = {k: median(blocks.seconds[k]) - median(blocks.seconds["none"]) for k in KINDS[1:]}
    return {
        "shape": shape, "checkpoint_bytes": size, "steps_of_a_block": steps, "step_seconds": step,
        "cost_seconds": cost, "waited_seconds": {k: median(blocks.waited[k]) for k in KINDS[1:]},
        "shares": {k: {p: cost[k] / (p * step) for p in PERIODS} for k in cost},
        "unfinished": blocks.unfinished, "blocks": blocks.seconds,
    }  # fmt: skip


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with a table."""
    where = result["machine"]
    lines = [
        "# What a checkpoint costs",
        "",
        f"{where['processor']}, {where['cores']} cores, one thread; torch "
        f"{where['packages']['torch']}, fp32, AdamW; commit {where['commit']}; {result['date']}; "
        f"load {result['load'][0]:.1f} processes in the minute before and "
        f"{result['load'][1]:.1f} at the end. {result['rounds']} blocks of each kind, in turns.",
        "",
        "| shape | checkpoint, MB | written | steps wait, ms | costs, ms (quartiles of a block) "
        f"| step, ms | {' | '.join(f'share at every {period}' for period in PERIODS)} "
        "| unfinished blocks |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        for kind, cost in row["cost_seconds"].items():
            low, _, high = quantiles(row["blocks"][kind], n=4)
            shares = " | ".join(f"{row['shares'][kind][period]:.3%}" for period in PERIODS)
            lines.append(
                f"| {row['shape']} | {row['checkpoint_bytes'] / 1e6:.0f} | {kind} | "
                f"{row['waited_seconds'][kind] * 1e3:.0f} | {cost * 1e3:.0f} "
                f"({(high - low) * 1e3:.0f}) | {row['step_seconds'] * 1e3:.1f} | {shares} | "
                f"{row['unfinished'] if kind == 'background' else '–'} |"
            )
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["6x256", "4x768"])
    parser.add_argument("--steps", type=int, default=20, help="of a block")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--name", default="background-checkpoints-cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args(words)
    with measured(args.name) as result:
        result["rounds"] = args.rounds
        result["rows"] = [measure(shape, args.steps, args.rounds) for shape in args.shapes]
    write_result(result, markdown(result), args.out)


if __name__ == "__main__":
    main()
