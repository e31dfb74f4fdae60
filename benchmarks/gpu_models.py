"""Sections of benchmarks/gpu.py on whole models: training and generation."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import decoding as beams
from benchmarks.contenders import Shape, build_gpt2, build_ours
from benchmarks.training_step import ROOT, wait
from magneto.language.models import LanguageModel
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


def documentation(folder: Path) -> str:
    """Write this project's documentation as one text with a record per paragraph; return its path.

    With a few whole pages as records the validation split could be empty.
    """
    pages = sorted((ROOT / "docs").rglob("*.md"))
    parts = [part for page in pages for part in page.read_text(encoding="utf-8").split("\n\n")]
    lines = [json.dumps({"text": part}) for part in parts]
    (folder / "documentation.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return str(folder / "documentation.jsonl")


def trainer(bench: Bench, placement: str, folder: Path, text: str) -> TrainingState:
    """Return the training of a byte language model at a constant rate after warm-up."""
    shape = bench.scale.model
    recipe = build_recipe(
        "benchmarks/gpu",
        {
            "task": "causal-lm",
            "seed": 1,
            "model": {
                "width": shape.width, "layers": shape.layers, "heads": shape.heads,
                "ffn_width": shape.ffn_width, "positions": "sinusoidal", "placement": placement,
            },
            "data": {"source": text, "tokenizer": "bytes", "max_length": shape.length,
                     "validation_fraction": 0.1},
            "training": {
                "steps": 10**6, "batch_size": shape.batch, "learning_rate": LEARNING_RATE,
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
        text = bench.scale.text or documentation(folder)
        loops = {
            name: stack.enter_context(closing(trainer(bench, name, folder, text)))
            for name in PLACEMENTS
        }
        batches = {name: loop.batches.start() for name, loop in loops.items()}
        rows: dict[str, Found] = {n: {"losses": [], "seconds": []} for n in loops}
        ended: dict[str, str] = {}
        slowest = 0.0
        for _ in range(bench.scale.turns):
            began = time.monotonic()
            for name in [name for name in loops if name not in ended]:
                reason = take_turn(loops[name], batches[name], rows[name])
                if reason:
                    ended[name] = reason
            slowest = max(slowest, time.monotonic() - began)
            # A tenth of the time is for the evaluations.
            if 0.9 * bench.left() < 2 * slowest or len(ended) == len(loops):
                break
        for name, loop in loops.items():
            rows[name] |= {"diverged": ended.get(name), "parameters": count(loop)}
            rows[name]["validation"] = run_evaluation(loop)
            rows[name]["tokens_per_second"] = speed(rows[name].pop("seconds"), bench.scale.model)
    shape = vars(bench.scale.model)
    return {"shape": shape, "learning_rate": LEARNING_RATE, "warmup_steps": WARMUP, "rows": rows}


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


def speed(turns: list[float], shape: Shape) -> float:
    """Return tokens per second of the median turn."""
    return TURN * shape.batch * shape.length / statistics.median(turns)


def count(loop: TrainingState) -> int:
    """Return the number of the model's parameters."""
    return sum(parameter.numel() for parameter in loop.parameters)


def language_model_page(found: Found) -> list[str]:
    """Return a table of training losses."""
    rows: dict[str, Found] = found["rows"]
    sizes = ", ".join(f"{name} {value}" for name, value in found["shape"].items())
    longest = max(len(row["losses"]) for row in rows.values())
    marks = sorted({max(1, longest * part // 5) for part in range(1, 6)} | {TURN})
    lines = [
        f"{sizes}; bytes, bf16, eager, AdamW, {found['warmup_steps']} steps of warm-up to "
        f"{found['learning_rate']:g}, then constant; one seed, models in turns. Training losses in "
        f"nats per byte are means of the {TURN} steps before.",
        "",
        "| placement | steps | " + " | ".join(f"at {mark}" for mark in marks)
        + " | validation, bits per byte | tokens/s | ended |",
        "|---|--:|" + "--:|" * len(marks) + "--:|--:|---|",
    ]  # fmt: skip
    for name, row in rows.items():
        losses = row["losses"]
        means = [
            f"{statistics.fmean(losses[max(0, mark - TURN) : mark]):.3f}"
            if mark <= len(losses)
            else ""
            for mark in marks
        ]
        bits = row["validation"]["bits_per_byte"]
        lines.append(
            f"| {name} | {len(losses)} | {' | '.join(means)} | {bits:.3f} | "
            f"{row['tokens_per_second']:,.0f} | {row['diverged'] or ''} |"
        )
    return [*lines, ""]


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
    found: Found = {"shape": vars(bench.scale.written), "tokens": bench.scale.tokens, "rows": rows}
    if bench.left() < 3 * before:
        bench.left_out.append("beam search: no time was left")
        return found
    few = {"tokens": 4} if bench.device.type == "cpu" else {}
    found["beam_search"] = beams.beam_search(
        bench.scale.decoding, bench.device, ["Marian"], [1, 32], **few
    )
    return found


def writers(bench: Bench) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return the models and caches for generation."""
    from magneto import hf

    shape = bench.scale.written
    torch.manual_seed(1)
    core = build_ours(shape, "sub")
    assert isinstance(core, LanguageModel)
    ours: Any = hf.MagnetoForCausalLM(hf.MagnetoConfig.of(core.config), core)
    theirs: Any = build_gpt2(shape)
    ours, theirs = (model.to(bench.device).eval() for model in (ours, theirs.model))
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
    seconds = []
    for _ in range(4):
        wait(bench.device)
        began = time.perf_counter()
        with torch.autocast(bench.device.type, torch.bfloat16):
            model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                eos_token_id=None,
                **fixed,
                **settings,
            )
        wait(bench.device)
        seconds.append(time.perf_counter() - began)
    made = batch * bench.scale.tokens
    return {"tokens_per_second": made / statistics.median(seconds[1:]), "first": seconds[0]}


def decoding_page(found: Found) -> list[str]:
    """Return tables of generation and of beam search."""
    sizes = ", ".join(f"{k} {v}" for k, v in found["shape"].items() if k not in ("batch", "length"))
    lines = [
        f"{sizes}; {found['tokens']} tokens, greedy, bf16 autocast; medians of 3 turns.",
        "",
        "| model | batch | tokens/s |",
        "|---|--:|--:|",
        *(
            f"| {r['model']} | {r['batch']} | {r['tokens_per_second']:,.0f} |"
            for r in found["rows"]
        ),
        "",
    ]
    if "beam_search" in found:
        lines += ["Beam search in fp32 (`benchmarks/decoding.py`, 2 turns).", ""]
        lines += ["| model | contender | batch | sentences/s |", "|---|---|--:|--:|"]
        lines += [
            f"| {r['model']} | {r['contender']} | {r['batch']} | {r['sentences_per_second']:.2f} |"
            for r in found["beam_search"]
        ]
        lines.append("")
    return lines
