"""`magneto compare`: the same recipe over placements, learning rates and seeds."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from magneto.commands.shared import Parser, aligned, answer, name_source, numbers
from magneto.config import ConfigError
from magneto.files import plain, write_json
from magneto.lab.grid import PLACEMENT, RATE, SEED, Sweep, cell_directory
from magneto.mistakes import user_lines
from magneto.progress import ProgressBars
from magneto.recipe import load_recipe, placement_name
from magneto.tasks import TASKS, command
from magneto.theory.placement import PLACEMENTS

# A curve in the terminal: so many points, of so many heights.
COLUMNS, BLOCKS = 32, "▁▂▃▄▅▆▇█"
OWN_OPTIONS = {PLACEMENT: "--placements", RATE: "--lrs", SEED: "--seeds"}


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "compare",
        "Train a recipe over placements, learning rates and seeds, and say which to use. The same\n"
        "command goes on where it was stopped; several machines may share the folder.",
        "magneto compare causal-lm/tiny --placements post,pre,sub --lrs 1e-3,3e-3 --seeds 1,2,3",
        recipe=True,
    )
    add = made.add_argument
    add("recipe", help="name or path of a recipe")
    add("--placements", help="names, with commas (all; none for a model without placement)")
    add("--lrs", default="1e-3,3e-3,1e-2", help="peak learning rates (1e-3,3e-3,1e-2)")
    add("--seeds", default="1", help="seeds (1)")
    add(
        "--more-seeds",
        default="",
        metavar="SEEDS",
        help="seeds that each row gets at its best rate and its neighbours, once that is known",
    )
    add("--grid", action="append", default=[], metavar="FIELD=A,B", help="any other field too")
    add("--jobs", type=int, help="cells at a time (one per GPU, or per core)")
    add("--cluster", choices=("slurm", "local"), help="run the jobs through submitit")
    add("--cluster-option", action="append", default=[], metavar="KEY=VALUE", help="for submitit")
    add("--no-measurements", action="store_true", help="leave updates and activations unmeasured")
    add("--keep-weights", action="store_true", help="keep every cell's weights")
    add("--out", type=Path, metavar="DIR", help="folder of the comparison (runs/compare-RECIPE)")
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given, overrides = parser().parse_with_overrides(words)
    name_source(overrides, given.data)
    if given.jobs is not None and given.jobs < 1:
        raise ConfigError([f"--jobs {given.jobs}: at least 1"])
    if wrong := [word for word in given.cluster_option if "=" not in word]:
        raise ConfigError([f"--cluster-option takes KEY=VALUE, not {wrong[0]!r}"])
    grid: dict[str, list[Any]] = {
        RATE: sorted(numbers("--lrs", given.lrs, float)),
        SEED: numbers("--seeds", given.seeds),
    }
    others = other_fields(given.grid, overrides)
    first = {name: values[0] for name, values in others.items()}
    grid = {**others, **placements(given, {**overrides, **first}), **grid}
    sweep = Sweep(given.recipe, dict(overrides), grid, given.keep_weights)
    folder = given.out or Path("runs") / f"compare-{Path(given.recipe).stem}"
    from magneto.lab.comparison import collect, with_more_seeds
    from magneto.lab.grid import is_done, open_sweep
    from magneto.lab.plan import prepare_task

    sweep = open_sweep(folder, sweep)
    report, measured = ProgressBars(), not given.no_measurements and PLACEMENT in grid
    if not all(is_done(folder, cell) for cell in sweep.cells()):
        prepare_task(sweep.load(sweep.cells()[0]), report)
    whole = run(folder, sweep, given, report)
    more = numbers("--more-seeds", given.more_seeds) if given.more_seeds else []
    # With more seeds another rate may be the best.
    while more and whole and (grown := with_more_seeds(folder, sweep, more)) != sweep:
        sweep = open_sweep(folder, grown)
        whole = run(folder, sweep, given, report)
    comparison = plain(collect(folder, sweep, "magneto compare " + shlex.join(words)))
    page = write(folder, comparison, downloads=not measured)
    best = link_best(folder, sweep, comparison)
    if measured:
        add_measurements(folder, sweep, comparison, report)
        page = write(folder, comparison)
    kept = ("answer", "summary", "metric", "placements", "learning_rates", "seeds")
    places = {"folder": str(folder), "report": str(page), "complete": whole,
              "best_run": str(best) if best else None}  # fmt: skip
    value = {**places, **{key: comparison[key] for key in kept}}
    answer(given, value, closing(comparison, page, best))
    if not whole:
        report.say("another process holds the runs that have no result yet, or they were stopped; "
                   "the same command goes on")  # fmt: skip
    return 0 if whole else 1


def add_measurements(
    folder: Path, sweep: Sweep, comparison: dict[str, Any], report: ProgressBars
) -> None:
    """Measure updates and activations; say why where that is not possible.

    The runs are done and their table is written: what goes wrong here must not hide them.
    """
    from magneto.lab.comparison import measure

    try:
        report.say("measuring how far a step moves each row's function, to set it beside the "
                   "theory: minutes, which --no-measurements leaves out")  # fmt: skip
        failed = [row["placement"] for row in comparison["summary"]
                  if not row["finished"] + row["missing"]]  # fmt: skip
        comparison["measured"] = measure(folder, sweep, failed, report)
    except Exception as error:
        lines = user_lines(error)
        if not lines:
            raise
        report.say(f"updates and activations are not measured: {lines[0]}")
    finally:
        report.finish()


def write(folder: Path, comparison: dict[str, Any], downloads: bool = True) -> Path:
    """Write a comparison and its report, with figures as files or not; return the page's path."""
    from magneto.lab.report.report import write_report

    write_json(folder / "comparison.json", comparison)
    return write_report(comparison, folder, downloads)


def closing(comparison: dict[str, Any], page: Path, best: Path | None) -> Iterator[str]:
    """Yield the table, where the report is, and what can be done with the best run."""
    yield table(comparison)
    yield f"\nreport: {page}"
    if best:
        verbs = TASKS[comparison["task"]].verbs if comparison["task"] in TASKS else ()
        yield f"the best run keeps its weights, {best}; next:"
        yield from (f"  {command(verb, best)}" for verb in ("evaluate", *verbs))


def link_best(folder: Path, sweep: Sweep, comparison: dict[str, Any]) -> Path | None:
    """Return the best run, by the short name `best` in the folder where links can be made.

    Weights that a worker had no time to delete, because it was killed, are deleted first.
    """
    from magneto.lab.sweep import best_cell, delete_weights

    score = comparison["metric"], comparison["higher_is_better"]
    if not sweep.keep_weights:
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


def other_fields(words: Sequence[str], overrides: dict[str, Any]) -> dict[str, list[str]]:
    """Read what --grid gives; the field given last varies slowest.

    Raises:
        ConfigError: If a field has an option of its own, or is given twice: one would be lost.
    """
    from magneto.lab.grid import repeated

    pairs = [field_values(word) for word in reversed(words)]
    names = [name for name, _ in pairs]
    lines = [
        f"--grid {name}: its values are given with {OWN_OPTIONS[name]}"
        for name in names
        if name in OWN_OPTIONS
    ]
    lines += [f"--grid {name} is given twice: give all its values in one list, with commas"
              for name in repeated(names) if name not in OWN_OPTIONS]  # fmt: skip
    lines += [f"--{name} {value}: a comparison takes it from {OWN_OPTIONS.get(name, '--grid')}"
              for name, value in overrides.items() if name in (*OWN_OPTIONS, *names)]  # fmt: skip
    if lines:
        raise ConfigError(list(dict.fromkeys(lines)))
    return dict(pairs)


def field_values(word: str) -> tuple[str, list[str]]:
    """Read FIELD=A,B.

    Raises:
        ConfigError: If it is something else.
    """
    name, _, values = word.partition("=")
    if not split(values):
        raise ConfigError([f"--grid takes FIELD=A,B, not {word!r}"])
    return name, split(values)


def placements(given: Any, changes: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the placements to compare as a field of the grid; nothing for a model that has none.

    Raises:
        ConfigError: If the recipe is wrong, or placements are asked of a model without.
    """
    recipe = load_recipe(given.recipe, {RATE: 1.0, **changes})
    if placement_name(recipe.model):
        named = split(given.placements or "all")
        return {PLACEMENT: list(PLACEMENTS) if named == ["all"] else named}
    if given.placements:
        raise ConfigError([f"--placements: the model of {given.recipe} has no placement; "
                           "compare other fields with --grid FIELD=A,B"])  # fmt: skip
    return {}


def run(folder: Path, sweep: Sweep, given: Any, report: ProgressBars) -> bool:
    """Run the cells that are not done; return whether all are now."""
    from magneto.lab.sweep import default_jobs, run_cluster, run_local

    jobs = default_jobs() if given.jobs is None else given.jobs
    if given.cluster:
        options = dict(word.split("=", 1) for word in given.cluster_option)
        started = run_cluster(folder, jobs, given.cluster, options)
        report.say(f"{len(started)} jobs started; waiting for them (they go on without this)")
        for job in started:
            job.result()

    def progress(done: int, total: int) -> None:
        report.update("comparing cells", done, total)

    whole = run_local(folder, sweep, 0 if given.cluster else jobs, progress)
    report.finish()
    return whole


def split(words: str) -> list[str]:
    """Split at commas."""
    return [word.strip() for word in words.split(",") if word.strip()]


def table(comparison: dict[str, Any]) -> str:
    """Write the grid of mean scores, as the report has them, and the answer for a terminal."""
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
        notes.append("(4/5): the mean of the four seeds that learned, of five.")
    sentences = [*comparison["answer"], *reason_sentences(comparison)]
    curves = [f"\n{drawn}" for drawn in loss_curves(comparison)]
    lines = [aligned(rows), *filter(None, notes), *curves, "", *sentences]
    return "\n".join(lines)


def loss_curves(comparison: dict[str, Any]) -> list[str]:
    """Draw each row's loss over the steps, a mean over seeds at its best rate, with blocks.

    A row that learned at no rate is drawn at its smallest. All rows have one scale, whose top is
    the trivial baseline where the score is a loss.
    """
    from magneto.lab.outcome import MARGIN, rate_text

    curves: dict[str, dict[int, float]] = {}
    for summary in comparison["summary"]:
        rate = summary["best_learning_rate"] or min(comparison["learning_rates"])
        points: dict[int, list[float]] = {}
        for cell in comparison["cells"]:
            if (cell["placement"], cell["learning_rate"]) == (summary["placement"], rate):
                for step, loss in cell["curve"]:
                    points.setdefault(step, []).append(loss)
        losses = {step: fmean(found) for step, found in points.items() if None not in found}
        if len(losses) > 1:
            curves[f"{summary['title']}, {rate_text(rate)}"] = losses
    if not curves:
        return []
    every = [loss for losses in curves.values() for loss in losses.values()]
    low, highest = min(every), max(every)
    high = highest
    if comparison["metric"] == "loss" and comparison["baseline"]:
        high = min(high, max(comparison["baseline"], low + MARGIN * low))
    more = " or more" if high < highest else ""
    rows = [["loss over steps", f"{high:.3g}{more} to {low:.3g}", "end"]]
    for name, losses in curves.items():
        steps = sorted(losses)
        shown = [steps[round(place * (len(steps) - 1) / (COLUMNS - 1))] for place in range(COLUMNS)]
        share = [min((losses[step] - low) / ((high - low) or 1.0), 1.0) for step in shown]
        line = "".join(BLOCKS[round(part * (len(BLOCKS) - 1))] for part in share)
        rows.append([name, line, f"{losses[steps[-1]]:.3g}"])
    return [aligned(rows)]
