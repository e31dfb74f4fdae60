"""`magneto plan` and `magneto train --dry-run`: what a training takes, before it is begun.

The plan follows a step by its shapes alone; a dry run takes some steps on the device that is here.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from magneto.commands.shared import Parser, aligned, is_main_process, print_json
from magneto.progress import ProgressBars, clock
from magneto.recipe import Recipe, load_recipe
from magneto.training.peaks import PEAKS, nominal_peaks

if TYPE_CHECKING:
    from magneto.lab.plan.plan import Steps, Way
    from magneto.lab.plan.sharding import Cluster
    from magneto.training.config import TrainingConfig

# What is assumed where nothing is said; each is an option.
GPU, UTILISATION, MEMORY, PER_NODE = "H100", 0.4, 80.0, 8
GB = 1e9
# What becomes of activations, by whether layers are recomputed.
NAMES = {False: "kept", True: "recomputed"}


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "plan",
        "Say what a recipe takes on so many GPUs: memory by what it is for, bytes that GPUs send "
        "each\nother, steps, operations and hours. Nothing is read and nothing is computed: "
        "batches are the\nlargest that the recipe allows. `magneto train RECIPE --dry-run` takes "
        "some steps instead.",
        "magneto plan causal-lm/24l --gpus 64 --gpu-memory 80 --advise",
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
    add("--on-cpu", action="store_true", help="count what operations take on a CPU")
    add("--advise", action="store_true", help="propose options with which it fits")
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
    # After mistakes are answered: these import torch.
    from magneto.lab.plan.plan import advise, micro_batch, recomputed, trace_both, way
    from magneto.lab.plan.sharding import Cluster

    def build(changes: Mapping[str, Any]) -> Recipe:
        return load_recipe(given.recipe, {**overrides, **changes})

    config = in_known_steps(recipe.training, given.examples)
    cluster = Cluster(given.gpus, given.gpus_per_node, given.gpu_memory * GB)
    task, report = recipe.build_task(), ProgressBars()
    traced = trace_both(build, micro_batch(config, cluster), not given.on_cpu, report.say)
    report.finish()
    ways = [
        way(task, traced, config, cluster, strategy, again)
        for again in sorted(traced)
        for strategy in cluster.strategies()
    ]
    chosen = advise(task, traced, config, cluster) if given.advise else None
    found = summary(given, traced, config, cluster)
    found |= {"unit": task.unit, "recompute": recomputed(recipe)}
    found["ways"] = [asdict(each) for each in ways]
    if given.advise:
        found["advice"] = asdict(chosen) | {"options": chosen.options()} if chosen else None
    if given.json:
        print_json(found)
        return 0
    print("\n".join(lines(found, ways, cluster)))
    if given.advise:
        print(advice(chosen, cluster, config))
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
    given: argparse.Namespace,
    traced: Mapping[bool, Steps],
    config: TrainingConfig,
    cluster: Cluster,
) -> dict[str, Any]:
    """Return what does not depend on how the training is spread, as plain values."""
    step, named = traced[False].small, {NAMES[again]: steps for again, steps in traced.items()}
    peaks = nominal_peaks(given.gpu)
    assert peaks is not None  # the parser knows no other names
    peak = (given.peak_tflops or peaks[config.precision != "bf16"] / 1e12) * 1e12
    # An example is not cut: no more GPUs than these have work.
    rate = peak * given.utilisation * min(cluster.gpus, config.batch_size)
    flops = {name: steps.flops * config.batch_size for name, steps in named.items()}
    seconds = {name: each / rate for name, each in flops.items()}
    steps = config.steps if config.epochs is None else None
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
            for name, s in named.items()
        },
        "steps": steps,
        "batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "precision": config.precision,
        "step_flops": flops,
        "peak_flops": peak,
        "utilisation": given.utilisation,
        "step_seconds": seconds,
        "hours": steps and {name: each * steps / 3600 for name, each in seconds.items()},
        "too_few": config.batch_size < cluster.gpus * config.gradient_accumulation_steps,
    }


def lines(found: Mapping[str, Any], ways: Sequence[Way], cluster: Cluster) -> list[str]:
    """Write a plan for people."""
    from magneto.lab.plan.plan import RESERVE
    from magneto.training.memory import gigabytes as size

    parts = ", ".join(f"{name} {size(value)}" for name, value in found["state"].items() if value)
    fixed = f"; fixed {size(found['fixed'])}" if found["fixed"] > 1e6 else ""
    rows = [
        ("model", f"{found['parameters']:,} parameters; {parts}{fixed}"),
        ("batch", f"{found['batch_size']:,} examples a step; {found['micro_batch']} in a GPU's "
         f"micro-batch, {found['gradient_accumulation_steps']} of them a step"),
    ]  # fmt: skip
    for name, each in found["activations"].items():
        rows.append((name, f"{size(each['layers'])} of activations in layers, "
                     f"{size(each['around'])} around them (embeddings, head, loss); "
                     f"{size(each['peak'])} at the peak, gradients included"))  # fmt: skip
    for name, flops in found["step_flops"].items():
        text = f"{name}: {flops:.3g} FLOP a step, {found['step_seconds'][name]:.3g} s"
        if found["hours"]:
            text += (f"; {flops * found['steps']:.3g} in {found['steps']:,} steps, "
                     f"{found['hours'][name]:,.3g} hours")  # fmt: skip
        rows.append(("time", text))
    assumed = f"at {found['utilisation']:.0%} (an assumption) of {found['peak_flops'] / 1e12:g}"
    rows.append(("", f"{assumed} TFLOP/s a GPU, exchange hidden behind it"))
    if not found["hours"]:
        rows.append(("", "the recipe counts epochs: --examples N says how many steps they are"))
    made = labelled(rows)
    if found["too_few"]:
        made.append(f"a batch of {found['batch_size']} can't be cut in {cluster.gpus} GPUs x "
                    f"{found['gradient_accumulation_steps']} micro-batches: raise "
                    "training.batch_size, or take fewer GPUs; below, each has 1")  # fmt: skip
    cells = [["sharing", "activations", "a GPU needs", f"fits {cluster.memory / GB:g} GB",
              "largest micro-batch", "sent in a step", "to other nodes"]]  # fmt: skip
    for each in ways:
        fits = "refused" if each.refused else "yes" if each.fits else "no"
        sent = [size(amount) if amount else "" for amount in (each.within, each.between)]
        cells.append([each.strategy, NAMES[each.recompute], size(each.needed), fits,
                      str(each.largest), *sent])  # fmt: skip
    refused = dict.fromkeys(each.refused for each in ways if each.refused)
    reserve = f"what fits leaves {RESERVE:.0%} of the memory to libraries and gaps"
    return [*made, "", aligned(cells), "", *refused, reserve]


def advice(chosen: Way | None, cluster: Cluster, config: TrainingConfig) -> str:
    """Write what to do."""
    from magneto.training.memory import gigabytes

    if chosen is None:
        return (f"advice: nothing fits {cluster.memory / GB:g} GB, not even one example at a time "
                "with layers recomputed: take more GPUs or more memory, or a shorter length or a "
                "smaller model")  # fmt: skip
    few = config.batch_size < cluster.gpus
    larger = f" --training.batch_size {cluster.gpus}, or more," if few else ""
    other = f" or no more than {config.batch_size} GPUs" if few else ""
    return f"advice: {chosen.options()}{larger}{other}  ({gigabytes(chosen.needed)} a GPU)"


def dry_run(recipe: Recipe, report: ProgressBars, as_json: bool) -> int:
    """Run `magneto train RECIPE --dry-run`."""
    from magneto.lab.plan.steps import try_steps

    found = try_steps(recipe, report)
    if as_json and is_main_process():
        print_json(found)
    elif is_main_process():
        print("\n".join([*labelled(tried_rows(found)), "no run was written"]))
    return 0


def tried_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Write what steps took for people."""
    from magneto.training.memory import gigabytes

    steps, batch, device = found["steps"], found["batch_size"], found["device"]
    epochs = ""
    if found["examples"]:
        epochs = f", {steps * batch / found['examples']:.3g} epochs of {found['examples']:,}"
    state = f"{gigabytes(found['state_bytes'])} of weights, gradients and optimizer"
    rows = [
        ("parameters", f"{found['parameters']:,}"),
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
