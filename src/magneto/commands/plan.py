"""`magneto plan`: what a training takes of memory, exchange and time, before it is begun."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from magneto.commands.shared import Parser
from magneto.recipe import load_recipe
from magneto.training.peaks import PEAKS

# What is assumed where nothing is said; each is an option.
GPU, UTILISATION, MEMORY, PER_NODE = "H100", 0.4, 80.0, 8


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "plan",
        "Say what a recipe takes on so many GPUs: memory by what it is for, bytes that GPUs send "
        "each\nother, steps, operations and hours. Nothing is read and nothing is computed: "
        "batches are the\nlargest that the recipe allows.",
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
    """Run the command."""
    command = parser()
    given, overrides = command.parse_with_overrides(words)
    check(command, given)
    recipe = load_recipe(given.recipe, overrides)
    from magneto.commands.plan_table import show  # after mistakes are answered: it imports torch

    return show(given, overrides, recipe)


def check(command: Parser, given: argparse.Namespace) -> None:
    """Refuse numbers that mean nothing."""
    for name in ("gpus", "gpus_per_node", "gpu_memory", "peak_tflops", "examples"):
        value = getattr(given, name)
        if value is not None and not 0 < value < math.inf:
            command.error(f"--{name.replace('_', '-')} must be above 0, not {value}")
    if not 0 < given.utilisation <= 1:
        command.error(f"--utilisation must be above 0 and at most 1, not {given.utilisation}")
