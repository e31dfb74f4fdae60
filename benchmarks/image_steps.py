"""Time a training step of our ViT against transformers' ViT of the same shape, taking turns.

    python -m benchmarks.image_steps --shape small
    python -m benchmarks.image_steps --shape base --device cuda --precision bf16

A step is: forward, cross-entropy, backward, fused AdamW, on random images. Both have a class token,
learned positions, biases, GELU, norms before each sublayer and one last norm, no dropout, torch's
fused attention, and the same number of parameters. Results go to
benchmarks/results/image-steps-SHAPE-DEVICE.json and .md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from magneto.analysis.report.provenance import without_places
from magneto.files import plain, write_json, write_text
from magneto.training.environment import environment
from magneto.vision.classification.config import ImageClassifierConfig
from magneto.vision.classification.model import ImageClassifier

RESULTS = Path(__file__).parent / "results"
SHAPES: dict[str, dict[str, Any]] = {
    "small": {"width": 192, "layers": 6, "heads": 3, "ffn_width": 768, "image_size": 32,
              "patch_size": 4, "classes": 10},
    "base": {"width": 768, "layers": 12, "heads": 12, "ffn_width": 3072, "image_size": 224,
             "patch_size": 16, "classes": 1000},
}  # fmt: skip


def main() -> None:
    """Take turns, write the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=12, help="steps of each (12), after two more")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    given = parser.parse_args()
    models = {
        "magneto pre": ours(given.shape, "pre"),
        "magneto sub": ours(given.shape, "sub"),
        "transformers ViT": theirs(given.shape),
    }
    counts = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    assert counts["magneto pre"] == counts["transformers ViT"], counts
    steps = {name: make_step(model, given) for name, model in models.items()}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for number in range(given.rounds + 2):
        for name, step in steps.items():
            wall, processor = time.perf_counter(), time.process_time()
            step()
            if number > 1:
                spent = time.perf_counter() - wall, time.process_time() - processor
                seconds[name].append(spent)
    write(given, counts, seconds)


def ours(shape: str, placement: str) -> nn.Module:
    """Return our classifier."""
    sizes = SHAPES[shape]
    length = (sizes["image_size"] // sizes["patch_size"]) ** 2 + 1
    return ImageClassifier(ImageClassifierConfig(
        **sizes, placement=placement, positions="learned", max_length=length, pooling="first",
        class_token="learned",
    ))  # fmt: skip


def theirs(shape: str) -> nn.Module:
    """Return transformers' classifier."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = SHAPES[shape]
    config = ViTConfig(
        hidden_size=sizes["width"], num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"], intermediate_size=sizes["ffn_width"],
        image_size=sizes["image_size"], patch_size=sizes["patch_size"],
        num_labels=sizes["classes"], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )  # fmt: skip
    return Logits(ViTForImageClassification(config))


class Logits(nn.Module):
    """Returns a transformers model's logits alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images to logits."""
        return self.model(pixel_values=images).logits


def make_step(model: nn.Module, given: argparse.Namespace) -> Callable[[], float]:
    """Return a function that takes one training step and waits for it."""
    sizes, device = SHAPES[given.shape], given.device
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images = torch.randn(given.batch, 3, sizes["image_size"], sizes["image_size"], device=device)
    labels = torch.arange(given.batch, device=device) % sizes["classes"]
    kind = torch.device(device).type

    def step() -> float:
        with torch.autocast(kind, torch.bfloat16, enabled=given.precision == "bf16"):
            logits = model(images)
        loss = F.cross_entropy(logits.float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def write(
    given: argparse.Namespace, counts: dict[str, int], seconds: dict[str, list[tuple[float, float]]]
) -> None:
    """Write medians and quartiles of wall-clock and processor time."""
    rows = []
    for name, spent in seconds.items():
        wall, processor = ([1e3 * pair[i] for pair in spent] for i in (0, 1))
        low, middle, high = statistics.quantiles(wall, n=4, method="inclusive")
        rows.append({
            "model": name, "parameters": counts[name], "steps": len(spent), "median_ms": middle,
            "quartile_1_ms": low, "quartile_3_ms": high,
            "processor_median_ms": statistics.median(processor),
            "images_per_second": 1e3 * given.batch / middle,
        })  # fmt: skip
    place = RESULTS / f"image-steps-{given.shape}-{given.device}-{given.precision}"
    content = {
        "shape": SHAPES[given.shape], "batch": given.batch, "rows": rows,
        "threads": torch.get_num_threads(), "environment": environment(), "load": os.getloadavg(),
    }  # fmt: skip
    write_json(place.with_suffix(".json"), plain(without_places(content)))
    load = os.getloadavg()[0]
    lines = [
        f"# Training step of a ViT: {given.shape}, {given.device}, {given.precision}", "",
        f"Batches of {given.batch}, {torch.get_num_threads()} thread(s), load {load:.1f}. Medians, "
        "quartiles in brackets; turns are interleaved.", "",
        "| | parameters | wall ms | processor ms | images/s |", "|---|--:|--:|--:|--:|",
        *(f"| {row['model']} | {row['parameters']:,} | {row['median_ms']:.0f} "
          f"({row['quartile_1_ms']:.0f}-{row['quartile_3_ms']:.0f}) | "
          f"{row['processor_median_ms']:.0f} | {row['images_per_second']:.0f} |" for row in rows),
        "",
    ]  # fmt: skip
    write_text(place.with_suffix(".md"), "\n".join(lines))


if __name__ == "__main__":
    main()
