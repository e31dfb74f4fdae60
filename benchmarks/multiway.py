"""Time a step of the multiway encoder against the one-way encoder of equal tokens; and its memory.

    python -m benchmarks.multiway

Forward and backward, without an optimiser, in processor time, since other work on the machine
stretches the clock. Contenders take turns. Memory is what the graph keeps for the backward pass,
counted tensor by tensor, each storage once, without parameters.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.training_step import ROOT, machine, write_result
from magneto.nn.config import MultiwayConfig, TransformerConfig
from magneto.nn.multiway import MultiwayEncoder
from magneto.nn.packing import pack
from magneto.nn.transformer import Encoder

IMAGE, TEXT = 197, 64
# Lengths of texts: all full, or as captions and questions are, most of them short.
BATCHES = {"full": [64, 64, 64, 64], "padded": [64, 12, 18, 26]}
DESIGNS: dict[str, dict[str, Any]] = {
    "decoupled": {"experts": "decoupled"},
    "shared attention": {"experts": "shared_attention"},
    "shared attention, fusion": {"experts": "shared_attention", "vision_language_layers": 1},
}


@dataclass(frozen=True)
class Contender:
    """A model, and a call that gives the sum of its features over a batch's real tokens."""

    name: str
    model: torch.nn.Module
    run: Callable[[], Tensor]


def contenders(lengths: list[int], width: int, layers: int) -> list[Contender]:
    """Return the one-way encoder, and every design, over the same tokens."""
    shape: dict[str, Any] = {"width": width, "layers": layers, "heads": 16, "ffn_width": 4 * width}
    torch.manual_seed(0)
    vision = torch.randn(len(lengths), IMAGE, width)
    language = torch.randn(len(lengths), TEXT, width)
    mask = torch.arange(IMAGE + TEXT) < IMAGE + torch.tensor(lengths)[:, None]
    whole = bool(mask.all())
    both, packing = torch.cat((vision, language), 1), pack([IMAGE] * len(lengths), lengths)
    packed = torch.cat([text[:length] for text, length in zip(language, lengths, strict=True)])
    plain = Encoder(TransformerConfig(**shape))

    def one_way() -> Tensor:
        return (plain(both, None if whole else mask) * mask[..., None]).square().sum()

    made = [Contender("one-way", plain, one_way)]
    for name, design in DESIGNS.items():
        model = MultiwayEncoder(MultiwayConfig(**shape, **design))

        def run(model: MultiwayEncoder = model) -> Tensor:
            features = model(vision.flatten(0, 1), packed, packing)
            return features[0].square().sum() + features[1].square().sum()

        made.append(Contender(name, model, run))
    return made


def step(one: Contender) -> float:
    """Return the processor seconds of forward and backward."""
    one.model.zero_grad()
    start = time.process_time()
    one.run().backward()
    return time.process_time() - start


def kept(one: Contender) -> int:
    """Return the bytes that the graph keeps for the backward pass, beside parameters."""
    held: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in one.model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = one.run()
    loss.backward()
    return sum(held.values())


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per batch and contender."""
    rows = []
    for batch, lengths in BATCHES.items():
        made = contenders(lengths, args.width, args.layers)
        seconds: dict[str, list[float]] = {one.name: [] for one in made}
        for number in range(args.rounds + 1):
            for one in made[number % len(made) :] + made[: number % len(made)]:
                seconds[one.name] += [step(one)] * (number > 0)
            print(f"{batch}: round {number} of {args.rounds}", file=sys.stderr)
        base = seconds["one-way"]
        for one in made:
            own = seconds[one.name]
            low, ratio, high = statistics.quantiles(
                [a / b for a, b in zip(own, base, strict=True)], n=4, method="inclusive"
            )
            rows.append({
                "batch": batch, "contender": one.name,
                "padding": 1 - sum(lengths) / (TEXT * len(lengths)),
                "parameters": sum(p.numel() for p in one.model.parameters()),
                "median_ms": 1e3 * statistics.median(own), "ratio": ratio,
                "ratio_quartiles": [low, high], "kept_mib": kept(one) / 2**20,
            })  # fmt: skip
    return rows


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with a table."""
    where = result["machine"]
    lines = [
        "# The multiway encoder against the one-way encoder",
        "",
        f"{result['shape']}; fp32, {where['processor']}, {where['cores']} cores, "
        f"{where['threads']} thread(s), load {result['load']}; torch "
        f"{where['packages']['torch']}; commit {result['commit']}; {where['date']}.",
        "",
        f"Forward and backward, processor time, median of {result['rounds']} interleaved rounds; "
        "ratio to the one-way encoder in the same round, with quartiles. Kept: what the graph "
        "holds for the backward pass.",
        "",
        "| texts | contender | parameters | ms | ratio | quartiles | kept (MiB) |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        low, high = row["ratio_quartiles"]
        lines.append(
            f"| {row['batch']}, {row['padding']:.0%} padding | {row['contender']} | "
            f"{row['parameters']:,} | {row['median_ms']:.0f} | {row['ratio']:.3f} | "
            f"{low:.3f} to {high:.3f} | {row['kept_mib']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark; return and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, default=544, help="the paper's")
    parser.add_argument("--layers", type=int, default=2, help="of the paper's 24")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args(words)
    where = machine(torch.device("cpu"))
    before = os.getloadavg()[0]
    rows = measure(args)
    result = {
        "name": "multiway-cpu",
        "shape": f"{len(BATCHES['full'])} pairs of {IMAGE} vision and up to {TEXT} language "
                 f"tokens, width {args.width}, {args.layers} layers, 16 heads, Sub-LN",
        "rounds": args.rounds,
        "load": f"{before:.1f} before, {os.getloadavg()[0]:.1f} after",
        "commit": where["commit"] or "unknown",
        "machine": where,
        "rows": rows,
    }  # fmt: skip
    write_result(result, markdown(result), args.out)
    return result


if __name__ == "__main__":
    main()
