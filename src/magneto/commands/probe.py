"""`magneto probe`: what theory and measurement say of a recipe before it is trained."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto.commands.shared import Parser, name_source, print_json
from magneto.config import ConfigError
from magneto.files import plain, write_json
from magneto.progress import ProgressBars
from magneto.recipe import Recipe, load_recipe, placement_name
from magneto.theory.depth import Stack
from magneto.theory.placement import find_placement

if TYPE_CHECKING:
    from magneto.lab.diagnosis import Diagnosis
    from magneto.lab.trial import Trial

MOST_LAYERS = 4096


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "probe",
        "Look at a recipe at initialisation and along its first steps, layer by layer, and say\n"
        "whether it will train, and why. Nothing is trained further, but by --trial, and\n"
        "no weights are kept.",
        "magneto probe causal-lm/tiny --model.layers 24 --placements post,sub",
        recipe=True,
    )
    add = made.add_argument
    add("recipe", help="name or path of a recipe")
    add("--placements", help="look at each of these, with commas (the recipe's)")
    add("--steps", type=int, default=5, help="steps of training to take (5)")
    add(
        "--depths",
        help="instead, measure how one step's change of the output grows over these numbers of "
        "layers, with commas; width 64, inputs at random, no data needed",
    )
    add(
        "--stack",
        choices=("encoder", "decoder"),
        default="decoder",
        help="of --depths: causal or not (decoder)",
    )
    add(
        "--trial",
        metavar="TIME",
        help="then train for so long (60s, 5m), and compare with the task's trivial baseline",
    )
    add("--seeds", type=int, help="for the growth with depth: how many (3; with --depths 5)")
    add("--out", type=Path, metavar="DIR", help="write probe.json there")
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    command = parser()
    given, overrides = command.parse_with_overrides(words)
    name_source(overrides, given.data)
    if given.steps < 1:
        command.error(f"--steps must be 1 or more, not {given.steps}")
    if given.seeds is not None and given.seeds < (1 if given.depths else 0):
        command.error(f"--seeds must be {1 if given.depths else 0} or more, not {given.seeds}")
    if given.trial is not None and read_time(given.trial) and given.depths:
        command.error("--trial trains the recipe, which --depths does not look at")
    recipes = load_each(given.recipe, overrides, given.placements)
    report, started = ProgressBars(), time.perf_counter()
    look = measure_depths if given.depths else look_at_each
    found, show = look(recipes, given, report)
    report.finish()
    answer = plain(
        {
            "recipe": given.recipe,
            "command": "magneto probe " + shlex.join(words),
            "seconds": round(time.perf_counter() - started, 1),
            **found,
        }
    )
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        write_json(given.out / "probe.json", answer)
    if given.json:
        print_json(answer)
    else:
        show()
    return 0


def load_each(name: str, overrides: dict[str, str], placements: str | None) -> list[Recipe]:
    """Load the recipe once for each placement; all mistakes are known before any work."""
    if placements is None:
        return [load_recipe(name, overrides)]
    rows = [word.strip() for word in placements.split(",") if word.strip()]
    if not rows:
        raise ConfigError(["--placements takes names with commas between them"])
    rows = [find_placement(row).name for row in dict.fromkeys(rows)]
    return [load_recipe(name, {**overrides, "model.placement": row}) for row in rows]


def look_at_each(recipes: list[Recipe], given: Any, report: ProgressBars) -> tuple[dict, Any]:
    """Diagnose every recipe."""
    from magneto.commands.probe_tables import print_diagnoses
    from magneto.lab.diagnosis import diagnose
    from magneto.lab.trial import run_trial

    seeds = 3 if given.seeds is None else given.seeds
    found: list[Diagnosis] = []
    trials: list[Trial] = []
    for recipe in recipes:
        made = diagnose(recipe, steps=given.steps, seeds=seeds, progress=report)
        report.say(f"{made.placement.title}: {made.verdict.level}")
        found.append(made)
        if given.trial:
            trials.append(run_trial(recipe, read_time(given.trial), report))
    answer: dict[str, Any] = {"probes": [made.to_mapping() for made in found]}
    if trials:
        answer["trials"] = [asdict(trial) for trial in trials]
    return answer, lambda: print_diagnoses(found, trials)


def measure_depths(recipes: list[Recipe], given: Any, report: ProgressBars) -> tuple[dict, Any]:
    """Measure the growth of the update with depth, beside the bound's."""
    from magneto.commands.probe_tables import print_growth
    from magneto.lab.update import bounds_over, growth, measure_growth, measured_shape

    depths = read_depths(given.depths)
    stack: Stack = given.stack
    if not placement_name(recipes[0].model):
        raise ConfigError([f"--depths: the model of {given.recipe} has no placement to measure"])
    shape = measured_shape(recipes[0].model)
    updates = measure_growth(
        shape,
        placements=[recipe.model.row for recipe in recipes],
        depths=depths,
        seeds=range(given.seeds or 5),
        stack=stack,
        progress=lambda done, total: report.update("measuring updates, layers", done, total),
    )
    grown = growth(updates)
    bounds = {
        recipe.model.row.name: bounds_over(recipe.model.row, depths, stack) for recipe in recipes
    }
    answer = {
        "stack": stack,
        "width": shape.width,
        "depths": depths,
        "growth": [vars(part) for part in grown],
        "bounds": bounds,
        "updates": [vars(update) for update in updates],
    }
    return answer, lambda: print_growth(grown, updates, bounds, depths)


def read_time(words: str) -> float:
    """Read a time such as "60s", "5m" or "90" (seconds), in seconds.

    Raises:
        ConfigError: If it is something else, or not above 0.
    """
    unit = {"s": 1, "m": 60}.get(words[-1:], 0)
    try:
        seconds = float(words[:-1]) * unit if unit else float(words)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError([f"--trial takes a time such as 60s or 5m, not {words!r}"])
    return seconds


def read_depths(words: str) -> list[int]:
    """Read two or more numbers of layers, with commas.

    Raises:
        ConfigError: If they are something else.
    """
    try:
        depths = sorted({int(word) for word in words.split(",") if word.strip()})
    except ValueError:
        raise ConfigError([f"--depths takes numbers with commas, not {words!r}"]) from None
    if len(depths) < 2 or depths[0] < 1 or depths[-1] > MOST_LAYERS:
        raise ConfigError([f"--depths takes two or more numbers from 1 to {MOST_LAYERS}: {words}"])
    return depths
