r"""Time whole training steps of causal language models with one loss and another.

    python benchmarks/cross_entropy.py
    python benchmarks/cross_entropy.py --only 6x256-4x256-8k --rounds 3

The losses: all logits and `torch.nn.functional.cross_entropy`; the same over chunks whose logits
are computed again in the backward pass (`torch.utils.checkpoint`); and
`magneto.functional.cross_entropy` with chunks of different sizes. A step is: forward, loss,
backward, fused AdamW. Losses take turns, a new random order each round; a turn is one step. Beside
the wall clock stands the processor time, which other work on the machine moves less, most of all
with one thread. Results go to benchmarks/results/NAME.json and .md.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.contenders import Shape, build
from benchmarks.training_step import ROOT, Timed, machine, timed, wait, write_result
from magneto.functional.cross_entropy import linear_cross_entropy

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

SHAPES = {
    "tiny": Shape(64, 2, 4, 256, 512, 2, 32),
    "6x256-4x256-8k": Shape(256, 6, 4, 1024, 8192, 4, 256),
    "6x256-16x256-8k": Shape(256, 6, 4, 1024, 8192, 16, 256),
    "4x256-8x512-50k": Shape(256, 4, 4, 1024, 50257, 8, 512),
}
ALL_LOGITS = "all logits"
CHUNKS = (256, 512, 1024, 2048)
RECOMPUTED_ROWS = 2048


def all_logits(features: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the summed cross-entropy of (rows, width) features."""
    return F.cross_entropy(F.linear(features, weight).float(), targets, reduction="sum")


def recomputed(features: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the same sum, chunk by chunk; logits are computed again in the backward pass."""
    if len(features) <= RECOMPUTED_ROWS:
        return all_logits(features, weight, targets)
    parts = zip(features.split(RECOMPUTED_ROWS), targets.split(RECOMPUTED_ROWS), strict=True)
    losses = [checkpoint(all_logits, x, weight, y, use_reentrant=False) for x, y in parts]
    return torch.stack(losses).sum()


def in_forward(chunk: int) -> Loss:
    """Return the loss whose gradient is ready when the forward pass is."""
    return lambda *given: linear_cross_entropy(*given, chunk=chunk).total


def losses(rows: int) -> dict[str, Loss]:
    """Return the losses to compare, by name."""
    sizes = [chunk for chunk in CHUNKS if chunk < rows]
    return {
        ALL_LOGITS: all_logits,
        f"computed again, {RECOMPUTED_ROWS} rows": recomputed,
        **{f"gradient in forward, {size} rows": in_forward(size) for size in [*sizes, rows]},
    }


def make_step(loss: Loss, shape: Shape, args: argparse.Namespace, device: torch.device) -> Any:
    """Return a function that takes one training step, and how many parameters it has."""
    model = build("magneto pre", shape, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(2)
    size = (shape.batch, shape.length + 1)
    window = torch.randint(shape.vocab_size, size, generator=generator).to(device)
    tokens, targets = window[:, :-1].contiguous(), window[:, 1:].flatten()

    def step() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
            features = model.decoder(model.embedding(tokens)).flatten(0, 1)
            mean = loss(features, model.head.weight, targets) / len(targets)
        mean.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return mean.detach()

    return step, sum(p.numel() for p in model.parameters())


def peak_bytes(step: Any, device: torch.device) -> int:
    """Return the most bytes that a step holds beyond what was held before it."""
    if device.type == "cuda":
        held = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        wait(device)
        return torch.cuda.max_memory_allocated(device) - held
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    events = profile.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(accumulate(change for _, change in changes))


def ratios(values: list[float], base: list[float]) -> list[float]:
    """Return the quartiles of values over the median of the base."""
    return [v / statistics.median(base) for v in statistics.quantiles(values, n=4)]


def measure(name: str, args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Time all losses at one shape, in turns."""
    shape = SHAPES[name]
    entries, first = [], {}
    processor: dict[str, list[float]] = {}
    for loss_name, loss in losses(shape.batch * shape.length).items():
        step, parameters = make_step(loss, shape, args, device)
        entry = Timed(loss_name, "eager", parameters, step)
        entry.first_seconds = timed(
            lambda step=step, n=loss_name: first.update({n: step()}), device
        )
        entry.peak_bytes = peak_bytes(step, device)
        entries.append(entry)
    order = random.Random(1)
    for number in range(args.rounds):
        for entry in order.sample(entries, len(entries)):
            start = time.process_time()
            entry.seconds.append(timed(entry.step, device))
            processor.setdefault(entry.name, []).append(time.process_time() - start)
        print(f"{name}: round {number + 1} of {args.rounds}", file=sys.stderr)
    rows = [
        entry.row(shape.batch * shape.length)
        | {"ratio_quartiles": ratios(entry.seconds, entries[0].seconds)}
        | {"processor_ratio_quartiles": ratios(processor[entry.name], processor[ALL_LOGITS])}
        | {"first_loss": first[entry.name].item()}
        for entry in entries
    ]
    sizes = ", ".join(f"{k} {v}" for k, v in asdict(shape).items())
    return {"shape": name, "sizes": sizes, "rows": rows}


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with a table for each shape."""
    where = result["machine"]
    lines = [
        "# One training step with one loss and another",
        "",
        f"{result['precision']}; {where['accelerator'] or where['processor']}, {where['cores']} "
        f"cores, {where['threads']} threads; torch {where['packages']['torch']}; commit "
        f"{result['commit']}; {where['date']}.",
        "",
        "Medians over interleaved rounds of one step, and their ratios to the median of "
        f"{ALL_LOGITS}, with quartiles, by the wall clock and in processor time. Memory is the "
        "most that a step allocates beyond what was held before it. The loss is the first "
        "step's.",
    ]
    for part in result["shapes"]:
        lines += [
            "",
            f"## {part['shape']}",
            "",
            f"{part['sizes']}; {part['rows'][0]['steps']} rounds.",
            "",
            "| loss | ms | ratio | processor time | step memory (MiB) | first loss |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        for row in part["rows"]:
            wall, processor = (
                f"{median:.3f} ({low:.3f} to {high:.3f})"
                for low, median, high in (row["ratio_quartiles"], row["processor_ratio_quartiles"])
            )
            lines.append(
                f"| {row['contender']} | {row['median_ms']:.1f} | {wall} | {processor} | "
                f"{row['step_memory_mib']:,.0f} | {row['first_loss']:.6f} |"
            )
    return "\n".join(lines) + "\n"


def arguments(words: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES)[1:])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, help="CPU threads of torch")
    parser.add_argument("--commit", help="of the source, where git cannot tell")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--name", help="of the result; by default from device and precision")
    args = parser.parse_args(words)
    suffix = "" if args.precision == "fp32" else f"-{args.precision}"
    args.name = args.name or f"cross-entropy-{args.device}{suffix}"
    return args


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; return and write the result."""
    args = arguments(words)
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    shapes = [measure(name, args, device) for name in args.only]
    where = machine(device)
    result = {
        "name": args.name,
        "precision": "bf16 autocast over fp32 weights" if args.precision == "bf16" else "fp32",
        "commit": args.commit or where["commit"] or "unknown",
        "machine": where,
        "shapes": shapes,
    }
    write_result(result, markdown(result), args.out)
    return result


if __name__ == "__main__":
    main()
