"""How a visual tokenizer's codebook is used while it is trained, by three rules side by side.

    python -m benchmarks.codebook_use --out benchmarks/results
    python -m benchmarks.codebook_use --data images/ --shape small --out benchmarks/results

The rules: that of BEiT v2's released code, in our code (k-means of the first batch, no revival);
the same after k-means of several batches; and ours, which also revives codes out of use. All else
is the same: images, order, weights, rates; and the codebook's decay of 0.9 in place of 0.99, as
runs of hundreds of steps need. Use is the share of codes that the validation images
have, perplexity how many codes, all used alike, would have the same entropy.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.training_step import write_result
from magneto.progress import ProgressBars
from magneto.recipe import load_recipe
from magneto.training.environment import environment
from magneto.training.loop import train

RULES: dict[str, dict[str, Any]] = {
    "released": {"model.k_means_patches": 1, "model.revive_below": 0.0},
    "k-means of several batches": {"model.k_means_patches": 10, "model.revive_below": 0.0},
    "ours, with revival": {"model.k_means_patches": 10},
}
SHAPES: dict[str, dict[str, Any]] = {
    "check": {"model.width": 16, "model.layers": 1, "model.heads": 2, "model.codes": 16},
    "digits": {"model.codes": 512, "model.teacher": "hog"},
    "small": {
        "model.width": 64, "model.layers": 2, "model.heads": 4, "model.ffn_width": 256,
        "model.image_size": 32, "model.patch_size": 4, "model.channels": 3,
        "model.max_length": 64, "model.codes": 512, "model.code_width": 16,
        "model.teacher": "hog", "training.batch_size": 32,
    },
}  # fmt: skip
METRICS = ("codebook_use", "codebook_perplexity", "cosine")


def measure(rule: str, seed: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Train a tokenizer by one rule; return its metrics at each evaluation."""
    changes = {
        **SHAPES[given.shape], **RULES[rule], "seed": seed, "training.steps": given.steps,
        "training.evaluate_every": given.every, "training.save_every": 0,
        "training.tensorboard": False, "training.schedule": "constant", "training.device": "cpu",
    }  # fmt: skip
    if given.data:
        changes["data.source"] = given.data
    recipe = load_recipe("image-tokenizer/tiny", changes)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(recipe.build_task(), recipe.training, run, seed=recipe.seed,
              report=ProgressBars(quiet=True))  # fmt: skip
        lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if "validation_loss" in row]
    return [
        {"rule": rule, "seed": seed, "step": row["step"]}
        | {name: row[f"validation_{name}"] for name in METRICS}
        for row in rows
    ]


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with a table."""
    where, rows, codes = result["machine"], result["rows"], result["codes"]
    seeds = len({row["seed"] for row in rows})
    lines = [
        "# Use of a visual tokenizer's codebook",
        "",
        f"{where['processor']}, {where['threads']} threads; torch {where['packages']['torch']}; "
        f"commit {where['commit']}; {result['date']}. {codes} codes, {result['images']}; means of "
        f"{seeds} seeds.",
        "",
        "Use of the codes by the validation images in per cent / perplexity; cosine to the "
        "teacher's features at the end.",
        "",
        "| step | " + " | ".join(RULES) + " |",
        "|--:|" + "--:|" * len(RULES),
    ]
    for step in sorted({row["step"] for row in rows}):
        cells = []
        for rule in RULES:
            found = [row for row in rows if (row["rule"], row["step"]) == (rule, step)]
            use = 100 * mean(row["codebook_use"] for row in found)
            cells.append(f"{use:.1f} / {mean(r['codebook_perplexity'] for r in found):.0f}")
        lines.append(f"| {step} | " + " | ".join(cells) + " |")
    last = max(row["step"] for row in rows)
    ends = [
        [row["cosine"] for row in rows if (row["rule"], row["step"]) == (rule, last)]
        for rule in RULES
    ]
    lines.append("| cosine | " + " | ".join(f"{mean(end):.3f}" for end in ends) + " |")
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="images; by default the built-in digits")
    parser.add_argument("--shape", choices=SHAPES, default="digits")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=100, help="steps between evaluations")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--name", default="codebook-use-digits")
    parser.add_argument("--images", default="builtin:digits", help="what they are, for the page")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args(words)
    rows = [
        row
        for seed in range(1, given.seeds + 1)
        for rule in RULES
        for row in measure(rule, seed, given)
    ]
    where = environment()
    del where["command"]
    result = {
        "name": given.name,
        "rows": rows,
        "codes": SHAPES[given.shape]["model.codes"],
        "images": given.images,
        "steps": given.steps,
        "machine": where,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    write_result(result, markdown(result), given.out)


if __name__ == "__main__":
    main()
