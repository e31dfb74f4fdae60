"""Time a step of the multiway encoder against the one-way encoder of equal tokens; and its memory.

    python -m benchmarks.multiway

Forward and backward, and with AdamW's step after them, in processor time, since other work on the
machine stretches the clock. Contenders take turns. Memory is what the graph keeps for the backward
pass, counted tensor by tensor, each storage once, without parameters; and the most that forward and
backward hold at once, gradients among it. Padding is the share of a padded batch's places at which
no token stands: what the one-way encoder reads there, the multiway encoder does not.
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

from benchmarks.cross_entropy import peak_bytes
from benchmarks.training_step import ROOT, machine, write_result
from magneto.nn.config import MultiwayConfig, TransformerConfig
from magneto.nn.multiway import MultiwayEncoder
from magneto.nn.packing import pack
from magneto.nn.transformer import Encoder

IMAGE, TEXT = 197, 64
# Vision and language tokens of each sample: pairs with full texts; pairs whose texts are as short
# as captions and questions mostly are; and thirds of images, pairs and texts, as in pre-training.
BATCHES: dict[str, list[tuple[int, int]]] = {
    "full": [(IMAGE, TEXT)] * 4,
    "short": [(IMAGE, length) for length in (64, 12, 18, 26)],
    "thirds": [(IMAGE, 0)] * 2 + [(IMAGE, 12), (IMAGE, 26)] + [(0, TEXT)] * 2,
}
DESIGNS: dict[str, dict[str, Any]] = {
    "decoupled": {"experts": "decoupled"},
    "shared attention": {"experts": "shared_attention"},
    "shared attention, fusion": {"experts": "shared_attention", "vision_language_layers": 1},
}


@dataclass(frozen=True)
class Contender:
    """A model, its optimizer, and a call that sums its features over a batch's real tokens."""

    name: str
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    run: Callable[[], Tensor]


def contenders(sizes: list[tuple[int, int]], width: int, layers: int) -> list[Contender]:
    """Return the one-way encoder, and every design, over the same tokens."""
    shape: dict[str, Any] = {"width": width, "layers": layers, "heads": 16, "ffn_width": 4 * width}
    torch.manual_seed(0)
    images, texts = ([size[which] for size in sizes] for which in (0, 1))
    vision, language = torch.randn(sum(images), width), torch.randn(sum(texts), width)
    mask = torch.arange(max(map(sum, sizes))) < torch.tensor([sum(size) for size in sizes])[:, None]
    whole = bool(mask.all())
    both, packing = torch.zeros(*mask.shape, width), pack(images, texts)
    for row, parts in enumerate(zip(vision.split(images), language.split(texts), strict=True)):
        both[row, : sum(sizes[row])] = torch.cat(parts)
    plain = Encoder(TransformerConfig(**shape))

    def one_way() -> Tensor:
        return (plain(both, None if whole else mask) * mask[..., None]).square().sum()

    made = [Contender("one-way", plain, adamw(plain), one_way)]
    for name, design in DESIGNS.items():
        model = MultiwayEncoder(MultiwayConfig(**shape, **design))

        def run(model: MultiwayEncoder = model) -> Tensor:
            features = model(vision, language, packing)
            return features[0].square().sum() + features[1].square().sum()

        made.append(Contender(name, model, adamw(model), run))
    return made


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer that changes nothing: its time does not depend on the rate."""
    return torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0, foreach=True)


def step(one: Contender) -> tuple[float, float]:
    """Return the processor seconds of forward and backward, and of these with the optimizer."""
    one.model.zero_grad()
    start = time.process_time()
    one.run().backward()
    between = time.process_time()
    one.optimizer.step()
    return between - start, time.process_time() - start


def padding(sizes: list[tuple[int, int]]) -> float:
    """Return the share of a padded batch's places at which no token stands."""
    lengths = [sum(size) for size in sizes]
    return 1 - sum(lengths) / (max(lengths) * len(lengths))


def peak(one: Contender) -> int:
    """Return the most bytes that forward and backward hold beyond parameters and inputs."""
    one.model.zero_grad()
    return peak_bytes(lambda: one.run().backward(), torch.device("cpu"))


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
    for batch, sizes in BATCHES.items():
        made = contenders(sizes, args.width, args.layers)
        seconds: dict[str, list[tuple[float, float]]] = {one.name: [] for one in made}
        for number in range(args.rounds + 1):
            for one in made[number % len(made) :] + made[: number % len(made)]:
                seconds[one.name] += [step(one)] * (number > 0)
            print(f"{batch}: round {number} of {args.rounds}", file=sys.stderr)
        for one in made:
            network, whole = (
                compared([found[which] for found in seconds[one.name]],
                         [found[which] for found in seconds["one-way"]])
                for which in (0, 1)
            )  # fmt: skip
            rows.append({
                "batch": batch, "contender": one.name, "padding": padding(sizes),
                "parameters": sum(p.numel() for p in one.model.parameters()),
                **network, **{f"step_{name}": value for name, value in whole.items()},
                "kept_mib": kept(one) / 2**20, "peak_mib": peak(one) / 2**20,
            })  # fmt: skip
    return rows


def compared(own: list[float], base: list[float]) -> dict[str, Any]:
    """Return the median of seconds, and the quartiles of their ratio to others' in each round."""
    low, ratio, high = statistics.quantiles(
        [a / b for a, b in zip(own, base, strict=True)], n=4, method="inclusive"
    )
    return {"median_ms": 1e3 * statistics.median(own), "ratio": ratio,
            "ratio_quartiles": [low, high]}  # fmt: skip


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
        "ratio to the one-way encoder in the same round, with quartiles; and that ratio with "
        "AdamW's step. Padding: places of a padded batch without a token. Kept: what the graph "
        "holds for the backward pass; peak: the most that forward and backward hold, gradients "
        "among it.",
        "",
        "| batch | padding | contender | parameters | ms | ratio | quartiles | with AdamW "
        "| kept (MiB) | peak (MiB) |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        low, high = row["ratio_quartiles"]
        lines.append(
            f"| {row['batch']} | {row['padding']:.0%} | {row['contender']} | "
            f"{row['parameters']:,} | {row['median_ms']:.0f} | {row['ratio']:.3f} | "
            f"{low:.3f} to {high:.3f} | {row['step_ratio']:.3f} | {row['kept_mib']:.0f} | "
            f"{row['peak_mib']:.0f} |"
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
        "shape": f"samples of {IMAGE} vision and up to {TEXT} language tokens (full: 4 pairs; "
                 "short: 4 pairs with texts of 64, 12, 18 and 26; thirds: 2 images, 2 pairs, 2 "
                 f"texts), width {args.width}, {args.layers} layers, 16 heads, Sub-LN",
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
