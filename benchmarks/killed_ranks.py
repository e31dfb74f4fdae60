"""Ranks killed in the middle of training: what is lost, how long it takes to go on, what differs.

    python -m benchmarks.killed_ranks --out benchmarks/results

A small language model is trained by `magneto train --auto-resume` under torchrun, on a CPU with
gloo. At a seeded random moment one rank is ended by SIGKILL; the same command begins again with
another number of ranks: 4, 2, 4 and 1. In further runs torchrun itself starts the lost worker
again (`--max-restarts`). Each process notes the examples of its steps. Counted are the examples of
the steps that survived, up to the checkpoint that was gone on from: every one must have been seen
once. Losses of all steps and the final weights are compared with a run of one process that nothing
interrupted. Seconds are from the kill to the first step after it, on this machine as busy as it
was.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.killed_chain import BATCH, SAVE_EVERY, Chain, go_through, notes_of, write_recipe
from benchmarks.training_step import measured, write_result
from magneto.training.metrics_logger import read_metrics
from magneto.weights import open_tensors

STRATEGIES = ("ddp", "fsdp", "hybrid")
RANKS = (4, 2, 4, 1)


def first_steps(chain: Chain) -> list[int]:
    """Return the step from which each phase went on, as the run said."""
    found, step = [], 0
    for line in chain.output.read_text(errors="replace").splitlines():
        if said := re.match(r"going on from .*, step (\d+)", line):
            step = int(said[1])
        elif re.match(r"[\d,]+ parameters on ", line):
            found.append(step)
            step = 0
    return found


def counts(chain: Chain, examples: int) -> dict[str, int]:
    """Return how often the examples were seen in steps that survived, and how many steps did not.

    A step survived if the next phase went on from a later one.
    """
    names = sorted({path.name.partition("-")[0] for path in chain.notes.iterdir()})
    begun = first_steps(chain)
    seen: Counter[int] = Counter()
    repeated = 0
    for name, first, last in zip(names, begun, [*begun[1:], examples // BATCH], strict=True):
        noted = notes_of(chain, name).values()
        for steps in noted:
            seen.update(number for numbers in steps[: last - first] for number in numbers)
        repeated += max(len(steps) for steps in noted) - (last - first)
    often = [seen[number] for number in range(examples)]
    return {
        "seen_once": often.count(1),
        "missing": often.count(0),
        "seen_again": examples - often.count(1) - often.count(0),
        "steps_repeated": repeated,
    }


def differences(run: Path, reference: Path) -> dict[str, float]:
    """Return the largest difference of the losses of all steps, and of the final weights.

    Raises:
        RuntimeError: If one has steps or weights that the other has not.
    """
    losses = [
        {row["step"]: row["loss"] for row in read_metrics(folder) if "loss" in row}
        for folder in (run, reference)
    ]
    weights = [open_tensors(folder / "final") for folder in (run, reference)]
    if losses[0].keys() != losses[1].keys() or weights[0].keys() != weights[1].keys():
        raise RuntimeError(f"{run} has other steps or weights than {reference}")
    return {
        "loss": max(abs(losses[0][step] - losses[1][step]) for step in losses[0]),
        "weights": max(
            (weights[0][name].read() - weights[1][name].read()).abs().max().item()
            for name in weights[0]
        ),
    }


def measure(
    strategies: Sequence[str],
    ranks: Sequence[int],
    restarts: Sequence[int],
    seeds: Sequence[int],
    examples: int,
) -> list[dict[str, Any]]:
    """Go through every chain; return a row for each.

    Args:
        strategies: How a model lies on the ranks.
        ranks: Of the attempts of a chain that is begun anew by hand.
        restarts: How often torchrun starts a lost worker again, in chains of one attempt each.
        seeds: Of the moments.
        examples: Of the epoch.
    """
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = folder / "recipe.yaml"
        write_recipe(recipe, examples)
        reference = Chain("none", (1,), 0, folder / "reference", random.Random(0))
        go_through(reference, recipe)
        kinds = [(tuple(ranks), 0), *(((ranks[0],), number) for number in restarts)]
        for seed in seeds:
            for strategy in strategies:
                for chosen, number in kinds:
                    place = folder / f"{strategy}-{number}-{seed}"
                    draw = random.Random(f"{strategy} {number} {seed}")
                    chain = Chain(strategy, chosen, number, place, draw)
                    go_through(chain, recipe)
                    row = {
                        "strategy": strategy, "ranks": list(chosen), "restarts": number,
                        "seed": seed, "kills": len(chain.seconds),
                        **counts(chain, examples), "seconds": chain.seconds, "ending": chain.ending,
                        "differences": differences(chain.run, reference.run),
                    }  # fmt: skip
                    print(row, file=sys.stderr, flush=True)
                    rows.append(row)
    return rows


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with a table."""
    where, rows = result["machine"], result["rows"]
    kills, longest = sum(row["kills"] for row in rows), max(max(row["seconds"]) for row in rows)
    lines = [
        "# Killed ranks",
        "",
        f"{where['processor']}, {where['cores']} cores; torch {where['packages']['torch']}, gloo; "
        f"commit {where['commit']}; {result['date']}; load {result['load'][0]:.1f} processes in "
        f"the minute before and {result['load'][1]:.1f} at the end.",
        "",
        f"{kills} kills by SIGKILL of one rank at a random moment, each followed by the same "
        f"command. Of {result['examples']} examples, one epoch in {result['examples'] // BATCH} "
        f"steps with a checkpoint every {SAVE_EVERY}, those counted that were seen once in the "
        "steps that survived. Differences are from one process that nothing interrupted. The "
        f"longest time from a kill to the next step was {longest:.0f} s.",
        "",
        "| strategy | ranks | kills | seen once | missing | seen again | steps repeated "
        "| seconds to the next step | of these until all had ended | loss differs by "
        "| weights differ by |",
        "|---|---|--:|--:|--:|--:|--:|---|---|--:|--:|",
    ]
    for row in rows:
        ranks = " → ".join(map(str, row["ranks"]))
        ranks += f", --max-restarts {row['restarts']}" if row["restarts"] else ""
        seconds, ending = (
            ", ".join(f"{value:.0f}" for value in row[key]) or "–" for key in ("seconds", "ending")
        )
        found = row["differences"]
        lines.append(
            f"| {row['strategy']} | {ranks} | {row['kills']} | {row['seen_once']} | "
            f"{row['missing']} | {row['seen_again']} | {row['steps_repeated']} | {seconds} | "
            f"{ending} | {found['loss']:.1e} | {found['weights']:.1e} |"
        )
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> None:
    """Kill, count and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS)
    parser.add_argument("--restarts", nargs="*", type=int, default=[2])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--examples", type=int, default=480)
    parser.add_argument("--name", default="killed-ranks-cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args(words)
    with measured(args.name) as result:
        result["examples"] = args.examples
        result["rows"] = measure(
            args.strategies, args.ranks, args.restarts, args.seeds, args.examples
        )
    write_result(result, markdown(result), args.out)


if __name__ == "__main__":
    main()
