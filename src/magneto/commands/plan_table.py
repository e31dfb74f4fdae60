"""The plan of a training as it is printed: what it needs, in which way, and what to choose."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from magneto.analysis.plan.plan import (
    RESERVE,
    Steps,
    Way,
    advise,
    micro_batch,
    trace_both,
    way,
)
from magneto.analysis.plan.sharding import Cluster
from magneto.commands.out_of_memory import recomputed
from magneto.commands.shared import print_json
from magneto.progress import ProgressBars
from magneto.recipe import Recipe, load_recipe
from magneto.training.config import TrainingConfig
from magneto.training.memory import gigabytes
from magneto.training.peaks import nominal_peaks
from magneto.training.task import Task

GB = 1e9


def show(given: argparse.Namespace, overrides: Mapping[str, Any], recipe: Recipe) -> int:
    """Make the plan and print it; `given` is what `magneto plan` was told."""
    config = in_known_steps(recipe.training, given.examples)
    cluster = Cluster(given.gpus, given.gpus_per_node, given.gpu_memory * GB)
    report = ProgressBars()

    def build(changes: Mapping[str, Any]) -> Recipe:
        return load_recipe(given.recipe, {**overrides, **changes})

    task = recipe.build_task()
    traced = trace_both(build, micro_batch(config, cluster), not given.on_cpu, report.say)
    report.finish()
    found = summary(task, traced, config, cluster, given)
    ways = [
        way(task, traced, config, cluster, strategy, again)
        for again in sorted(traced)
        for strategy in cluster.strategies()
    ]
    chosen = advise(task, traced, config, cluster) if given.advise else None
    found |= {"recompute": recomputed(recipe), "ways": [asdict(each) for each in ways]}
    if given.advise:
        found["advice"] = asdict(chosen) | {"options": chosen.options()} if chosen else None
    if given.json:
        print_json(found)
        return 0
    print("\n".join(lines(found, ways, cluster, traced)))
    if given.advise:
        print(advice(chosen, cluster, config))
    return 0


def in_known_steps(config: TrainingConfig, examples: int | None) -> TrainingConfig:
    """Return the configuration with its epochs as steps, if the examples are known.

    Steps of 0 stand for a number that is not known: a plan reads no data.
    """
    if config.epochs is None:
        return config
    steps = math.ceil(config.epochs * (examples or 0) / config.batch_size)
    known = replace(config, epochs=None, warmup_ratio=None, steps=max(steps, 1))
    return known if steps else replace(known, steps=1, epochs=config.epochs)


def summary(
    task: Task,
    traced: Mapping[bool, Steps],
    config: TrainingConfig,
    cluster: Cluster,
    given: argparse.Namespace,
) -> dict[str, Any]:
    """Return what does not depend on how the training is spread, as plain values."""
    step = traced[False].small
    peaks = nominal_peaks(given.gpu)
    assert peaks is not None  # the parser knows no other names
    peak = (given.peak_tflops or peaks[config.precision != "bf16"] / 1e12) * 1e12
    known = config.epochs is None
    flops = {again: steps.flops * config.batch_size for again, steps in traced.items()}
    # An example is not cut: no more GPUs than these have work.
    rate = peak * given.utilisation * min(cluster.gpus, config.batch_size)
    return {
        "recipe": given.recipe,
        "gpus": cluster.gpus,
        "nodes": cluster.nodes,
        "gpu_memory": cluster.memory,
        "parameters": step.state.weights // 4,
        "state": asdict(step.state),
        "fixed": step.fixed,
        "micro_batch": traced[False].examples,
        "activations": {
            name: {"layers": s.small.layers, "around": s.small.around, "peak": s.small.peak}
            for name, s in named(traced).items()
        },
        "steps": config.steps if known else None,
        "batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "precision": config.precision,
        "step_flops": {name: flops[again] for again, name in NAMES.items() if again in flops},
        "peak_flops": peak,
        "utilisation": given.utilisation,
        "step_seconds": {NAMES[again]: each / rate for again, each in flops.items()},
        "hours": {NAMES[again]: each / rate * config.steps / 3600 for again, each in flops.items()}
        if known
        else None,
        "unit": task.unit,
        "too_few": config.batch_size < cluster.gpus * config.gradient_accumulation_steps,
    }


NAMES = {False: "kept", True: "recomputed"}


def named(traced: Mapping[bool, Steps]) -> dict[str, Steps]:
    """Return traces by what becomes of activations, as a word."""
    return {NAMES[again]: steps for again, steps in traced.items()}


def lines(
    found: dict[str, Any], ways: list[Way], cluster: Cluster, traced: Mapping[bool, Steps]
) -> list[str]:
    """Write a plan for people."""
    state, size = found["state"], gigabytes
    parts = ", ".join(f"{name} {size(value)}" for name, value in state.items() if value)
    rows = [
        ("model", f"{found['parameters']:,} parameters; {parts}"
         + (f"; fixed {size(found['fixed'])}" if found["fixed"] > 1e6 else "")),
        ("batch", f"{found['batch_size']:,} examples a step; {found['micro_batch']} in a GPU's "
         f"micro-batch, {found['gradient_accumulation_steps']} of them a step"),
    ]  # fmt: skip
    for name, each in found["activations"].items():
        rows.append((name, f"{size(each['layers'])} of activations in layers, "
                     f"{size(each['around'])} around them (embeddings, head, loss); "
                     f"{size(each['peak'])} at the peak, gradients included"))  # fmt: skip
    rows += time_rows(found)
    made = [f"{name:<12}{words}" for name, words in rows]
    if found["too_few"]:
        made.append(f"a batch of {found['batch_size']} can't be cut in {cluster.gpus} GPUs x "
                    f"{found['gradient_accumulation_steps']} micro-batches: raise "
                    "training.batch_size, or take fewer GPUs; below, each has 1")  # fmt: skip
    return [*made, "", *table(ways, cluster), "", *notes(ways)]


def time_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Write operations and hours."""
    words = []
    for name, flops in found["step_flops"].items():
        text = f"{name}: {flops:.3g} FLOP a step, {found['step_seconds'][name]:.3g} s"
        if found["hours"]:
            text += f"; {flops * found['steps']:.3g} in {found['steps']:,} steps, "
            text += f"{found['hours'][name]:,.3g} hours"
        words.append(("time", text))
    assumed = (f"at {found['utilisation']:.0%} (an assumption) of {found['peak_flops'] / 1e12:g} "
               f"TFLOP/s a GPU, exchange hidden behind it")  # fmt: skip
    words.append(("", assumed))
    if not found["hours"]:
        words.append(("", "the recipe counts epochs: --examples N says how many steps they are"))
    return words


def table(ways: list[Way], cluster: Cluster) -> list[str]:
    """Write what each way takes."""
    header = ["sharing", "activations", "a GPU needs", f"fits {cluster.memory / GB:g} GB",
              "largest micro-batch", "sent in a step", "to other nodes"]  # fmt: skip
    rows = [header]
    for each in ways:
        fits = "no" if not each.fits else "yes"
        sent = gigabytes(each.within) if each.within else ""
        between = gigabytes(each.between) if each.between else ""
        fits = "refused" if each.refused else fits
        rows.append([each.strategy, NAMES[each.recompute], gigabytes(each.needed), fits,
                     str(each.largest), sent, between])  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in rows]


def notes(ways: list[Way]) -> list[str]:
    """Say what the table leaves out, and why a task refuses a way."""
    refused = dict.fromkeys(each.refused for each in ways if each.refused)
    return [*refused, f"what fits leaves {RESERVE:.0%} of the memory to libraries and gaps"]


def advice(chosen: Way | None, cluster: Cluster, config: TrainingConfig) -> str:
    """Write what to do."""
    if chosen is None:
        return (f"advice: nothing fits {cluster.memory / GB:g} GB, not even one example at a time "
                "with layers recomputed: take more GPUs or more memory, or a shorter length or a "
                "smaller model")  # fmt: skip
    few = config.batch_size < cluster.gpus
    larger = f" --training.batch_size {cluster.gpus}, or more," if few else ""
    other = f" or no more than {config.batch_size} GPUs" if few else ""
    return f"advice: {chosen.options()}{larger}{other}  ({gigabytes(chosen.needed)} a GPU)"
