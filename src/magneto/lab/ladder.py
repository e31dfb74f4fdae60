"""A ladder: the same comparison at several sizes, the smallest first. Each size has its own folder.

Results at smaller sizes determine the learning rates of the next size. Before a size is trained,
its results are forecast from the smaller sizes. The finished runs (cells) determine the next runs,
so a stopped ladder can resume. Several machines can share the ladder's folder.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from magneto.config import ConfigError
from magneto.files import acquire_lock, plain, read_object, write_json
from magneto.lab.comparison import environments, without_places
from magneto.lab.forecast import (
    answer,
    expected_failures,
    forecast,
    held_out,
    held_out_text,
    limitations,
)
from magneto.lab.grid import (
    PLACEMENT,
    RATE,
    SEED,
    Cell,
    Sweep,
    cell_directory,
    is_done,
    load_cells,
    open_sweep,
    read_spec,
    read_sweep,
    refuse_edited,
)
from magneto.lab.outcome import FINISHED, MISSING, Judge, Scored, title_of
from magneto.lab.probe import last_stack
from magneto.lab.rung import RUNG_FILE, add_sensitivity, read_rung
from magneto.lab.short_run import initial_model
from magneto.lab.sweep import default_jobs, prepare_data, run_local, training_in_steps
from magneto.lab.update import bounds_over, measure_growth, measured_shape
from magneto.nn.config import TransformerConfig
from magneto.progress import ProgressBars
from magneto.recipe import LADDER_FILE, SPEC_FILE, Recipe, load_recipe
from magneto.training.config import TrainingConfig
from magneto.training.logging import environment

# Rates to test: 1e-6, 3e-6, ..., 1, 3.
RATES = [float(f"{digit}e{power}") for power in range(-6, 1) for digit in (1, 3)]
# Share of the budget for the cells; starting workers, reading data and figures take the rest.
SHARE = 0.8
# Minimum steps of a run, and steps below which seeds are dropped before runs become shorter.
LEAST_STEPS, GOOD_STEPS = 40, 80
# Seeds of the update that is compared with the theory's bound.
UPDATE_SEEDS = range(3)


@dataclass(frozen=True)
class Ladder:
    """Specification of a ladder."""

    recipe: str  # name or path
    overrides: dict[str, Any]  # dotted fields shared by all cells
    axis: str  # "width" or "depth"
    sizes: list[int]  # sizes to train, ascending
    target: int  # size to forecast for
    rows: dict[str, list[Any]]  # dotted fields with values, placements included: their product
    rates: list[float]  # first learning rates of the smallest size
    seeds: list[int]  # of the best rate and the rates next to it; other cells have the first seed
    fitted: dict[str, Any] = field(default_factory=dict)  # dotted fields set by the budget
    capacity: float | None = None  # worker seconds for all cells; None for no limit
    race: bool = False  # see `Sweep`
    seconds: dict[str, float] = field(default_factory=dict)  # estimate for a cell, by size
    notes: list[str] = field(default_factory=list)  # for the page, on how the cells were run

    def folder(self, folder: Path, size: int) -> Path:
        return folder / "rungs" / f"{self.axis}-{size}"

    def first_recipe(self, size: int) -> Recipe:
        return self.recipes_of_first_placement(size)[0]

    def recipes_of_first_placement(self, size: int) -> list[Recipe]:
        """Return a recipe for each combination of the other varied fields."""
        cells, sweep = self.first_cells(), self.sweep(size, [])
        placement = cells[0].values.get(PLACEMENT)
        return [sweep.load(cell) for cell in cells if cell.values.get(PLACEMENT) == placement]

    def first_cells(self) -> list[Cell]:
        """Return a run of each row, with the first rate and the first seed."""
        return [Cell({**row, RATE: self.rates[0], SEED: self.seeds[0]}) for row in rows_of(self)]

    def rate_priors(self) -> dict[str, str]:
        """Return for each row the key of its best rate's prior in `forecast.PRIORS`."""
        found, sweep = {}, self.sweep(self.sizes[0], [])
        for cell in self.first_cells():
            recipe = sweep.load(cell)
            standard = recipe.model.parametrization == "standard"
            adamw = recipe.training.optimizer == "adamw"
            by_width = self.axis == "width" and standard and adamw
            found[cell.row] = "best_rate_by_width" if by_width else "best_rate"
        return found

    def forecast_file(self, folder: Path, size: int) -> Path:
        return folder / "forecasts" / f"{self.axis}-{size}.json"

    def sweep(self, size: int, cells: Sequence[Mapping[str, Any]]) -> Sweep:
        """Return the comparison at one size, with only the runs in `cells`."""
        grid = {**self.rows, RATE: [], SEED: []}
        given = {**self.overrides, **self.fitted}
        first = {name: values[0] for name, values in self.rows.items()}
        overrides = {**given, **shape(self.recipe, {**given, **first}, self.axis, size)}
        further = [dict(cell) for cell in cells]
        return Sweep(self.recipe, overrides, grid, further=further, probed=True, race=self.race)


def shape(recipe: str, overrides: Mapping[str, Any], axis: str, size: int) -> dict[str, Any]:
    """Return the values of the model's fields at one size.

    The feed-forward width and the number of heads scale with the width, and the head width stays
    constant. With the axis "depth", `size` is the number of layers of each stack.

    Raises:
        ConfigError: If the width is not a multiple of the head width, or if the model is not a
            Transformer.
    """
    model = load_recipe(recipe, {RATE: 1.0, **overrides}).model
    if not isinstance(model, TransformerConfig):
        raise ConfigError(
            [f"the model of {recipe} is not a Transformer, so a ladder can't vary its {axis}"]
        )
    if axis == "depth":
        pair = model.encoder_layers is not None
        names = ("encoder_layers", "decoder_layers") if pair else ("layers",)
        return {f"model.{name}": size for name in names}
    try:
        sized = model.at_width(size)
    except ValueError as error:
        raise ConfigError([f"--widths {size}: {error}"]) from error
    names = ("width", "heads", "ffn_width", "key_value_heads")
    return {f"model.{name}": getattr(sized, name) for name in names if getattr(sized, name)}


def open_ladder(folder: Path, ladder: Ladder, prepare: Callable[[Ladder], Ladder]) -> Ladder:
    """Begin a ladder in `folder`, or add sizes and seeds to the ladder in this folder.

    `prepare` measures the duration of runs, and fits the ladder to the budget. It is called if
    the ladder is new, if a size is new, and if the ladder has a budget but a size has no measured
    duration.

    Raises:
        ConfigError: If a recipe is wrong, or the folder has another ladder.
        ConfigError: If runs are missing and the recipe was edited after the ladder began.
        ValueError: If runs are missing and the data changed after the ladder began.
        FileExistsError: If the folder is not empty and contains no ladder.
    """
    for size in ladder.sizes:
        load_cells(ladder.sweep(size, [cell.values for cell in ladder.first_cells()]))
    path = folder / LADDER_FILE
    if path.exists():
        known = read_ladder(folder)
        fixed = {"recipe", "overrides", "axis", "rows", "rates", "race"}
        before, now = asdict(known), json.loads(json.dumps(asdict(ladder), default=str))
        changed = [name for name in fixed if before[name] != now[name]]
        changed += [name for name in ("sizes", "seeds") if not {*before[name]} <= {*now[name]}]
        if "overrides" in changed:
            old, new = before["overrides"], now["overrides"]
            fields = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            changed[changed.index("overrides")] = f"fields ({', '.join(fields)})"
            if bool(known.capacity) != bool(ladder.capacity):  # a budget sets fields
                changed.append("budget")
        if changed:
            raise ConfigError([f"{folder} contains another ladder: its "
                               f"{', '.join(sorted(changed))} differ (only sizes and seeds "
                               "may be added); choose another --out"])  # fmt: skip
        # A new seed comes last, because the first seed searches for the largest stable rate.
        seeds = [*known.seeds, *(seed for seed in ladder.seeds if seed not in known.seeds)]
        ladder = replace(ladder, seeds=seeds)
        check_data(folder, known, ladder)
        begun = replace(known, sizes=ladder.sizes, seeds=ladder.seeds, target=ladder.target,
                        capacity=ladder.capacity)  # fmt: skip
        untimed = ladder.capacity and not {*map(str, ladder.sizes)} <= {*known.seconds}
        again = untimed or ladder.sizes != known.sizes
        ladder = replace(begun, seconds=prepare(begun).seconds) if again else begun
    elif folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} already exists and is not empty; choose another --out")
    else:
        prepared = prepare(ladder)
        if path.exists():  # another machine began it meanwhile
            return open_ladder(folder, ladder, prepare)
        ladder = prepared
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(ladder))
    return ladder


def check_data(folder: Path, known: Ladder, ladder: Ladder) -> None:
    """Check that missing runs would have the same recipe and data as the runs in the folder."""
    timed = {*map(str, known.sizes)} <= {*known.seconds}
    capacity = ladder.capacity if timed else None
    wanted = replace(known, seeds=ladder.seeds, capacity=capacity)
    missing = ladder.sizes != known.sizes or any(
        afforded(folder, wanted, size, missing_cells(folder, wanted, size)) for size in known.sizes
    )
    rungs = [known.folder(folder, size) for size in known.sizes]
    begun = [rung for rung in rungs if missing and (rung / "cells").is_dir()]
    for rung in begun:
        refuse_edited(rung, read_sweep(rung))
    if begun:
        prepare_data(begun[0], read_sweep(begun[0]))


def read_ladder(folder: Path) -> Ladder:
    return read_spec(folder / LADDER_FILE, Ladder, "ladder")


def fit_budget(
    ladder: Ladder,
    training: TrainingConfig,
    timed: Mapping[int, tuple[float, float]],
    fewer_seeds: bool = False,
) -> Ladder:
    """Return a ladder with as many steps per run as the budget allows.

    `training` is the recipe's section `training`, with epochs converted to steps. `timed` has two
    numbers for each size: the seconds of a step, and the seconds that a run needs besides its
    steps. If `fewer_seeds` is true and runs would have fewer than `GOOD_STEPS` steps, seeds are
    dropped to make runs longer. If the number of steps was fitted before, it does not change.

    Raises:
        ConfigError: If the budget allows fewer steps than `LEAST_STEPS`, and fewer than the recipe
            sets.
    """
    counts = {size: planned(ladder, size) for size in ladder.sizes}
    besides = sum(counts[size] * timed[size][1] for size in ladder.sizes)
    a_step = sum(counts[size] * timed[size][0] for size in ladder.sizes)
    capacity = ladder.capacity or math.inf
    affordable = math.inf if ladder.fitted else (capacity - besides) / a_step
    steps = int(min(training.steps, affordable))
    if fewer_seeds and len(ladder.seeds) > 1 and steps < min(GOOD_STEPS, training.steps):
        fewer = replace(ladder, seeds=ladder.seeds[:-1])
        return fit_budget(fewer, training, timed, fewer_seeds)
    least = min(LEAST_STEPS, training.steps)
    if steps < least:
        needed = (besides + least * a_step) / capacity
        raise ConfigError([f"--budget is too short: {sum(counts.values())} runs of {least} "
                           f"steps need {needed:.1f} times this budget; choose smaller "
                           f"--{ladder.axis}s, fewer --placements, fewer values of --grid or "
                           "fewer --seeds"])  # fmt: skip
    changes: dict[str, Any] = {
        "training.steps": steps,
        "training.warmup_steps": round(training.warmup_steps * steps / training.steps),
    }
    if training.epochs is not None:
        changes["training.epochs"] = None
    seconds = {str(size): timed[size][1] + steps * timed[size][0] for size in ladder.sizes}
    note = (f"The budget allows {steps} of the recipe's {training.steps} steps. The seeds are "
            f"{', '.join(map(str, ladder.seeds))}."
            if steps < training.steps else "")  # fmt: skip
    return replace(
        ladder, fitted=changes, seconds=seconds,
        notes=[*ladder.notes, *filter(None, [note])],
    )  # fmt: skip


def planned(ladder: Ladder, size: int) -> int:
    """Return the approximate number of runs at one size."""
    rows = math.prod(len(values) for values in ladder.rows.values())
    if size == ladder.sizes[0]:
        return rows * (len(ladder.rates) + 3 * (len(ladder.seeds) - 1) + 3)
    return rows * (3 * len(ladder.seeds) + 3)


def run_ladder(folder: Path, ladder: Ladder, jobs: int, report: ProgressBars) -> bool:
    """Run every size, the smallest first. Return whether all cells are finished."""
    for size in ladder.sizes:
        rung_folder = ladder.folder(folder, size)
        below = [read_rung(ladder.folder(folder, s), s) for s in ladder.sizes if s < size]
        file = ladder.forecast_file(folder, size)
        begun = (rung_folder / SPEC_FILE).exists()
        if below and not begun and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            found = forecast(below, size, ladder.rate_priors())
            write_json(file, plain({"commit": environment()["commit"], **found}))
        while sweep := next_sweep(folder, ladder, size):
            describe_rung(rung_folder, sweep, report)
            what = f"{ladder.axis} {size}: training runs"
            complete = run_local(
                rung_folder, sweep, jobs or default_jobs(),
                lambda done, total, what=what: report.update(what, done, total),
            )  # fmt: skip
            report.finish()
            if not complete:
                return False
    return True


def next_sweep(folder: Path, ladder: Ladder, size: int) -> Sweep | None:
    """Add the next runs to the comparison at one size. Return None if there are no more runs.

    A lock on the folder keeps machines from overwriting each other's cells.
    """
    rung_folder = ladder.folder(folder, size)
    lock = acquire_lock(folder, math.inf)
    try:
        cells = afforded(folder, ladder, size, missing_cells(folder, ladder, size))
        return open_sweep(rung_folder, ladder.sweep(size, cells)) if cells else None
    finally:
        if lock:
            lock.release()


def describe_rung(rung_folder: Path, sweep: Sweep, report: ProgressBars) -> None:
    """Write the baselines at one size, and the result of `update_to_bound` for each row."""
    if (rung_folder / RUNG_FILE).exists():
        return
    recipe = sweep.load(sweep.cells()[0])
    task = recipe.build_task()
    task.prepare(report)
    updates = {row: update_to_bound(sweep.load(own[0])) for row, own in sweep.rows().items()}
    write_json(rung_folder / RUNG_FILE, {
        **asdict(Judge.of_ladder(task, recipe.training.evaluate_limit)),
        "adam_eps": recipe.training.eps,
        "steps": training_in_steps(recipe, task).steps,
        "updates": updates,
    })  # fmt: skip


def update_to_bound(recipe: Recipe) -> list[float]:
    """Return the change of a label's logit by one SGD step, divided by the theory's bound.

    The result has one value for each seed in `UPDATE_SEEDS`. The change is measured with random
    inputs on a stack with the recipe's width and depth. The result is [] if no bound is derived for
    the placement.
    """
    task = recipe.build_task()
    task.prepare()  # sizes of the model may depend on the data
    last = last_stack(initial_model(task, recipe.training, recipe.seed))
    depths, stack = [len(last.layers)], "decoder" if last.causal else "encoder"
    bounds = bounds_over(last.config.row, depths, stack)
    if not bounds:
        return []
    found = measure_growth(
        measured_shape(last.config, last.config.width), depths=depths,
        seeds=UPDATE_SEEDS, samples=1, stack=stack,
    )  # fmt: skip
    (limit,) = bounds["paper"]
    return [abs(u.value) / limit for u in found if (u.reading, u.optimizer) == ("label", "sgd")]


def missing_cells(folder: Path, ladder: Ladder, size: int) -> list[dict[str, Any]]:
    """Return the next runs at one size, from the results and the forecast at this size."""
    rung_folder, file = ladder.folder(folder, size), ladder.forecast_file(folder, size)
    mine = read_rung(rung_folder, size)["rows"] if (rung_folder / RUNG_FILE).exists() else {}
    forecasts = read_object(file, "rows")["rows"] if file.exists() else {}
    cells = []
    for values in rows_of(ladder):
        row = Cell(values).row
        start, below = list(ladder.rates), forecasts.get(row)
        if below:
            place = RATES.index(nearest(below["best_rate"]["value"]))
            start = RATES[max(place - 1, 0) : place + 2]
        tried = [Scored(**cell) for cell in mine.get(row, {}).get("cells", [])]
        stable = below["stable_below"] if below else None
        wanted = next_cells(tried, start, ladder.seeds, stable, bool(below))
        cells += [{**values, RATE: rate, SEED: seed} for rate, seed in wanted]
    return cells


def rows_of(ladder: Ladder) -> list[dict[str, Any]]:
    return [cell.values for cell in Sweep(ladder.recipe, {}, ladder.rows).cells()]


def next_cells(
    tried: Sequence[Scored],
    start: Sequence[float],
    seeds: Sequence[int],
    stable: float | None = None,
    every_seed: bool = False,
) -> list[tuple[float, int]]:
    """Return a row's next runs, each as (learning rate, seed); [] if there are no more runs.

    The runs of a row differ only in learning rate and seed, and are added in three stages. In stage
    1, the rates in `start` run with the first seed, or with every seed if `every_seed` is true. In
    stage 2, the best rate and the neighbouring rates run with every seed. Stage 2 repeats if
    another rate becomes the best. In stage 3, runs with the first seed find the largest stable
    rate. `stable` is the largest stable rate of the previous, smaller size.
    """
    known = {(cell.learning_rate, cell.seed): cell for cell in tried if cell.status != MISSING}
    first = seeds[0]
    begin = [(rate, seed) for rate in start for seed in (seeds if every_seed else seeds[:1])]
    if left := [cell for cell in begin if cell not in known]:
        return left
    ended = {key: cell.loss for key, cell in known.items() if cell.loss is not None}
    tested = sorted(rate for rate, seed in known if seed == first)
    failed = {rate for (rate, _), cell in known.items() if cell.status != FINISHED}
    learned = [rate for rate in tested if rate not in failed]
    if not learned:
        # Move towards the lower loss.
        best = min(tested, key=lambda rate: ended.get((rate, first), math.inf))
        beyond = {tested[-1]: beside(best, 1), tested[0]: beside(best, -1)}.get(best, 0.0)
        return [(beyond, first)] if 0 < beyond < math.inf else []
    complete = {rate: fmean(ended[rate, seed] for seed in seeds) for rate in learned
                if all((rate, seed) in known for seed in seeds)}  # fmt: skip
    means = complete or {rate: ended[rate, first] for rate in learned}
    best = min(means, key=lambda rate: means[rate])
    wanted = []
    for rate in (best, *around(best, tested)):
        lost = (rate, first) in known and (rate, first) not in ended
        if 0 < rate < math.inf and not lost:
            wanted += [(rate, seed) for seed in seeds]
    decisive = [cell for cell in dict.fromkeys(wanted) if cell not in known]
    return decisive or next_stable(tested, failed, best, stable, first)


def next_stable(
    tested: Sequence[float],
    failed: Collection[float],
    best: float,
    below: float | None,
    seed: int,
) -> list[tuple[float, int]]:
    """Return the next runs of the search for the largest stable rate.

    `below` is the largest stable rate of the previous, smaller size. If `below` exceeds `best`, the
    search begins with two rates: `below`, and the next larger rate of `RATES`. Otherwise, the
    search begins above `best`. The search ends when the next rate of `RATES` above the largest
    stable rate has failed, or if `RATES` has no larger rate. `tested` contains the tested rates,
    ascending, and `failed` the rates at which a run failed.
    """
    if below and below > best:
        guess = [rate for rate in (below, beside(below, 1)) if rate < math.inf]
        if left := [(rate, seed) for rate in guess if rate not in tested]:
            return left
    above = min((rate for rate in tested if rate > best and rate in failed), default=None)
    largest = max(rate for rate in tested if above is None or rate < above)
    following = beside(largest, 1) if above is None else beside(above, -1)
    wanted = following < math.inf if above is None else following > 1.2 * largest
    return [(following, seed)] if wanted else []


def around(best: float, tried: Sequence[float]) -> tuple[float, float]:
    """Return the nearest rates below and above `best`, among `RATES` and the tested rates."""
    lower = max([beside(best, -1), *(rate for rate in tried if rate < best)])
    upper = min([beside(best, 1), *(rate for rate in tried if rate > best)])
    return lower, upper


def nearest(rate: float, rates: Sequence[float] = RATES) -> float:
    """Return the rate in `rates` that is nearest to `rate` on a logarithmic scale."""
    return min(rates, key=lambda other: abs(math.log(other / rate)))


def beside(rate: float, step: int) -> float:
    """Return the nearest rate in `RATES` that is larger or smaller by a factor of at least 1.5.

    With `step` 1, the result is larger than `rate`, or infinity if `RATES` has no such rate. With
    `step` -1, the result is smaller than `rate`, or 0 if `RATES` has no such rate.
    """
    far = [other for other in RATES if step * math.log(other / rate) >= math.log(1.5)]
    return nearest(rate, far) if far else max(0.0, step * math.inf)


def afforded(
    folder: Path, ladder: Ladder, size: int, cells: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the runs in `cells` that the size's budget still allows, chosen in the order of seeds.

    While no run of this size has finished, all runs with the first seed are allowed. Runs that
    were allowed before a stop are still allowed.
    """
    if ladder.capacity is None or not cells:
        return cells
    costs = {s: planned(ladder, s) * ladder.seconds[str(s)] for s in ladder.sizes}
    share = sum(cost for s, cost in costs.items() if s <= size) / sum(costs.values())
    took = {s: seconds_of(ladder.folder(folder, s)) for s in ladder.sizes}
    here = took[size]
    each = sum(here) / len(here) if here else ladder.seconds[str(size)]
    left = ladder.capacity * share - sum(map(sum, took.values()))
    count = int(left / each)
    order = sorted(cells, key=lambda values: ladder.seeds.index(values[SEED]))
    least = 0 if here else sum(values[SEED] == ladder.seeds[0] for values in cells)
    return order[: max(count, least)] or unfinished(ladder.folder(folder, size))


def count_open_runs(folder: Path, ladder: Ladder, size: int) -> dict[str, Counter[str]]:
    """Return the numbers of next runs and of runs that the budget leaves out, for each row."""
    cells = missing_cells(folder, ladder, size)
    waiting = afforded(folder, ladder, size, cells)
    left_out = [cell for cell in cells if cell not in waiting]
    return {name: Counter(Cell(values).row for values in some)
            for name, some in (("waiting", waiting), ("left_out", left_out))}  # fmt: skip


def unfinished(rung_folder: Path) -> list[dict[str, Any]]:
    if not (rung_folder / SPEC_FILE).exists():
        return []
    planned = read_sweep(rung_folder).cells()
    return [cell.values for cell in planned if not is_done(rung_folder, cell)]


def seconds_of(rung_folder: Path) -> list[float]:
    paths = sorted(rung_folder.glob("cells/*/outcome.json"))
    return [float(read_object(path, "seconds")["seconds"]) for path in paths]


def collect_ladder(folder: Path, ladder: Ladder, command: str) -> dict[str, Any]:
    """Return the results and the forecast of a ladder that has begun, as JSON values.

    Absolute paths are cut to their last component, so that the result can be published.
    """
    sizes = [size for size in ladder.sizes if (ladder.folder(folder, size) / RUNG_FILE).exists()]
    rungs = [read_rung(ladder.folder(folder, size), size) for size in sizes]
    for rung in rungs:
        counts = count_open_runs(folder, ladder, rung["size"])
        for row, part in rung["rows"].items():
            part |= {name: count[row] for name, count in counts.items()}
    parts = [part for rung in rungs for part in rung["rows"].values()]
    add_sensitivity(rungs)
    prediction = forecast(rungs, ladder.target, ladder.rate_priors())
    troubles = {row: expected_failures(rungs, laws, ladder.target)
                for row, laws in prediction["rows"].items()}  # fmt: skip
    entries = [
        entry
        for rung in rungs
        if (file := ladder.forecast_file(folder, rung["size"])).exists()
        for entry in held_out(rung, read_object(file, "rows", "from"))
    ]
    open_points = limitations(ladder.axis, ladder.target, rungs, prediction)
    if further := sum(part["left_out"] for part in parts):
        open_points.append(f"The budget was too short for {further} further runs, which would make "
                           "the best rates and the largest stable rates more precise.")  # fmt: skip
    cells = [
        cell_directory(ladder.folder(folder, size), cell)
        for size in sizes
        for cell in read_sweep(ladder.folder(folder, size)).cells()
    ]
    return plain({
        "recipe": without_places(ladder.recipe),
        "command": without_places(command),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environments(cells),
        "axis": ladder.axis,
        "sizes": sizes,
        "target": ladder.target,
        "rows": {row: title_of(row) for row in rungs[-1]["rows"]},
        "seeds": ladder.seeds,
        "overrides": without_places({**ladder.overrides, **ladder.fitted}),
        "notes": ladder.notes,
        "complete": len(sizes) == len(ladder.sizes) and not any(part["waiting"] for part in parts),
        "cells": len(cells),
        "hours": sum(sum(seconds_of(ladder.folder(folder, size))) for size in sizes) / 3600,
        "rungs": rungs,
        "forecast": prediction,
        "troubles": troubles,
        "held_out": entries,
        "answer": answer(ladder.axis, ladder.target, prediction, troubles),
        "held_out_text": held_out_text(entries),
        "limitations": open_points,
    })  # fmt: skip
