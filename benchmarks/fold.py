"""Time decoding with a key/value cache, with norms' scales folded into products and not.

    python -m benchmarks.fold --out benchmarks/results
    python -m benchmarks.fold --shapes 6x256 --batches 1 --rounds 20

A language model of each contender writes the same number of tokens, greedily, from the same prompt:
Sub-LN as trained, Sub-LN folded, Pre-LN as trained, Pre-LN folded. The contenders take turns, a new
random order each round, and a turn is one writing; processor time of this process is taken, which
other work on the machine moves less than the wall clock. fp32, one thread. The goal: Sub-LN folded
at the speed of Pre-LN, within 2 %.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.training_step import machine, write_result
from magneto.language.config import LanguageModelConfig
from magneto.language.model import LanguageModel
from magneto.nn.cache import KeyValueCache
from magneto.nn.fold import folded

# Layers, width, heads.
SHAPES = {"tiny": (2, 32, 2), "6x256": (6, 256, 4), "12x512": (12, 512, 8)}
VOCABULARY, PROMPT = 8192, 16
CONTENDERS = ("sub", "sub folded", "pre", "pre folded")
REFERENCE, GOAL = "pre", 0.02


def build(contender: str, shape: str, vocabulary: int) -> nn.Module:
    """Build a contender's model, its scales drawn anew so that none is 1."""
    layers, width, heads = SHAPES[shape]
    placement, _, change = contender.partition(" ")
    torch.manual_seed(1)
    model = LanguageModel(
        LanguageModelConfig(
            width=width, layers=layers, heads=heads, ffn_width=4 * width, vocab_size=vocabulary,
            positions="sinusoidal", placement=placement,
        )
    ).eval()  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) / 10)
    return folded(model) if change else model


@torch.inference_mode()
def write(model: nn.Module, batch: int, tokens: int) -> torch.Tensor:
    """Write so many tokens after a prompt, the likeliest each; return them, (batch, tokens)."""
    cache = KeyValueCache()
    given = torch.arange(batch * PROMPT).view(batch, PROMPT) % 100
    written = []
    for _ in range(tokens):
        given = model(given, cache=cache)[:, -1].argmax(-1, keepdim=True)
        written.append(given)
    return torch.cat(written, 1)


def measure(shape: str, batch: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Let the contenders take turns; return a row for each."""
    models = {name: build(name, shape, args.vocabulary) for name in CONTENDERS}
    for model in models.values():
        write(model, batch, args.tokens)
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    order = random.Random(1)
    for _ in range(args.rounds):
        for name in order.sample(CONTENDERS, len(CONTENDERS)):
            began = time.process_time()
            write(models[name], batch, args.tokens)
            seconds[name].append(time.process_time() - began)
    rows = []
    for name, found in seconds.items():
        # Of each round, over the reference of the same round: what moved both moves it less.
        ratios = [one / other for one, other in zip(found, seconds[REFERENCE], strict=True)]
        rows.append({"shape": shape, "batch": batch, "contender": name,
                     "ms": three([1e3 * one / args.tokens for one in found]),
                     "ratio": three(ratios)})  # fmt: skip
    return rows


def three(values: list[float]) -> list[float]:
    """Return the first quartile, the median and the third quartile."""
    return statistics.quantiles(values, n=4) if len(values) > 1 else values * 3


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page."""
    where = result["machine"]
    lines = [
        "# Decoding with norms folded",
        "",
        f"{where['processor']}, {where['threads']} thread, load {result['load']:.1f}; torch "
        f"{where['packages']['torch']}; commit {result['commit']}; {where['date']}. "
        f"{result['tokens']} tokens after {PROMPT}, vocabulary {result['vocabulary']}, fp32, "
        f"greedy, key/value cache; {result['rounds']} rounds. Processor time of a token, its "
        f"quartiles, and the median of its ratio to {REFERENCE} of the same round.",
        "",
        f"| shape | batch | contender | ms a token | quartiles | over {REFERENCE} | quartiles |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        (low, median, high), (under, ratio, over) = row["ms"], row["ratio"]
        lines.append(
            f"| {row['shape']} | {row['batch']} | {row['contender']} | {median:.3f} | "
            f"{low:.3f} to {high:.3f} | {ratio:.3f} | {under:.3f} to {over:.3f} |"
        )
    asked = [row for row in result["rows"] if row["contender"] == "sub folded"]
    met = sum(row["ratio"][1] <= 1 + GOAL for row in asked)
    lines += ["", f"Goal: sub folded at most {1 + GOAL:.2f} of {REFERENCE}: met in {met} of "
              f"{len(asked)}."]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; return the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shapes", nargs="+", choices=SHAPES, default=["6x256", "12x512"])
    add("--batches", nargs="+", type=int, default=[1, 32])
    add("--tokens", type=int, default=64, help="to write in a turn (64)")
    add("--rounds", type=int, default=25, help="in which each contender has a turn (25)")
    add("--vocabulary", type=int, default=VOCABULARY)
    add("--name", default="fold-cpu")
    add("--out", type=Path, help="folder of the result")
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    where = machine(torch.device("cpu"))
    result = {
        "name": args.name, "commit": where["commit"], "machine": where, "tokens": args.tokens,
        "rounds": args.rounds, "vocabulary": args.vocabulary, "load": os.getloadavg()[0],
        "rows": [row for shape in args.shapes for batch in args.batches
                 for row in measure(shape, batch, args)],
    }  # fmt: skip
    if args.out:
        write_result(result, markdown(result), args.out)
    return result


if __name__ == "__main__":
    main()
