"""`magneto plan` and `magneto train --dry-run`: memory and time that a recipe needs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from magneto.commands.shared import (
    Parser,
    above_zero,
    aligned,
    answer,
    at_least_one,
    check_effect,
    read_as,
)
from magneto.fields import Part
from magneto.progress import ProgressBars, clock
from magneto.recipe import Recipe, load_recipe
from magneto.training.logging import PEAKS

if TYPE_CHECKING:
    from torch import nn

    from magneto.training.task import Task

GB = 1e9
NAMES = {False: "kept", True: "recomputed"}  # activations, by model.checkpoint_activations
# Timed steps of a dry run, after a first, slower one; fewer if they take longer than SECONDS.
STEPS = 5
SECONDS = 20.0


def parser() -> Parser:
    made = Parser(
        "plan",
        "Estimate the memory, floating-point operations and hours of a recipe on N GPUs, and "
        "suggest options that fit into memory. No data is read. The plan assumes the largest "
        "batches that the recipe allows. `magneto train RECIPE --dry-run` measures memory and time "
        "in a few steps.",
        "magneto plan causal-lm/24l --gpus 32 --gpu-memory 80",
        recipe=True,
    )
    add = made.add_argument
    add("recipe", help="name or path of a recipe (`magneto recipes` lists names)")
    add("--gpus", type=at_least_one, default=1, help="number of GPUs")
    add("--gpus-per-node", type=at_least_one, default=8, help="GPUs per node")
    add("--gpu-memory", type=above_zero, default=80, metavar="GB", help="memory of a GPU in GB")
    add("--gpu", choices=tuple(PEAKS), default="H100", help="GPU model, for its peak FLOP/s")
    what = "expected share of the peak FLOP/s"
    add("--utilisation", type=read_as(Part), default=0.4, metavar="SHARE", help=what)
    what = "examples per epoch, for recipes with training.epochs"
    add("--examples", type=at_least_one, help=what)
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    args, overrides = parser().parse_with_overrides(words)
    recipe = load_recipe(args.recipe, overrides)
    config, model = recipe.training, recipe.model
    if config.epochs is None:
        check_effect(words, ["examples"], "without training.epochs")
    pieces = args.gpus * config.gradient_accumulation_steps
    if config.batch_size < pieces:
        raise ValueError(
            f"a batch of {config.batch_size} is too small for {args.gpus} GPUs x "
            f"{config.gradient_accumulation_steps} micro-batches; set --training.batch_size "
            f"{pieces} or more, or lower --gpus"
        )
    # After the check of the options, because this imports torch.
    from magneto.lab.plan import Plan, micro_batch, trace_recipe, without_data
    from magneto.training.config import resolve_steps

    micro = micro_batch(config, args.gpus, config.gradient_accumulation_steps)
    traced, memory = trace_recipe(recipe, micro), args.gpu_memory * GB
    plan = Plan(recipe.build_task(), config, args.gpus, args.gpus_per_node, memory, traced)
    counted, chosen = config.epochs is None or args.examples is not None, plan.advise()
    steps = resolve_steps(config, args.examples).steps if counted else None
    peak, state = PEAKS[args.gpu][config.precision != "bf16"], traced[False][0].state
    assumed = {
        name: value
        for name, value in without_data(recipe).items()
        if name == "data.max_length"
        or (name.startswith("model.") and getattr(model, name.removeprefix("model.")) is None)
    }
    activations = {}
    for recompute, (step, _) in traced.items():
        flops = step.flops / micro * config.batch_size
        seconds = flops / (peak * args.utilisation * args.gpus)
        activations[NAMES[recompute]] = {
            "kept": step.kept, "peak": step.peak, "step_flops": flops, "step_seconds": seconds,
            "hours": steps and seconds * steps / 3600,
        }  # fmt: skip
    found = {
        "recipe": args.recipe, "assumed": assumed, "gpus": args.gpus, "gpu_memory": memory,
        "parameters": state.weights // 4, "state": asdict(state),
        "batch_size": config.batch_size, "micro_batch": micro,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "steps": steps, "peak_flops": peak, "utilisation": args.utilisation,
        "activations": activations, "ways": [asdict(way) for way in plan.ways()],
        "advice": chosen and {**asdict(chosen), "options": chosen.options()},
    }  # fmt: skip
    return answer(args, found, plan_lines(found))


def plan_lines(found: Mapping[str, Any]) -> list[str]:
    from magneto.lab.plan import RESERVE
    from magneto.training.model import gigabytes as size

    parts = ", ".join(f"{name} {size(value)}" for name, value in found["state"].items() if value)
    rows = [
        ("model", f"{found['parameters']:,} parameters; {parts}"),
        ("batch", f"{found['batch_size']:,} examples per step; on each GPU, micro-batch size "
         f"{found['micro_batch']}, gradient accumulation {found['gradient_accumulation_steps']}; "
         f"{'steps unknown' if not found['steps'] else format(found['steps'], ',') + ' steps'}"),
    ]  # fmt: skip
    for name, each in found["activations"].items():
        hours = f", {each['hours']:,.3g} hours in all" if found["steps"] else ""
        rows.append(("activations", f"{name}: {size(each['kept'])}, peak with gradients "
                     f"{size(each['peak'])}; {each['step_flops']:.3g} FLOP and "
                     f"{each['step_seconds']:.3g} s per step{hours}"))  # fmt: skip
    rows.append(("assumed", f"{found['utilisation']:.0%} of {found['peak_flops'] / 1e12:g} TFLOP/s "
                 "per GPU; communication fully overlaps with computation"))  # fmt: skip
    if found["assumed"]:
        sizes = ", ".join(f"{name} {value}" for name, value in found["assumed"].items())
        rows.append(("", f"{sizes} (training derives these values from the data)"))
    if not found["steps"]:
        rows.append(("", "the recipe sets training.epochs: give --examples N (examples per epoch) "
                     "to see the hours"))  # fmt: skip
    memory = f"{found['gpu_memory'] / GB:g} GB"
    table = [["sharding", "activations", "per GPU", f"fits {memory}", "largest micro-batch"]]
    for way in found["ways"]:
        table.append([way["strategy"], NAMES[way["recompute"]], size(way["needed"]),
                      "yes" if way["fits"] else "no", str(way["largest"])])  # fmt: skip
    advice = (
        f"nothing fits in {memory}, even with one example at a time and recomputed "
        "activations; use more or larger GPUs, shorter examples or a smaller model"
    )
    if chosen := found["advice"]:
        advice = f"{chosen['options']}  ({size(chosen['needed'])} per GPU)"
    reserve = f"{RESERVE:.0%} of the memory is reserved for libraries and fragmentation"
    lines = [f"{name:<12}{words}" for name, words in rows]
    return [*lines, "", aligned(table), "", reserve, f"advice: {advice}"]


def dry_run(args: Any, recipe: Recipe, progress: ProgressBars) -> int:
    found = try_steps(recipe, recipe.build_task(), progress)
    return answer(args, found, [*dry_run_lines(found), "no run was written"])


def try_steps(recipe: Recipe, task: Task, progress: ProgressBars) -> dict[str, Any]:
    """Train a few steps; return the memory and time of the whole training.

    The data is prepared and cached. No run directory is created.
    """
    from magneto.training.distributed import training_process, unwrap
    from magneto.training.logging import read_steps
    from magneto.training.loop import build_state, train_step
    from magneto.training.model import check_memory, peak_memory, state_bytes

    seconds = list[float]()
    with training_process(recipe.training) as world:
        task.prepare(progress)
        check_memory(task, recipe.training, world, recipe.seed)
        nowhere = Path(os.devnull, "run")
        state = build_state(task, recipe.training, nowhere, recipe.seed, world, progress)
        with closing(state):
            batches = state.batches.start(0)
            while len(seconds) <= STEPS and (sum(seconds) <= SECONDS or len(seconds) < 2):
                started = time.perf_counter()
                train_step(state, next(batches))
                read_steps(state.pending)  # waits for the device
                state.pending = []
                seconds.append(time.perf_counter() - started)
                progress.update("trying steps", len(seconds), STEPS + 1)
        progress.finish()
        step_seconds, steps = median(seconds[1:]), state.config.steps
        units = state.throughput.units * world.world_size / len(seconds)
        return {
            "device": str(world.device),
            "unit": task.unit,
            "parameters": sum(parameter.numel() for parameter in state.parameters),
            "parts": parameters_by_part(unwrap(state.model)),
            "state_bytes": state_bytes(state.model, state.config).total,
            "peak_bytes": peak_memory(world.device),
            "steps": steps,
            "batch_size": state.config.batch_size,
            "examples": state.stream.examples,
            "units_per_step": units,
            "units": units * steps,
            "timed_steps": len(seconds) - 1,
            "seconds_per_step": step_seconds,
            "seconds": step_seconds * steps,
        }


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    parts, seen = dict[str, int](), set[Any]()
    for name, part in model.named_children():
        own = {p for p in part.parameters() if p.requires_grad} - seen
        seen |= own
        parts[name] = sum(p.numel() for p in own)
    return {name: count for name, count in parts.items() if count}


def dry_run_lines(found: Mapping[str, Any]) -> list[str]:
    from magneto.training.model import gigabytes

    steps, batch, epochs = found["steps"], found["batch_size"], ""
    parts = ", ".join(f"{name} {count:,}" for name, count in found["parts"].items())
    if found["examples"]:
        epochs = f", {steps * batch / found['examples']:.3g} epochs of {found['examples']:,}"
    rows = [
        ("parameters", f"{found['parameters']:,}: {parts}"),
        ("steps", f"{steps:,} of {batch} examples each{epochs}"),
        (found["unit"], f"{found['units']:,.0f}, {found['units_per_step']:,.0f} per step"),
        ("memory", f"{gigabytes(found['state_bytes'])} of weights, gradients and optimizer state; "
         f"peak {gigabytes(found['peak_bytes'])} on {found['device']}"),
        ("time", f"{clock(found['seconds'])}, {found['seconds_per_step']:.3g} s per step "
         f"(median of {found['timed_steps']}), without evaluations and checkpoints"),
    ]  # fmt: skip
    return [f"{name:<12}{words}" for name, words in rows]
