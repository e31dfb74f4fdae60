"""The scores of runs and comparisons by column, as `magneto table` sets them side by side.

A column is a run's own validation data, or a set that its model was measured on without further
training: `magneto evaluate RUN --keep NAME` has kept that in the run, or a leaderboard's result
lies there. What is kept under one name by runs on different data stands in columns of their own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

from magneto.config import ConfigError
from magneto.files import MANIFEST, Damaged, read_json, read_object
from magneto.lab.grid import (
    PLACEMENT,
    RATE,
    SEED,
    SPEC_FILE,
    cell_directory,
    read_result,
    read_sweep,
)
from magneto.recipe import Recipe, open_run, placement_name

SCORES = "scores"
"""Folder in a run that has what `magneto evaluate --keep NAME` measured, NAME.json."""
# Fields of training that seeds of one row must have in common, besides model and data.
TRAINED = ("training.steps", "training.batch_size", "training.warmup_steps", "training.schedule")
Point = tuple[tuple[str, Any], ...]
"""Dotted fields and their values."""


@dataclass(frozen=True)
class Preset:
    """What a table shows of runs.

    Attributes:
        tasks: What the column of a run's own data is called, by its task; {data} and {metric} stand
            for their names. Runs of other tasks are refused; if empty, any task will do.
        columns: The only columns of own data, in their order; empty for the metric that
            checkpoints are chosen by, of whatever data there is.
        averaged: Columns whose mean is the last one, as far as every row has them.
        splits: Columns of scores that are kept as SPLIT or NAME-SPLIT (`magneto evaluate RUN
            --splits SPLIT --keep NAME`).
        paper: The paper's numbers of these splits by row.
        by_origin: Whether a row says where its model begins; else how many layers it has.
        at_end: Whether own scores are those after the last step, not those of the best weights.
        scale: What metrics are multiplied by: 100 where they are shares.
        decimals: Of a score; one where its interval is 1 or more.
    """

    tasks: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    averaged: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    paper: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    by_origin: bool = False
    at_end: bool = False
    scale: float = 100.0
    decimals: int = 1


@dataclass(frozen=True)
class Kept:
    """A score on other data than a run's own, and the half-width of its interval over examples."""

    value: float
    half_width: float = math.nan


@dataclass(frozen=True)
class Measured:
    """A run of a table.

    Attributes:
        directory: Of the run.
        recipe: Its recipe.
        row: Placement's title, and number of layers or where the model begins.
        own: Column by which its point is chosen: its own validation data by the task's metric.
        higher_is_better: Direction of that metric.
        point: Of the grid.
        scores: On its own validation data by column; empty for a run that has none.
        kept: On other data by column.
        why: It has no score; "" if it has one.
    """

    directory: Path
    recipe: Recipe
    row: str
    own: str
    higher_is_better: bool
    point: Point
    scores: Mapping[str, float]
    kept: Mapping[str, Kept]
    why: str

    @property
    def values(self) -> dict[str, Kept]:
        """Its scores by column, its own first; none for a run without a score of its own."""
        own = {name: Kept(value) for name, value in self.scores.items()}
        return own | dict(self.kept) if own else {}


@dataclass(frozen=True)
class Found:
    """A run as it lies: its directory, recipe, the file of its result, that, and its point."""

    directory: Path
    recipe: Recipe
    file: Path
    outcome: Mapping[str, Any]
    point: Point


def read_runs(folders: Sequence[Path], preset: Preset, weights: str = "best") -> list[Measured]:
    """Return the runs of comparisons, and runs themselves.

    Args:
        folders: Of them.
        preset: The table.
        weights: That kept scores must be of.

    Raises:
        FileNotFoundError: If a folder is neither.
        ConfigError: If a run is of another task, is there twice, or is no seed of its row.
        Damaged: If a result or a score is none.
    """
    found = [run for folder in folders for run in (
        comparison(folder) if (folder / SPEC_FILE).is_file() else [single(folder)])]  # fmt: skip
    names = source_names([source_of(run.recipe) for run in found])
    runs = [measured(run, names[source_of(run.recipe)], preset, weights) for run in found]
    check_seeds(runs)
    return with_columns_apart(runs)


def comparison(folder: Path) -> Iterator[Found]:
    """Yield the runs of a comparison; points are without placement and seed."""
    sweep = read_sweep(folder)
    for cell in sweep.cells():
        run, outcome = cell_directory(folder, cell), read_result(folder, cell) or {}
        point = tuple((key, v) for key, v in cell.values.items() if key not in (PLACEMENT, SEED))
        yield Found(run, sweep.load(cell), run / "outcome.json", outcome, point)


def single(run: Path) -> Found:
    """Return a run that is no part of a comparison.

    Raises:
        FileNotFoundError: If there is none.
    """
    recipe, ended = open_run(run), run / "result.json"
    outcome = read_object(ended) if ended.is_file() else {}
    return Found(run, recipe, ended, outcome, ((RATE, recipe.training.learning_rate),))


def source_of(recipe: Recipe) -> str:
    """Return where a run's data lies; of GLUE, the task; the run's task where nothing says it."""
    data: Any = recipe.data
    glue = getattr(data, "glue", "none")
    return getattr(data, "source", recipe.task) if glue == "none" else glue


def row_of(recipe: Recipe, by_origin: bool) -> str:
    """Return "Sub-LN, 12 layers", "Sub-LN, 6+6 layers"; or "Sub-LN, from scratch" or a run.

    It is the task where the model has no placement.
    """
    model: Any = recipe.model
    if not placement_name(model):
        return recipe.task
    if not by_origin:
        stacks = [getattr(model, f"{stack}_layers", None) for stack in ("encoder", "decoder")]
        layers = model.layers if None in stacks else "+".join(map(str, stacks))
        return f"{model.row.title}, {layers} layers"
    source = (model.pretrained or "scratch").replace("{placement}", model.row.name)
    return f"{model.row.title}, from {source}"


def measured(run: Found, data: str, preset: Preset, weights: str) -> Measured:
    """Return what is known of a run whose data has a name in the table.

    Raises:
        ConfigError: If it is none of the table's, or a kept score is not of the whole set or there
            twice.
        Damaged: If its result is none.
    """
    recipe = run.recipe
    if preset.tasks and recipe.task not in preset.tasks:
        raise ConfigError([f"{run.directory}: its task is {recipe.task}, not "
                           f"{' or '.join(preset.tasks)}"])  # fmt: skip
    task, title = recipe.build_task(), preset.tasks.get(recipe.task, "{data} {metric}")
    metric = task.primary_metric
    own = title.format(data=data, metric=metric)
    if preset.columns and own not in preset.columns:
        raise ConfigError([f"{run.directory}: {own} is none of the table's columns, "
                           f"{', '.join(preset.columns)}"])  # fmt: skip
    metrics, why = own_metrics(run, metric, preset.at_end)
    named = {title.format(data=data, metric=name): value for name, value in metrics.items()}
    scores = {name: preset.scale * value for name, value in named.items()
              if name == own or name in preset.columns}  # fmt: skip
    kept: dict[str, Kept] = {}
    held: dict[str, Path] = {}
    for file in sorted((run.directory / SCORES).glob("*.json")) if scores else ():
        for stem, score in kept_scores(file, metric, preset.scale, weights).items():
            ending = (split for split in preset.splits if f"-{stem}".endswith(f"-{split}"))
            name = next(ending, stem)
            if name in held:
                raise ConfigError([f"{held[name]} and {file} both have {name}: remove one"])
            kept[name], held[name] = score, file
    row = row_of(recipe, preset.by_origin)
    better = task.higher_is_better
    return Measured(run.directory, recipe, row, own, better, run.point, scores, kept, why)


def own_metrics(run: Found, metric: str, at_end: bool) -> tuple[dict[str, float], str]:
    """Return a run's metrics on its own validation data; or none, and why it has none.

    The one by which checkpoints are chosen is that of the best weights, which `magneto evaluate`
    measures where none are named; unless it is asked for what was measured at the end.

    Raises:
        Damaged: If its result is none.
    """
    status = run.outcome.get("status")
    if status != "finished":
        return {}, "diverged" if status == "diverged" else "no result yet"
    metrics, best = run.outcome.get("metrics"), run.outcome.get("best") or {}
    if not isinstance(metrics, dict) or not isinstance(best, dict):
        raise Damaged(f"{run.file} is damaged: it has no metrics")
    value = metrics.get(metric) if at_end else best.get("value", metrics.get(metric))
    if value is None:
        return {}, f"no {metric}"
    if not is_number(value):
        raise Damaged(f"{run.file} is damaged: its {metric} is {value!r}")
    return {metric: value} | {k: v for k, v in metrics.items() if k != metric and is_number(v)}, ""


def kept_scores(file: Path, metric: str, scale: float, weights: str) -> dict[str, Kept]:
    """Return the scores in a file of a run by column.

    Args:
        file: What `magneto evaluate --keep NAME` wrote, whose column is NAME; or the result that
            VQA's leaderboard gives, [{"test-dev": {"overall": 71.2, ...}}], with a column for each
            of its parts, times 100 already.
        metric: By which the run is chosen.
        scale: What it is multiplied by.
        weights: That it must be of.

    Raises:
        ConfigError: If `magneto evaluate` measured other weights, or a part of a set, or the
            weights were written again since; or if the file is neither.
        Damaged: If the score is no number.
    """
    found = read_json(file)
    if not isinstance(found, dict) or not isinstance(found.get("metrics"), dict):
        return leaderboard_scores(file, found)
    of, limit = found.get("weights", weights), found.get("limit")
    if of != weights or limit is not None:
        what = f"{limit} batches alone" if limit is not None else f"the weights {of}, not {weights}"
        raise ConfigError([f"{file} was measured with {what}: measure it anew, or remove it"])
    written = file.parent.parent / of / MANIFEST
    if written.is_file() and read_json(written) != found.get("manifest"):
        raise ConfigError([f"{file} was measured before {written.parent} was written: measure it "
                           "anew, or remove it"])  # fmt: skip
    value = found["metrics"].get(metric)
    if value is not None and not is_number(value):
        raise Damaged(f"{file} is damaged: its {metric} is {value!r}")
    if value is None:
        return {}
    half = found["metrics"].get(f"{metric}_half_width")
    return {file.stem: Kept(scale * value, scale * half if is_number(half) else math.nan)}


def leaderboard_scores(file: Path, found: Any) -> dict[str, Kept]:
    """Return what a leaderboard gave for parts of a test set, each once.

    Raises:
        ConfigError: If there is no part, or something else than a number for one.
    """
    parts = found if isinstance(found, list) else [found]
    pairs = [pair for part in parts if isinstance(part, dict) for pair in part.items()]
    scores = [(name, value.get("overall")) for name, value in pairs if isinstance(value, dict)]
    numbers = {name: Kept(float(score)) for name, score in scores if is_number(score)}
    if not numbers or len(numbers) < len(scores):
        raise ConfigError([f"{file} is neither what `magneto evaluate --keep` writes nor a result "
                           'as [{"test-dev": {"overall": 71.2}}]'])  # fmt: skip
    return numbers


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value of JSON is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_seeds(runs: Sequence[Measured]) -> None:
    """Raise ConfigError if runs at one point of a row are not seeds of one recipe."""
    from magneto.training.checkpoint import LOCATIONS, differences

    def compared(name: str) -> bool:
        return name in TRAINED or (name.startswith(("model.", "data.")) and name not in LOCATIONS)

    held: dict[tuple[str, str, Point], dict[int, Measured]] = {}
    for run in runs:
        others = held.setdefault((run.row, run.own, run.point), {})
        if (other := others.get(run.recipe.seed)) is not None:
            raise ConfigError([f"{other.directory} and {run.directory} both have {run.row} on "
                               f"{run.own} at {words(run.point)}, seed {run.recipe.seed}: give "
                               "one of them"])  # fmt: skip
        for other in list(others.values())[:1]:
            before, after = (each.recipe.to_mapping() for each in (other, run))
            if found := [line for name, line in differences(before, after) if compared(name)]:
                raise ConfigError([f"{run.directory} and {other.directory} would be seeds of one "
                                   f"row ({run.row}, {words(run.point)}), but {', '.join(found)}: "
                                   "leave one out"])  # fmt: skip
        others[run.recipe.seed] = run


def with_columns_apart(runs: Sequence[Measured]) -> list[Measured]:
    """Return runs in whose columns there are scores of one kind each.

    A name under which runs on different data have kept something, or that is some run's own data,
    is put behind the name of each run's data.
    """
    keepers: dict[str, set[str]] = {}
    for run in runs:
        for name in run.kept:
            keepers.setdefault(name, set()).add(run.own)
    shared = {name for name, owns in keepers.items() if len(owns) > 1} | {run.own for run in runs}
    return [
        replace(run, kept={f"{run.own}: {name}" if name in shared else name: value
                           for name, value in run.kept.items()})
        for run in runs
    ]  # fmt: skip


def words(point: Point) -> str:
    """Return a point in words."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in point)


def name_of(source: str) -> str:
    """Return the last part of a path, or of a data set's name."""
    return source.rstrip("/").replace(":", "/").rpartition("/")[2] or source


def source_names(sources: Sequence[str]) -> dict[str, str]:
    """Return a name of each source: its last part, or all of it where another is called so too."""
    alike = Counter(map(name_of, set(sources)))
    return {one: name_of(one) if alike[name_of(one)] == 1 else one for one in sources}
