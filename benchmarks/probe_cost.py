"""What a watched step of training costs: `ProbeHook` in a real run, beside the steps around it.

    python -m benchmarks.probe_cost --out benchmarks/results

Every fourth step is watched. A round is four steps: one that ends with hooking the model, the
watched one, and two that are left alone; the extra is what the first two take more than the others.
Rounds are interleaved by construction, so a machine that is busy with other things slows all alike.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from benchmarks.training_step import write_result
from magneto.analysis.probe.probe_hook import PERIOD, ProbeHook
from magneto.progress import ProgressBars
from magneto.recipe import load_recipe
from magneto.training.environment import environment
from magneto.training.hooks import Hook
from magneto.training.loop import train
from magneto.training.state import TrainingState

ROUND = 4
# Recipe and overrides.
SHAPES = {
    "tiny": ("causal-lm/tiny", {"model.layers": "2", "model.width": "32", "model.heads": "4"}),
    "causal-lm/tiny": ("causal-lm/tiny", {}),
    "causal-lm/tiny, 24 layers": ("causal-lm/tiny", {"model.layers": "24"}),
    "image-classification/tiny": ("image-classification/tiny", {}),
}


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Train for so many rounds after a first one, and compare their steps."""
    recipe_name, overrides = SHAPES[name]
    quiet = {
        "training.steps": str(ROUND * (rounds + 1)), "training.log_every": "1000000",
        "training.save_every": "0", "training.evaluate_every": "0", "training.evaluate_limit": "1",
        "training.tensorboard": "false",
    }  # fmt: skip
    recipe = load_recipe(recipe_name, {**overrides, **quiet})
    ends = [0.0]

    def clock(state: TrainingState) -> None:
        if state.world.device.type == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter())

    hooks = [ProbeHook(ROUND).hook, Hook(1, clock)]
    with tempfile.TemporaryDirectory() as run:
        train(
            recipe.build_task(), recipe.training, Path(run), seed=recipe.seed, hooks=hooks,
            report=ProgressBars(quiet=True),
        )  # fmt: skip
    took = [after - before for before, after in pairwise(ends)]
    # Steps are counted from 1 and the fourth is watched: hooked, watched, plain, plain.
    parts = [took[start : start + ROUND] for start in range(2, len(took) - ROUND + 1, ROUND)]
    extra = [a + b - c - d for a, b, c, d in parts]
    plain = median([(c + d) / 2 for _, _, c, d in parts])
    low, _, high = quantiles(extra, n=4)
    return {
        "name": name,
        "rounds": len(parts),
        "plain_ms": 1e3 * plain,
        "extra_ms": 1e3 * median(extra),
        "extra_quartiles_ms": [1e3 * low, 1e3 * high],
        "extra_steps": median(extra) / plain,
        "cost_at_period": median(extra) / plain / PERIOD,
        "period": PERIOD,
    }


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with a table."""
    where = result["machine"]
    lines = [
        "# Cost of the probe in training",
        "",
        f"{where['gpus'] or where['processor']}, {where['cores']} cores, {where['threads']} "
        f"threads; torch {where['packages']['torch']}; commit {where['commit']}; {result['date']}.",
        "",
        f"Medians, with quartiles of the extra. Mean cost at the default period of {PERIOD} steps.",
        "",
        "| recipe | rounds | step (ms) | extra of a watched step (ms) | in steps | mean cost |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        low, high = row["extra_quartiles_ms"]
        lines.append(
            f"| {row['name']} | {row['rounds']} | {row['plain_ms']:.1f} | {row['extra_ms']:.1f} "
            f"({low:.1f} to {high:.1f}) | {row['extra_steps']:.2f} | {row['cost_at_period']:.2%} |"
        )
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES)[1:])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--name", default="probe-cost-cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args(words)
    rows = [measure(name, args.rounds) for name in args.only]
    where = environment()
    del where["command"]
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    result = {"name": args.name, "rows": rows, "machine": where, "date": date}
    write_result(result, markdown(result), args.out)


if __name__ == "__main__":
    main()
