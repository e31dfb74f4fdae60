"""`magneto compare`: training with several placements, learning rates and seeds."""

from __future__ import annotations

import shlex
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from magneto.commands.shared import (
    Parser,
    aligned,
    answer,
    at_least_one,
    check_effect,
    names,
    rates,
    whole_numbers,
)
from magneto.config import ConfigError
from magneto.files import plain, write_json
from magneto.lab.grid import PLACEMENT, RATE, SEED, Sweep, cell_directory
from magneto.mistakes import user_lines
from magneto.progress import ProgressBars
from magneto.recipe import load_recipe, placement_name
from magneto.tasks import TASKS, command
from magneto.theory.placement import PLACEMENTS

OWN_OPTIONS = {PLACEMENT: "--placements", RATE: "--lrs", SEED: "--seeds"}
INCOMPLETE = ("Some runs have no result yet: they were stopped, or another process is training "
              "them. To resume stopped runs, repeat the command.")  # fmt: skip


def parser() -> Parser:
    made = Parser(
        "compare",
        "Train a recipe with several norm placements, learning rates and seeds, and recommend a "
        "placement and a learning rate. To resume a stopped comparison, repeat the command. "
        "Several machines may share the folder of a comparison.",
        "magneto compare causal-lm/tiny --placements post,pre,sub --lrs 1e-3,3e-3 --seeds 1,2,3",
        recipe=True,
    )
    add = made.add_argument
    add("recipe", help="name or path of a recipe")
    what = "norm placements, or module:NAME for your own placement (default: all)"
    add("--placements", type=names, metavar="A,B", help=what)
    add("--lrs", type=rates, default="1e-3,3e-3,1e-2", metavar="X,Y", help="peak learning rates")
    add("--seeds", type=whole_numbers, default="1", metavar="N,M", help="seeds")
    what = ("extra seeds, only at the best learning rate of each placement (and of each --grid "
            "value) and at the neighbouring rates")  # fmt: skip
    add("--more-seeds", type=whole_numbers, default=[], metavar="N,M", help=what)
    what = "another recipe field to vary; may be repeated"
    add("--grid", type=field_values, action="append", default=[], metavar="FIELD=A,B", help=what)
    what = "number of parallel runs (default: one per GPU; without GPUs, one per core)"
    add("--jobs", type=at_least_one, help=what)
    what = "submit the runs as jobs, to SLURM or to this machine (needs submitit)"
    add("--cluster", choices=("slurm", "local"), help=what)
    what = "option of submitit; may be repeated"
    add("--cluster-option", type=cluster_option, action="append", default=[],
        metavar="KEY=VALUE", help=what)  # fmt: skip
    add("--no-measurements", action="store_true", help="do not measure updates and activations")
    what = "keep the weights of all runs (default: the best run only)"
    add("--keep-weights", action="store_true", help=what)
    add("--out", type=Path, help="folder of the comparison (default: runs/compare-RECIPE)")
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    args, overrides = parser().parse_with_overrides(words)
    check_effect(words, [] if args.cluster else ["cluster-option"], "without --cluster")
    grid: dict[str, list[Any]] = {RATE: sorted(args.lrs), SEED: list(args.seeds)}
    others = other_fields(args.grid, overrides)
    first = {name: values[0] for name, values in others.items()}
    grid = {**others, **placements(args, {**overrides, **first}), **grid}
    sweep = Sweep(args.recipe, dict(overrides), grid, args.keep_weights)
    folder = args.out or Path("runs") / f"compare-{Path(args.recipe).stem}"
    from magneto.lab.comparison import collect, with_more_seeds
    from magneto.lab.grid import check_sweep, is_done, open_sweep
    from magneto.lab.sweep import cluster_executor, prepare_data

    if args.cluster:
        with TemporaryDirectory() as nowhere:  # an executor may create its folder
            cluster_executor(Path(nowhere), args.cluster, dict(args.cluster_option))
    checked = check_sweep(folder, sweep)
    progress, measured = ProgressBars(), not args.no_measurements and PLACEMENT in grid
    if args.more_seeds or not all(is_done(folder, cell) for cell in checked.cells()):
        prepare_data(folder, checked, progress)
    # Only now, because values whose data is refused must not be added to the folder's grid.
    sweep = open_sweep(folder, sweep)
    complete = run(folder, sweep, args, progress)
    # With more seeds another rate may become the best.
    more = args.more_seeds
    while more and complete and (grown := with_more_seeds(folder, sweep, more)) != sweep:
        sweep = open_sweep(folder, grown)
        complete = run(folder, sweep, args, progress)
    comparison = plain(collect(folder, sweep, "magneto compare " + shlex.join(words)))
    page = write(folder, comparison, downloads=not measured)
    best = link_best(folder, sweep, comparison)
    if measured:
        add_measurements(folder, sweep, comparison, progress)
        page = write(folder, comparison)
    keys = ("answer", "summary", "metric", "placements", "learning_rates", "seeds")
    value = {"folder": str(folder), "report": str(page), "complete": complete,
             "best_run": str(best) if best else None,
             **{key: comparison[key] for key in keys}}  # fmt: skip
    answer(args, value, closing(comparison, page, best))
    if not complete:
        progress.say(INCOMPLETE)
    return 0 if complete else 1


def add_measurements(
    folder: Path, sweep: Sweep, comparison: dict[str, Any], progress: ProgressBars
) -> None:
    from magneto.lab.comparison import measure

    try:
        progress.say("Measuring how much one step changes each placement's output, for comparison "
                     "with theory. This can take minutes. The option --no-measurements skips "
                     "this measurement.")  # fmt: skip
        failed = [row["placement"] for row in comparison["summary"]
                  if not row["finished"] + row["missing"]]  # fmt: skip
        comparison["measured"] = measure(folder, sweep, failed, progress)
    except Exception as error:  # the runs are finished, so the command goes on
        lines = user_lines(error)
        if not lines:
            raise
        progress.say(f"Updates and activations could not be measured: {lines[0]}")
    finally:
        progress.finish()


def write(folder: Path, comparison: dict[str, Any], downloads: bool = True) -> Path:
    from magneto.lab.report.report import write_report

    write_json(folder / "comparison.json", comparison)
    return write_report(comparison, folder, downloads)


def closing(comparison: dict[str, Any], page: Path, best: Path | None) -> Iterator[str]:
    yield table(comparison)
    yield f"\nreport: {page}"
    if best:
        verbs = TASKS[comparison["task"]].verbs if comparison["task"] in TASKS else ()
        yield f"best run: {best}\nnext commands:"
        yield from (f"  {command(verb, best)}" for verb in ("evaluate", *verbs))


def link_best(folder: Path, sweep: Sweep, comparison: dict[str, Any]) -> Path | None:
    from magneto.lab.sweep import best_cell, delete_weights

    score = comparison["metric"], comparison["higher_is_better"]
    if not sweep.keep_weights:  # killed workers leave weights behind
        delete_weights(folder, sweep, *score)
    cell = best_cell(folder, sweep, *score)
    if cell is None:
        return None
    link, run = folder / "best", cell_directory(folder, cell)
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(run.relative_to(folder), target_is_directory=True)
    except OSError:  # a file system without links
        return run
    return link


def other_fields(
    grid: Sequence[tuple[str, list[str]]], overrides: dict[str, Any]
) -> dict[str, list[str]]:
    """Check the --grid options. Return {field: values}, in reverse order of the options."""
    names = [name for name, _ in reversed(grid)]
    lines = [
        f"--grid {name}: use {OWN_OPTIONS[name]} for this field"
        for name in names
        if name in OWN_OPTIONS
    ]
    lines += [f"--grid {name} is repeated; give one comma-separated list of values"
              for name, count in Counter(names).items() if count > 1 and name not in OWN_OPTIONS
              ]  # fmt: skip
    lines += [f"--{name} {value}: use {OWN_OPTIONS[name]} for this field"
              for name, value in overrides.items() if name in OWN_OPTIONS]  # fmt: skip
    lines += [f"--{name} {value}: --grid already varies this field; omit this option"
              for name, value in overrides.items() if name in names]  # fmt: skip
    if lines:
        raise ConfigError(list(dict.fromkeys(lines)))
    return dict(reversed(grid))


def field_values(word: str) -> tuple[str, list[str]]:
    name, values = pair(word)
    return name, list(names(values))


def cluster_option(word: str) -> tuple[str, str | int]:
    name, value = pair(word)
    return name, int(value) if value.isdecimal() else value


def pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not (name and equals):
        raise ArgumentTypeError(f"must be NAME=VALUE, not {word!r}")
    return name, value


def placements(args: Any, changes: dict[str, Any]) -> dict[str, list[Any]]:
    """Return {field: placements to compare}, or {} for a model without a placement."""
    recipe = load_recipe(args.recipe, {RATE: 1.0, **changes})
    if placement_name(recipe.model):
        named = list(args.placements or ["all"])
        return {PLACEMENT: list(PLACEMENTS) if named == ["all"] else named}
    if args.placements:
        raise ConfigError([f"--placements: the model of {args.recipe} has no norm placement; "
                           "compare other fields with --grid FIELD=A,B"])  # fmt: skip
    return {}


def run(folder: Path, sweep: Sweep, args: Any, progress: ProgressBars) -> bool:
    from magneto.lab.sweep import default_jobs, run_cluster, run_local

    jobs = default_jobs() if args.jobs is None else args.jobs
    if args.cluster:
        started = run_cluster(folder, jobs, args.cluster, dict(args.cluster_option))
        progress.say(f"Started {len(started)} jobs. The jobs continue if this command stops.")
        for job in started:
            job.result()

    show = partial(progress.update, "training runs")
    complete = run_local(folder, sweep, 0 if args.cluster else jobs, show)
    progress.finish()
    return complete


def table(comparison: dict[str, Any]) -> str:
    from magneto.lab.outcome import decimals_for, group_cells, rate_text
    from magneto.lab.report.report import baseline_sentence, brief_group_text, reason_sentences

    groups = group_cells(comparison)
    decimals = decimals_for([group.mean for group in groups.values()])
    rates = comparison["learning_rates"]
    rows = [[comparison["metric"], *map(rate_text, rates)]]
    for summary in comparison["summary"]:
        mine = [groups[summary["placement"], rate] for rate in rates]
        rows.append([summary["title"], *(brief_group_text(group, decimals) for group in mine)])
    found = list(groups.values())
    notes = [baseline_sentence(comparison)] if any(group.stuck for group in found) else []
    if any(group.mean is not None and group.failed + group.missing for group in found):
        notes.append("For example, (4/5) means that 4 of 5 seeds learned. The score is the mean "
                     "over the seeds that learned.")  # fmt: skip
    sentences = [*comparison["answer"], *reason_sentences(comparison)]
    lines = [aligned(rows), *filter(None, notes), "", *sentences]
    return "\n".join(lines)
