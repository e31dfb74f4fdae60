"""`magneto ladder`: a recipe at several sizes, and what they foretell of a larger one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto.commands.compare import other_fields, placements
from magneto.commands.shared import Parser, aligned, answer, name_source, numbers, read_time
from magneto.config import ConfigError
from magneto.files import write_json
from magneto.lab.grid import RATE
from magneto.progress import ProgressBars
from magneto.recipe import Recipe, load_recipe, placement_name

if TYPE_CHECKING:
    from magneto.lab.ladder import Ladder

PLACEMENTS, SEEDS = "pre,sub,peri", "1,2,3"
DEPTHS = ("model.layers", "model.encoder_layers", "model.decoder_layers")
# Seconds that a cell takes besides steps and evaluation; a batch scored takes this share of a step.
BESIDES, SCORED = 1.5, 0.4
# Validation batches that are scored under a budget, where the recipe sets no limit.
BATCHES = 16
# Byte by byte a language model learns in a few hundred steps what a trained vocabulary takes
# thousands for: shorter runs only compare who leaves the frequencies of tokens first.
BYTES = {"data.tokenizer": "bytes"}
BYTES_NOTE = (
    "Text is read as bytes: with the recipe's trained vocabulary so few steps end near the "
    "frequencies of its tokens (--data.tokenizer bpe takes it all the same)."
)


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "ladder",
        "Train a recipe at several sizes, the smallest first, and foretell which placement and\n"
        "which learning rate a larger one wants. The same command goes on where it was stopped.",
        "magneto ladder causal-lm/tiny --widths 32,64,128 --target 512 --budget 10m",
        recipe=True,
    )
    add = made.add_argument
    add("recipe", help="name or path of a recipe")
    add("--widths", help="widths of the rungs; heads and feed-forward network go with them")
    add("--depths", help="or numbers of layers of the rungs")
    add("--target", type=int, required=True, help="the width, or number of layers, asked about")
    add("--placements", help=f"names, with commas ({PLACEMENTS}; all; none without placement)")
    add("--lrs", default="1e-3,3e-3,1e-2,3e-2", help="where the first rung begins "
        "(1e-3,3e-3,1e-2,3e-2); further rates follow from what is seen")  # fmt: skip
    add("--seeds", help="of every decisive cell (1,2,3; fewer if the budget is short)")
    add("--grid", action="append", default=[], metavar="FIELD=A,B", help="more rows: another field")
    add("--budget", help="time, such as 10m or 2h: runs get as many steps as it allows, of the "
        "recipe's at most, and a language model reads bytes")  # fmt: skip
    add("--race", action="store_true", help="end runs that are behind beyond noise at half")
    add("--jobs", type=int, help="cells at a time (one per GPU, or per core)")
    add("--out", type=Path, metavar="DIR", help="folder of the ladder (runs/ladder-RECIPE)")
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given, overrides = parser().parse_with_overrides(words)
    name_source(overrides, given.data)
    asked = read_ladder_options(given, overrides)
    budget = None if given.budget is None else read_time("--budget", given.budget)
    from magneto.lab.ladder import (
        LADDER_FILE,
        collect_ladder,
        fit_budget,
        open_ladder,
        read_ladder,
        run_ladder,
    )
    from magneto.lab.plan import prepare_task
    from magneto.lab.report.ladder import write_ladder
    from magneto.lab.sweep import default_jobs

    folder = given.out or Path("runs") / f"ladder-{Path(given.recipe).stem}"
    jobs, report = given.jobs or default_jobs(), ProgressBars()

    def prepare(ladder: Ladder) -> Ladder:
        prepare_task(ladder.first_recipe(ladder.sizes[-1]), report)
        if budget is None:
            return ladder
        timed = {size: time_cell(ladder.first_recipe(size), jobs, report) for size in ladder.sizes}
        return fit_budget(ladder, budget * jobs, timed, fewer_seeds=given.seeds is None)

    if given.seeds is None and (folder / LADDER_FILE).is_file():  # those that the budget left
        asked = replace(asked, seeds=read_ladder(folder).seeds)
    ladder = open_ladder(folder, asked, prepare)
    whole = run_ladder(folder, ladder, jobs, report)
    found = collect_ladder(folder, ladder, "magneto ladder " + shlex.join(words))
    write_json(folder / "foretelling.json", found)
    page = write_ladder(found, folder)
    kept = ("answer", "foretold", "troubles", "held_out", "held_out_text", "cannot_tell")
    places = {"folder": str(folder), "report": str(page), "complete": whole}
    lines = [table(found), "", *found["answer"], found["held_out_text"], *found["notes"],
             *found["cannot_tell"], f"\nreport: {page}"]  # fmt: skip
    answer(given, {**places, **{key: found[key] for key in kept}}, lines)
    if not whole:
        report.say("another process holds the runs that have no result yet, or they were stopped; "
                   "the same command goes on")  # fmt: skip
    return 0 if whole else 1


def read_ladder_options(given: Any, overrides: dict[str, Any]) -> Ladder:
    """Return the ladder that the words ask for.

    Raises:
        ConfigError: If they do not fit together.
    """
    from magneto.lab.ladder import Ladder

    if (given.widths is None) == (given.depths is None):
        raise ConfigError(["give --widths or --depths: the sizes of the rungs, such as 32,64,128"])
    axis, listed = ("depth", given.depths) if given.depths else ("width", given.widths or "")
    option = f"--{axis}s"
    sizes = sorted(numbers(option, listed))
    if len(sizes) < 2 or sizes[0] < 1:
        raise ConfigError([f"{option} {listed}: a ladder has two rungs or "
                           "more, each of 1 or more"])  # fmt: skip
    if given.target <= sizes[-1]:
        raise ConfigError([f"--target {given.target}: it must be beyond the largest rung, "
                           f"{sizes[-1]}"])  # fmt: skip
    if given.jobs is not None and given.jobs < 1:
        raise ConfigError([f"--jobs {given.jobs}: at least 1"])
    if clash := [name for name in DEPTHS if axis == "depth" and name in overrides]:
        raise ConfigError([f"--{clash[0]}: a ladder takes it from {option}"])
    rates, seeds = (
        sorted(numbers("--lrs", given.lrs, float)),
        numbers("--seeds", given.seeds or SEEDS),
    )
    if rates[0] <= 0:
        raise ConfigError([f"--lrs {given.lrs}: rates are above 0"])
    others = other_fields(given.grid, overrides)
    changes = {**overrides, **{name: values[0] for name, values in others.items()}}
    recipe = load_recipe(given.recipe, {RATE: 1.0, **changes})
    if given.placements is None and placement_name(recipe.model):
        given.placements = PLACEMENTS
    rows = {**others, **placements(given, changes)}
    fields: dict[str, Any] = {**overrides}
    fields.setdefault("training.evaluate_every", 0)
    if given.budget is not None:
        fields.setdefault("training.evaluate_limit", BATCHES)
    notes = []
    short = given.budget is not None and "data.tokenizer" not in overrides
    if short and recipe.task == "causal-lm" and recipe.data.tokenizer == "bpe":
        fields, notes = {**fields, **BYTES}, [BYTES_NOTE]
    return Ladder(given.recipe, fields, axis, sizes, given.target, rows, rates, seeds,
                  race=given.race, notes=notes)  # fmt: skip


def time_cell(recipe: Recipe, jobs: int, report: ProgressBars) -> tuple[float, float]:
    """Return the seconds of a step, and of all that a cell does besides steps."""
    from magneto.commands.plan import try_steps

    task = recipe.build_task()
    threads = max(1, (os.cpu_count() or 1) // jobs)
    alone = replace(recipe, training=replace(recipe.training, threads=threads))
    step = try_steps(alone, task, report)["seconds_per_step"]
    batches = min(len(task.validation_batches()), recipe.training.evaluate_limit or 10**9)
    return step, BESIDES + SCORED * step * batches


def table(found: dict[str, Any]) -> str:
    """Write each row's best rate and loss on each rung, and what is foretold."""
    sizes = [f"{found['axis']} {size}" for size in found["sizes"]]
    lines = [["best rate: loss", *sizes, f"{found['target']} (foretold)"]]
    for row, title in found["rows"].items():
        parts = [rung["rows"].get(row, {}) for rung in found["rungs"]]
        parts.append(found["foretold"]["rows"].get(row, {}))
        lines.append([title, *(
            f"{part['best_rate']['value']:.2g}: {part['loss']['value']:.4g}" if "loss" in part
            else "did not learn" for part in parts
        )])  # fmt: skip
    return aligned(lines)
