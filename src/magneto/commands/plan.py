"""`magneto plan` and `magneto train --dry-run`: what a training takes, before it is begun.

The plan follows a step by its shapes alone; a dry run takes some steps on the device that is here.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from magneto.commands.shared import Parser, aligned, is_main_process, print_json
from magneto.progress import ProgressBars, clock
from magneto.recipe import Recipe, load_recipe
from magneto.training.logging import PEAKS, nominal_peaks

if TYPE_CHECKING:
    from torch import nn

    from magneto.lab.plan import Steps, Way
    from magneto.training.config import TrainingConfig

# What is assumed where nothing is said; each is an option.
GPU, UTILISATION, MEMORY, PER_NODE = "H100", 0.4, 80.0, 8
GB = 1e9
# What becomes of activations, by whether layers are recomputed.
NAMES = {False: "kept", True: "recomputed"}
# Steps of a dry run that are timed after a first one, which is slower; fewer if they take more
# seconds in all.
STEPS = 5
SECONDS = 20.0


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "plan",
        "Say what a recipe takes on so many GPUs: memory by what it is for, bytes that GPUs send "
        "each\nother, steps, operations and hours; and options with which it fits. Nothing is read "
        "and nothing is\ncomputed: batches are the largest that the recipe allows. `magneto train "
        "RECIPE --dry-run` takes\nsome steps instead.",
        "magneto plan causal-lm/24l --gpus 64 --gpu-memory 80",
        recipe=True,
    )
    add = made.add_argument
    add("recipe", help="name (see `magneto recipes`) or path of a recipe")
    add("--gpus", type=int, default=1, metavar="N", help="how many GPUs (1)")
    add("--gpus-per-node", type=int, default=PER_NODE, metavar="N", help=f"({PER_NODE})")
    add("--gpu-memory", type=float, default=MEMORY, metavar="GB", help=f"of each ({MEMORY:g})")
    add("--gpu", default=GPU, choices=list(PEAKS), help=f"whose rate is taken ({GPU})")
    add("--peak-tflops", type=float, metavar="RATE", help="the rate itself, in 1e12 a second")
    add("--utilisation", type=float, default=UTILISATION, metavar="SHARE",
        help=f"share of that rate that is reached; an assumption ({UTILISATION})")  # fmt: skip
    add("--examples", type=int, metavar="N", help="of an epoch, where the recipe counts epochs")
    return made.with_json()


def main(words: Sequence[str]) -> int:
    """Run `magneto plan`."""
    made = parser()
    given, overrides = made.parse_with_overrides(words)
    for name in ("gpus", "gpus_per_node", "gpu_memory", "peak_tflops", "examples"):
        value = getattr(given, name)
        if value is not None and not 0 < value < math.inf:
            made.error(f"--{name.replace('_', '-')} must be above 0, not {value}")
    if not 0 < given.utilisation <= 1:
        made.error(f"--utilisation must be above 0 and at most 1, not {given.utilisation}")
    recipe = load_recipe(given.recipe, overrides)
    # After mistakes are answered: this imports torch.
    from magneto.lab.plan import Cluster, advise, micro_batch, recomputed, trace_both, way

    def build(changes: Mapping[str, Any]) -> Recipe:
        return load_recipe(given.recipe, {**overrides, **changes})

    config = in_known_steps(recipe.training, given.examples)
    cluster = Cluster(given.gpus, given.gpus_per_node, given.gpu_memory * GB)
    task, report = recipe.build_task(), ProgressBars()
    traced = trace_both(build, micro_batch(config, cluster), gpu=True, progress=report.say)
    report.finish()
    ways = [way(task, traced, config, cluster, strategy, again)
            for again in sorted(traced) for strategy in cluster.strategies()]  # fmt: skip
    chosen = advise(task, traced, config, cluster)
    found = {
        **{"recipe": given.recipe, "gpus": given.gpus, "nodes": cluster.nodes, "unit": task.unit},
        **summary(given, traced, config),
        **{"gpu_memory": cluster.memory, "recompute": recomputed(recipe)},
        **{"too_few": config.batch_size < cluster.gpus * config.gradient_accumulation_steps},
        "ways": [asdict(each) for each in ways],
        "advice": chosen and {**asdict(chosen), "options": chosen.options()},
    }
    if given.json:
        print_json(found)
    else:
        print("\n".join([*lines(found, ways), advice(found, chosen)]))
    return 0


def in_known_steps(config: TrainingConfig, examples: int | None) -> TrainingConfig:
    """Return the configuration with its epochs as steps, if the examples are known.

    Without them it has one step, and its epochs: a plan reads no data.
    """
    if config.epochs is None:
        return config
    steps = math.ceil(config.epochs * (examples or 0) / config.batch_size)
    known = replace(config, epochs=None, warmup_ratio=None, steps=max(steps, 1))
    return known if steps else replace(known, steps=1, epochs=config.epochs)


def summary(
    given: argparse.Namespace, traced: Mapping[bool, Steps], config: TrainingConfig
) -> dict[str, Any]:
    """Return what does not depend on how the training is spread, as plain values."""
    step, named = traced[False].small, {NAMES[again]: steps for again, steps in traced.items()}
    peaks = nominal_peaks(given.gpu)
    assert peaks is not None  # the parser knows no other names
    peak = (given.peak_tflops or peaks[config.precision != "bf16"] / 1e12) * 1e12
    # An example is not cut: no more GPUs than these have work.
    rate = peak * given.utilisation * min(given.gpus, config.batch_size)
    flops = {name: steps.flops * config.batch_size for name, steps in named.items()}
    seconds = {name: each / rate for name, each in flops.items()}
    steps = config.steps if config.epochs is None else None
    return {
        "parameters": step.state.weights // 4,
        "state": asdict(step.state),
        "fixed": step.fixed,
        "micro_batch": traced[False].examples,
        "activations": {name: {"kept": s.small.kept, "peak": s.small.peak}
                        for name, s in named.items()},
        "steps": steps,
        "batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "precision": config.precision,
        "step_flops": flops,
        "peak_flops": peak,
        "utilisation": given.utilisation,
        "step_seconds": seconds,
        "hours": steps and {name: each * steps / 3600 for name, each in seconds.items()},
    }  # fmt: skip


def lines(found: Mapping[str, Any], ways: Sequence[Way]) -> list[str]:
    """Write a plan for people."""
    from magneto.lab.plan import RESERVE
    from magneto.training.model import gigabytes as size

    parts = ", ".join(f"{name} {size(value)}" for name, value in found["state"].items() if value)
    fixed = f"; fixed {size(found['fixed'])}" if found["fixed"] > 1e6 else ""
    rows = [
        ("model", f"{found['parameters']:,} parameters; {parts}{fixed}"),
        ("batch", f"{found['batch_size']:,} examples a step; {found['micro_batch']} in a GPU's "
         f"micro-batch, {found['gradient_accumulation_steps']} of them a step"),
    ]  # fmt: skip
    for name, each in found["activations"].items():
        flops, seconds = found["step_flops"][name], found["step_seconds"][name]
        rows.append((name, f"{size(each['kept'])} of activations, {size(each['peak'])} at the peak,"
                     f" gradients included; {flops:.3g} FLOP a step, {seconds:.3g} s"))  # fmt: skip
        if found["hours"]:
            rows.append(("", f"{flops * found['steps']:.3g} FLOP in {found['steps']:,} steps, "
                         f"{found['hours'][name]:,.3g} hours"))  # fmt: skip
    rows.append(
        (
            "",
            f"at {found['utilisation']:.0%} (an assumption) of "
            f"{found['peak_flops'] / 1e12:g} TFLOP/s a GPU, exchange hidden behind it",
        )
    )
    if not found["hours"]:
        rows.append(("", "the recipe counts epochs: --examples N says how many steps they are"))
    made = labelled(rows)
    if found["too_few"]:
        made.append(f"a batch of {found['batch_size']} can't be cut in {found['gpus']} GPUs x "
                    f"{found['gradient_accumulation_steps']} micro-batches: raise "
                    "training.batch_size, or take fewer GPUs; below, each has 1")  # fmt: skip
    cells = [["sharing", "activations", "a GPU needs", f"fits {found['gpu_memory'] / GB:g} GB",
              "largest micro-batch", "sent in a step", "to other nodes"]]  # fmt: skip
    for each in ways:
        fits = "refused" if each.refused else "yes" if each.fits else "no"
        sent = [size(amount) if amount else "" for amount in (each.within, each.between)]
        cells.append([each.strategy, NAMES[each.recompute], size(each.needed), fits,
                      str(each.largest), *sent])  # fmt: skip
    refused = dict.fromkeys(each.refused for each in ways if each.refused)
    reserve = f"what fits leaves {RESERVE:.0%} of the memory to libraries and gaps"
    return [*made, "", aligned(cells), "", *refused, reserve]


def advice(found: Mapping[str, Any], chosen: Way | None) -> str:
    """Write what to do."""
    from magneto.training.model import gigabytes

    if chosen is None:
        return (f"advice: nothing fits {found['gpu_memory'] / GB:g} GB, not even one example at a "
                "time with layers recomputed: take more GPUs or more memory, or a shorter length "
                "or a smaller model")  # fmt: skip
    few = found["batch_size"] < found["gpus"]
    larger = f" --training.batch_size {found['gpus']}, or more," if few else ""
    other = f" or no more than {found['batch_size']} GPUs" if few else ""
    return f"advice: {chosen.options()}{larger}{other}  ({gigabytes(chosen.needed)} a GPU)"


def dry_run(recipe: Recipe, report: ProgressBars, as_json: bool) -> int:
    """Run `magneto train RECIPE --dry-run`."""
    found = try_steps(recipe, report)
    if as_json and is_main_process():
        print_json(found)
    elif is_main_process():
        print("\n".join([*labelled(tried_rows(found)), "no run was written"]))
    return 0


def try_steps(recipe: Recipe, report: ProgressBars) -> dict[str, Any]:
    """Take some steps of a recipe, without a directory, and return what all of them would take.

    The data is read, and tokenised into the cache, as for a training. A model whose weights and
    optimizer alone fill the memory is not built: of it nothing is timed.
    """
    import torch

    from magneto.training.config import in_steps
    from magneto.training.distributed import join_world, keep_freed_memory
    from magneto.training.loop import build_state, train_step
    from magneto.training.model import free_memory, peak_memory, state_bytes

    task, seconds = recipe.build_task(), []
    with join_world(recipe.training) as world, keep_freed_memory(world.device):
        task.prepare(report)
        examples = task.train_stream(recipe.training.batch_size, recipe.seed).examples
        config = in_steps(recipe.training, examples)
        with torch.device("meta"):
            model = task.build_model()
        found = {
            "device": str(world.device),
            "unit": task.unit,
            "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "parts": parameters_by_part(model),
            "state_bytes": state_bytes(model, config).total,
            "steps": config.steps,
            "batch_size": config.batch_size,
            "examples": examples,
        }
        free = free_memory(world.device)
        if free is not None and found["state_bytes"] >= free:
            return found
        nowhere = Path(os.devnull) / "run"  # a state begins before anything is written
        state = build_state(task, config, nowhere, recipe.seed, world, report)
        with closing(state):  # Ctrl-C ends it at once: there is nothing to keep
            batches = state.batches.start(0)
            while len(seconds) <= STEPS and (sum(seconds) <= SECONDS or len(seconds) < 2):
                started = time.perf_counter()
                train_step(state, next(batches))
                state.read_pending()  # waits for the device
                state.pending = []
                seconds.append(time.perf_counter() - started)
                report.update("trying steps", len(seconds), STEPS + 1)
        report.finish()
        step_seconds = median(seconds[1:])
        each = state.throughput.units * world.world_size / len(seconds)
        return found | {
            "seconds_per_step": step_seconds,
            "timed_steps": len(seconds) - 1,
            "seconds": step_seconds * config.steps,
            "units_per_step": each,
            "units": each * config.steps,
            "peak_bytes": peak_memory(world.device),
        }


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """Return how many trained parameters each part of a model has; shared ones count once."""
    parts, seen = dict[str, int](), set[int]()
    for name, part in model.named_children():
        own = [p for p in part.parameters() if p.requires_grad and id(p) not in seen]
        seen |= set(map(id, own))
        if own:
            parts[name] = sum(p.numel() for p in own)
    return parts


def tried_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Write what steps took for people."""
    from magneto.training.model import gigabytes

    steps, batch, device = found["steps"], found["batch_size"], found["device"]
    epochs = ""
    if found["examples"]:
        epochs = f", {steps * batch / found['examples']:.3g} epochs of {found['examples']:,}"
    state = f"{gigabytes(found['state_bytes'])} of weights, gradients and optimizer"
    rows = [
        (
            "parameters",
            f"{found['parameters']:,}: "
            + ", ".join(f"{name} {count:,}" for name, count in found["parts"].items()),
        ),
        ("steps", f"{steps:,}, each of {batch} examples{epochs}"),
    ]
    if "seconds" not in found:
        return [*rows, ("memory", f"{state}, more than is free on {device}: no step was timed")]
    return [
        *rows,
        (found["unit"], f"{found['units']:,.0f}, {found['units_per_step']:,.0f} a step"),
        ("memory", f"{state}; {gigabytes(found['peak_bytes'])} in use at most, on {device}"),
        ("time", f"{clock(found['seconds'])}, {found['seconds_per_step']:.3g} s a step "
         f"(median of {found['timed_steps']}), without evaluations and checkpoints"),
    ]  # fmt: skip


def labelled(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines with what they are about in front."""
    return [f"{name:<12}{words}" for name, words in rows]
