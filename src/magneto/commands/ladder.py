"""`magneto ladder`: training at several small sizes, and a forecast for a larger size."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from magneto.commands.compare import INCOMPLETE, field_values, other_fields, placements
from magneto.commands.shared import (
    Parser,
    aligned,
    answer,
    at_least_one,
    duration,
    names,
    rates,
    sizes,
    whole_numbers,
)
from magneto.config import ConfigError
from magneto.files import write_json
from magneto.lab.grid import RATE
from magneto.progress import ProgressBars
from magneto.recipe import Recipe, load_recipe, placement_name

if TYPE_CHECKING:
    from magneto.lab.ladder import Ladder

PLACEMENTS, SEEDS = "pre,sub,peri", (1, 2, 3)
# Fields that a size sets.
SIZED = {
    "depth": ("model.layers", "model.encoder_layers", "model.decoder_layers"),
    "width": ("model.width", "model.heads", "model.ffn_width", "model.key_value_heads"),
}
# Fields that a budget sets.
BUDGETED = ("training.steps", "training.epochs", "training.warmup_steps")
# Seconds of a run besides steps and evaluation; time of an evaluation batch over that of a step.
OVERHEAD_SECONDS, EVALUATION_SHARE = 1.5, 0.4
# Validation batches under a budget, if the recipe sets no limit.
BATCHES = 16
# On bytes, a language model beats its unigram baseline within a few hundred steps. With a trained
# vocabulary, it needs thousands of steps. Shorter runs would only compare which row learns first.
BYTES = {"data.tokenizer": "bytes"}
BYTES_NOTE = (
    "Text is tokenized as bytes. With the recipe's BPE vocabulary, a model would barely beat the "
    "unigram baseline in so few steps. The option --data.tokenizer bpe keeps the BPE vocabulary."
)


def parser() -> Parser:
    made = Parser(
        "ladder",
        "Train a recipe at several small sizes, and forecast the best placement and learning rate "
        "for a larger size. To resume a stopped ladder, repeat the command.",
        "magneto ladder causal-lm/tiny --widths 32,64,128 --target 512 --budget 10m",
        recipe=True,
    )
    add = made.add_argument
    add("recipe", help="name or path of a recipe")
    what = "widths of the trained models; heads and feed-forward width grow in proportion"
    add("--widths", type=sizes, metavar="N,M", help=what)
    what = "numbers of layers of the trained models, instead of --widths"
    add("--depths", type=sizes, metavar="N,M", help=what)
    what = "width of the larger model, or its number of layers if --depths is given"
    add("--target", type=int, required=True, help=what)
    what = f"norm placements, or all (default: {PLACEMENTS})"
    add("--placements", type=names, metavar="A,B", help=what)
    what = "learning rates to try first at the smallest size; the ladder adds others"
    add("--lrs", type=rates, default="1e-3,3e-3,1e-2,3e-2", metavar="X,Y", help=what)
    what = "seeds at the best rate and its neighbours (default: 1,2,3; fewer if --budget is short)"
    add("--seeds", type=whole_numbers, metavar="N,M", help=what)
    what = "another recipe field to vary; each placement is trained with each value"
    add("--grid", type=field_values, action="append", default=[], metavar="FIELD=A,B", help=what)
    what = (
        "time limit of the ladder, such as 10m; runs become shorter, and text is tokenized as bytes"
    )
    add("--budget", type=duration, metavar="TIME", help=what)
    what = (
        "stop a run after half of its steps if two larger or two smaller rates are clearly better"
    )
    add("--race", action="store_true", help=what)
    what = "number of parallel runs (default: one per GPU; without GPUs, one per core)"
    add("--jobs", type=at_least_one, help=what)
    add("--out", type=Path, help="folder of the ladder (default: runs/ladder-RECIPE)")
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    args, overrides = parser().parse_with_overrides(words)
    requested = read_ladder_options(args, overrides)
    budget = args.budget
    from magneto.lab.ladder import (
        LADDER_FILE,
        SHARE,
        collect_ladder,
        fit_budget,
        open_ladder,
        read_ladder,
        run_ladder,
    )
    from magneto.lab.report.ladder import write_ladder
    from magneto.lab.sweep import default_jobs, prepare_task, training_in_steps

    folder = args.out or Path("runs") / f"ladder-{Path(args.recipe).stem}"
    jobs, progress = args.jobs or default_jobs(), ProgressBars()

    def prepare(ladder: Ladder) -> Ladder:
        recipe = ladder.first_recipe(ladder.sizes[-1])
        task = prepare_task(recipe, progress)
        if budget is None:
            return ladder
        timed = {
            size: mean_time(ladder.recipes_of_first_placement(size), jobs, progress)
            for size in ladder.sizes
        }
        training, *others = [training_in_steps(one, task) for one in
                             ladder.recipes_of_first_placement(ladder.sizes[-1])]  # fmt: skip
        if any(other.steps != training.steps for other in others):
            raise ConfigError(["--grid makes the number of steps per epoch differ; with --budget, "
                               "give --training.steps"])  # fmt: skip
        return fit_budget(ladder, training, timed, fewer_seeds=args.seeds is None)

    if budget is not None:
        requested = replace(requested, capacity=SHARE * budget * jobs)
    if args.seeds is None and (folder / LADDER_FILE).is_file():  # a budget may have left fewer
        requested = replace(requested, seeds=read_ladder(folder).seeds)
    ladder = open_ladder(folder, requested, prepare)
    complete = run_ladder(folder, ladder, jobs, progress)
    found = collect_ladder(folder, ladder, "magneto ladder " + shlex.join(words))
    write_json(folder / "forecast.json", found)
    page = write_ladder(found, folder)
    keys = ("answer", "forecast", "troubles", "held_out", "held_out_text", "limitations")
    places = {"folder": str(folder), "report": str(page), "complete": complete}
    lines = [table(found), "", *found["answer"], found["held_out_text"], *found["notes"],
             *found["limitations"], f"\nreport: {page}"]  # fmt: skip
    answer(args, {**places, **{key: found[key] for key in keys}}, lines)
    if not complete:
        progress.say(INCOMPLETE)
    return 0 if complete else 1


def read_ladder_options(args: Any, overrides: dict[str, Any]) -> Ladder:
    from magneto.lab.ladder import Ladder

    if (args.widths is None) == (args.depths is None):
        raise ConfigError(["give either --widths or --depths, such as --widths 32,64,128"])
    axis, rungs = ("depth", args.depths) if args.depths else ("width", args.widths)
    option = f"--{axis}s"
    if args.target <= rungs[-1]:
        raise ConfigError([f"--target must be above the largest trained size ({rungs[-1]}), not "
                           f"{args.target}"])  # fmt: skip
    if clash := [name for name in SIZED["depth"] if axis == "depth" and name in overrides]:
        raise ConfigError([f"--{clash[0]}: {option} already sets this field; omit --{clash[0]}"])
    others = other_fields(args.grid, overrides)
    setters = dict.fromkeys(SIZED[axis], option)
    if args.budget is not None:
        setters |= dict.fromkeys(BUDGETED, "--budget")
    if clash := [name for name in others if name in setters]:
        raise ConfigError([f"--grid {clash[0]}: {setters[clash[0]]} sets this field; omit this "
                           "--grid"])  # fmt: skip
    changes = {**overrides, **{name: values[0] for name, values in others.items()}}
    recipe = load_recipe(args.recipe, {RATE: 1.0, **changes})
    if args.placements is None and placement_name(recipe.model):
        args.placements = PLACEMENTS.split(",")
    rows = {**others, **placements(args, changes)}
    fields: dict[str, Any] = {**overrides}
    fields.setdefault("training.evaluate_every", 0)
    if args.budget is not None:
        fields.setdefault("training.evaluate_limit", BATCHES)
    notes = []
    short = args.budget is not None and "data.tokenizer" not in {**overrides, **others}
    if short and recipe.task == "causal-lm" and recipe.data.tokenizer == "bpe":
        fields, notes = {**fields, **BYTES}, [BYTES_NOTE]
    return Ladder(args.recipe, fields, axis, rungs, args.target, rows, sorted(args.lrs),
                  sorted(args.seeds or SEEDS), race=args.race, notes=notes)  # fmt: skip


def mean_time(recipes: Sequence[Recipe], jobs: int, progress: ProgressBars) -> tuple[float, float]:
    """Return the means of `time_cell` over recipes."""
    steps, besides = zip(*(time_cell(recipe, jobs, progress) for recipe in recipes), strict=True)
    return fmean(steps), fmean(besides)


def time_cell(recipe: Recipe, jobs: int, progress: ProgressBars) -> tuple[float, float]:
    """Estimate the seconds of one step, and of starting and evaluating a run."""
    from magneto.commands.plan import try_steps

    task = recipe.build_task()
    threads = max(1, (os.cpu_count() or 1) // jobs)
    alone = replace(recipe, training=replace(recipe.training, threads=threads))
    step = try_steps(alone, task, progress)["seconds_per_step"]
    batches = min(len(task.validation_batches()), recipe.training.evaluate_limit or 10**9)
    return step, OVERHEAD_SECONDS + EVALUATION_SHARE * step * batches


def table(found: dict[str, Any]) -> str:
    sizes = [f"{found['axis']} {size}" for size in found["sizes"]]
    lines = [["best rate: loss", *sizes, f"{found['target']} (forecast)"]]
    for row, title in found["rows"].items():
        cells = [best_text(rung["rows"].get(row)) for rung in found["rungs"]]
        last = found["forecast"]["rows"].get(row)
        lines.append([title, *cells, best_text(last) if last else "no forecast"])
    return aligned(lines)


def best_text(part: Mapping[str, Any] | None) -> str:
    from magneto.lab.rung import why_no_best_rate

    if part is None or "loss" not in part:
        return why_no_best_rate(part)
    return f"{part['best_rate']['value']:.2g}: {part['loss']['value']:.4g}"
