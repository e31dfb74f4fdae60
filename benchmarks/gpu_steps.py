"""Sections of benchmarks/gpu.py on one training step: rate, other libraries, depth, kernels."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import training_step as step
from benchmarks.bench_cases import Case
from benchmarks.contenders import CASES, CONTENDERS, NOTES, build, build_ours
from benchmarks.turns import timed
from magneto.training.logging import nominal_peaks

if TYPE_CHECKING:
    from benchmarks.gpu import Bench, Found

MODES = ("eager", "compiled")
PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}
# The first so many are compiled before the others are looked at.
FIRST = 3
# Seconds to compile a layer and its backward pass, before any was timed.
COMPILING = 2.5


def rate(bench: Bench) -> Found:
    """Time matrix products in both precisions."""
    nominal = None
    if bench.device.type == "cuda":
        nominal = nominal_peaks(torch.cuda.get_device_name(bench.device))
    rows = bench.scale.matrix
    return {
        "about": f"Products of random square matrices of {rows} rows, in FLOP/s: the best of 4 "
        "timings, and the data sheet's number.",
        "rows": [
            {
                "precision": name,
                "measured": measured_rate(bench.device, dtype, rows),
                "nominal": nominal[number] if nominal else None,
            }
            for number, (name, dtype) in enumerate(PRECISIONS.items())
        ],
    }


def measured_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Return the highest rate, in FLOP/s, of products of random square matrices of `size` rows."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product, best, products = left, float("inf"), 10 if device.type != "cpu" else 1
    for _ in range(5):  # the first run warms up
        start = time.perf_counter()
        for _ in range(products):
            product = left @ right
        product[0, 0].item()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 * products / best


def step_flops(case: Case) -> float:
    """Count the operations of the matrix products of one step, forward and backward.

    Six per weight and token, with the head and without the embeddings, and attention's two
    products of length by length. All of it counts although half is masked (as in arXiv 2204.02311).
    """
    layer = 4 * case.width**2 + 2 * case.width * case.ffn_width
    weights = case.layers * layer + case.width * case.vocab_size
    attention = 2 * case.layers * case.length * case.width
    return 6.0 * case.batch * case.length * (weights + attention)


def turns(compiled: int) -> list[tuple[str, str]]:
    """Return contenders and modes in the order of their importance."""
    names = list(CONTENDERS)
    first, others = names[:FIRST], names[FIRST:]
    ordered = [(name, mode) for part in (first, others) for mode in MODES for name in part]
    return [each for each in ordered if each[1] == "eager" or each[0] in names[:compiled]]


def training_step(bench: Bench, case_name: str) -> Found:
    """Time a step of each contender in bf16, eager and compiled, until the time ends."""
    case = CASES[case_name]
    entries: list[step.Timed] = []
    compiling = COMPILING * case.layers if bench.scale.backend == "inductor" else 0.0
    reserve = 0.15 * bench.left()  # for the rounds
    for name, mode in turns(bench.scale.compiled):
        if entries and bench.left() - reserve < (compiling if mode == "compiled" else 0.0):
            bench.left_out.append(f"{name}, {mode}: no time was left")
            continue
        began = time.monotonic()
        try:
            entries.append(step.prepare(name, case, bench.device, mode, bench.scale.backend))
        except ImportError as error:
            if mode == "eager":
                bench.left_out.append(f"{name}: {error.name or error} is not installed")
        except torch.OutOfMemoryError:
            bench.left_out.append(f"{name}, {mode}, and all after it: not enough memory")
            break
        if mode == "compiled":
            compiling = time.monotonic() - began
    step.measure(entries, bench.scale.rounds, bench.device, bench.until)
    rows = [shares(bench, entry.row(case.batch * case.length), case) for entry in entries]
    return {
        "about": f"{case.describe()}; bf16 autocast over fp32 weights, fused AdamW; medians of "
        f"interleaved rounds. {step_flops(case) / 1e12:,.4f} TFLOP of matrix products a step; the "
        "model FLOPs utilisation (MFU) is their share of the rate measured above, and of the "
        "nominal one.",
        "rows": sorted(rows, key=lambda row: (row["mode"] == "eager", row["median_ms"])),
        "notes": [{"contender": name, "note": note} for name, note in NOTES.items()],
    }


def shares(bench: Bench, row: Found, case: Case) -> Found:
    """Add to a row its shares of the measured and of the nominal rate."""
    rates = bench.found.get("rate", {}).get("rows", [])
    peaks = next((each for each in rates if each["precision"] == "bf16"), {})
    done = step_flops(case) / (row["median_ms"] / 1e3)
    for name in ("measured", "nominal"):
        peak = peaks.get(name)
        row[f"MFU, {name}"] = done / peak if peak else None
    return row


def depth(bench: Bench) -> Found:
    """Time an eager bf16 step of narrow models against depth."""
    rows = []
    before = 0.0
    for layers in bench.scale.depths:
        for placement in ("sub", "pre"):
            if bench.left() < 3 * before:
                bench.left_out.append(f"{layers} layers, {placement}: no time was left")
                continue
            began = time.monotonic()
            case = replace(bench.scale.deep, layers=layers)
            torch.manual_seed(1)
            model = build_ours(case, placement).to(bench.device).train()
            take = step.make_step(model, case, bench.device, "bf16", model)
            for _ in range(2):
                timed(take, bench.device)
            seconds = [timed(take, bench.device)[0] for _ in range(5)]
            finite = all(bool(p.isfinite().all()) for p in model.parameters())
            rows.append(
                {
                    "layers": layers,
                    "placement": placement,
                    "median_ms": 1e3 * statistics.median(seconds),
                    "slowest_ms": 1e3 * max(seconds),
                    "ms_per_layer": 1e3 * statistics.median(seconds) / layers,
                    "finite": finite,
                }
            )
            before = time.monotonic() - began
    sizes = bench.scale.deep.describe()
    about = f"{sizes}, but for the number of layers; eager, bf16; medians of 5 steps."
    return {"about": about, "rows": rows}


def kernels(bench: Bench) -> Found:
    """Return the kernels with the most time in an eager step of Sub-LN."""
    case = CASES[bench.scale.steps[0]]
    model = build("magneto sub", case, bench.device)
    take = step.make_step(model, case, bench.device, "bf16", model)
    for _ in range(2):
        timed(take, bench.device)
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CPU, *([activity.CUDA] if bench.device.type == "cuda" else [])]
    with torch.profiler.profile(activities=activities) as profile:
        timed(take, bench.device)
    key = "self_device_time_total" if bench.device.type == "cuda" else "self_cpu_time_total"
    # On CUDA the profiler lists an operation with the time of its kernels, and the kernels too.
    events: list[Any] = [
        event
        for event in profile.key_averages()
        if event.device_type.name == bench.device.type.upper()
    ]
    events.sort(key=lambda event: -getattr(event, key))
    whole = sum(getattr(event, key) for event in events)
    return {
        "about": "An eager step of Sub-LN, the twelve that take longest.",
        "rows": [
            {"kernel": e.key, "calls": e.count, "ms": getattr(e, key) / 1e3,
             "share": getattr(e, key) / whole}
            for e in events[:12]
        ]
    }  # fmt: skip
