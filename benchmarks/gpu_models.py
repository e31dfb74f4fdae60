"""Sections of benchmarks/gpu.py on whole models: training and generation."""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import decoding as beams
from benchmarks.bench_cases import Case
from benchmarks.contenders import build_gpt2, build_ours
from benchmarks.turns import timed
from magneto.progress import ProgressBars
from magneto.recipe import build_recipe
from magneto.training.distributed import World
from magneto.training.logging import read_steps
from magneto.training.loop import TrainingState, build_state, run_evaluation, train_step

if TYPE_CHECKING:
    from benchmarks.gpu import Bench, Found

PLACEMENTS = ("sub", "pre", "post")
LEARNING_RATE = 1e-3
WARMUP = 50
# Steps that a model takes in its turn.
TURN = 10


def trainer(bench: Bench, placement: str, folder: Path) -> TrainingState:
    """Return the training of a byte language model at a constant rate after warm-up."""
    case = bench.scale.model
    recipe = build_recipe(
        "benchmarks/gpu",
        {
            "task": "causal-lm",
            "seed": 1,
            "model": {
                "width": case.width, "layers": case.layers, "heads": case.heads,
                "ffn_width": case.ffn_width, "positions": "sinusoidal", "placement": placement,
            },
            "data": {"source": "builtin:docstrings", "tokenizer": "bytes",
                     "max_length": case.length, "validation_fraction": 0.1},
            "training": {
                "steps": 10**6, "batch_size": case.batch, "learning_rate": LEARNING_RATE,
                "schedule": "constant", "warmup_steps": WARMUP, "precision": "bf16",
                "device": str(bench.device), "evaluate_limit": 8,
            },
        },
    )  # fmt: skip
    task = recipe.build_task()
    task.prepare()
    world = World(0, 1, bench.device, "none")
    report = ProgressBars(quiet=True)
    return build_state(task, recipe.training, folder, 1, world, report)


def language_model(bench: Bench) -> Found:
    """Train one deep model per placement at the same high rate, in turns, until the time ends."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        loops = {
            name: stack.enter_context(closing(trainer(bench, name, folder))) for name in PLACEMENTS
        }
        batches = {name: loop.batches.start() for name, loop in loops.items()}
        rows: dict[str, Found] = {
            name: {"placement": name, "losses": [], "seconds": [], "ended": None} for name in loops
        }
        slowest = 0.0
        for _ in range(bench.scale.turns):
            began = time.monotonic()
            going = [name for name in loops if rows[name]["ended"] is None]
            for name in going:
                rows[name]["ended"] = take_turn(loops[name], batches[name], rows[name])
            slowest = max(slowest, time.monotonic() - began)
            # A tenth of the time is for the evaluations.
            if 0.9 * bench.left() < 2 * slowest or not going:
                break
        for name, loop in loops.items():
            row = rows[name]
            row |= {"parameters": count(loop), "steps": len(row["losses"])}
            row["bits_per_byte"] = run_evaluation(loop)["bits_per_byte"]
            row["tokens_per_second"] = speed(row.pop("seconds"), bench.scale.model)
    longest = max(row["steps"] for row in rows.values())
    for mark in sorted({max(1, longest * part // 5) for part in range(1, 6)} | {TURN}):
        for row in rows.values():
            some = row["losses"][max(0, mark - TURN) : mark]
            row[f"loss at {mark}"] = statistics.fmean(some) if mark <= row["steps"] else None
    about = (
        f"{bench.scale.model.describe()}; bytes, bf16, eager, AdamW, {WARMUP} steps of warm-up to "
        f"{LEARNING_RATE:g}, then constant; one seed, models in turns. Training losses in nats per "
        f"byte are means of the {TURN} steps before; bits per byte are of validation."
    )
    return {"about": about, "rows": [*rows.values()]}


def take_turn(loop: TrainingState, batches: Any, row: Found) -> str | None:
    """Take some steps; return why the run diverged, or None."""
    began = time.perf_counter()
    for _ in range(TURN):
        train_step(loop, next(batches))
    steps, loop.pending = read_steps(loop.pending), []
    row["seconds"].append(time.perf_counter() - began)
    losses = [step["loss"] / max(step["count"], 1) for step in steps]
    row["losses"] += losses
    return next((reason for loss in losses if (reason := loop.detector.update(loss))), None)


def speed(turns: list[float], case: Case) -> float:
    """Return tokens per second of the median turn."""
    return TURN * case.batch * case.length / statistics.median(turns)


def count(loop: TrainingState) -> int:
    """Return the number of the model's parameters."""
    return sum(parameter.numel() for parameter in loop.parameters)


def decoding(bench: Bench) -> Found:
    """Time greedy generation by kind of cache, then beam search."""
    rows = []
    before = 0.0
    for batch in (1, 32):
        for name, (model, settings) in writers(bench).items():
            if bench.left() < 1.5 * before:
                bench.left_out.append(f"{name}, batch {batch}: no time was left")
                continue
            began = time.monotonic()
            rows.append({"model": name, "batch": batch, **written(bench, model, settings, batch)})
            before = time.monotonic() - began
    about = (
        f"{bench.scale.written.describe()}; {bench.scale.tokens} tokens, greedy, bf16 autocast; "
        "medians of 3 turns. Beam search in fp32 (`benchmarks/decoding.py`, 2 turns)."
    )
    found: Found = {"about": about, "rows": rows}
    if bench.left() < 3 * before:
        bench.left_out.append("beam search: no time was left")
        return found
    few = {"tokens": 4} if bench.device.type == "cpu" else {}
    found["beam_search"] = beams.beam_search(bench.scale.translated, bench.device, [1, 32], **few)
    return found


def writers(bench: Bench) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return the models and caches for generation."""
    from magneto import hf

    case = bench.scale.written
    torch.manual_seed(1)
    core = build_ours(case, "sub")
    ours: Any = hf.MagnetoForCausalLM(hf.MagnetoConfig.of(core.config), core)
    ours, theirs = (model.to(bench.device).eval() for model in (ours, build_gpt2(case)))
    return {
        "magneto sub, growing cache": (ours, {}),
        "magneto sub, static cache": (ours, {"cache_implementation": "static"}),
        "transformers GPT-2, growing cache": (theirs, {}),
    }


def written(bench: Bench, model: Any, settings: dict[str, Any], batch: int) -> Found:
    """Time three turns of generation after one warm-up turn."""
    generator = torch.Generator().manual_seed(2)
    prompt = torch.randint(2, bench.scale.written.vocab_size, (batch, 8), generator=generator)
    prompt = prompt.to(bench.device)
    fixed = {"max_new_tokens": bench.scale.tokens, "do_sample": False, "pad_token_id": 0}

    def turn() -> None:
        with torch.autocast(bench.device.type, torch.bfloat16):
            model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                eos_token_id=None,
                **fixed,
                **settings,
            )

    seconds = [timed(turn, bench.device)[0] for _ in range(4)]
    made = batch * bench.scale.tokens
    return {"tokens_per_second": made / statistics.median(seconds[1:]), "first": seconds[0]}
