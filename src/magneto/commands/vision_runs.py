"""Runs and comparisons of tasks over images as a table's command finds them: scores by column.

A column is what a run is chosen by, its own validation data by its best weights, or a set that its
model was measured on without further training: `magneto evaluate RUN --keep NAME` has kept it in
the run, or a leaderboard's result lies there. What is kept under one name by runs on different data
stands in columns of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from magneto.analysis.sweep.cells import PLACEMENT, RATE, SEED, Cell
from magneto.commands.source_names import source_names
from magneto.commands.validation_scores import SCORES
from magneto.config import ConfigError
from magneto.files import Damaged, read_json, read_object
from magneto.recipe import Recipe, open_run, task_class

Tasks = Mapping[str, str]
"""What the column of a task's own validation data is called; {} stands for the data's name."""

TASKS: Tasks = {"image-classification": "{}", "segmentation": "{}"}
VISION_LANGUAGE_TASKS: Tasks = {
    "visual-question-answering": "VQA, {}", "visual-reasoning": "NLVR, {}",
}  # fmt: skip
Point = tuple[tuple[str, Any], ...]
"""Dotted fields and their values."""


@dataclass(frozen=True)
class Given:
    """A run as it lies.

    Attributes:
        directory: Of the run.
        recipe: Its recipe.
        file: Has its result.
        outcome: Its result; empty if it has none.
        point: Of the grid.
    """

    directory: Path
    recipe: Recipe
    file: Path
    outcome: Mapping[str, Any]
    point: Point

    @property
    def source(self) -> str:
        """Its data."""
        data: Any = self.recipe.data
        return data.source


@dataclass(frozen=True)
class Trained:
    """A run of a table.

    Attributes:
        row: Placement's title and number of layers.
        own: Name of its own validation data.
        point: Of the grid.
        seed: Of the run.
        score: On its own validation data, times 100; None for a run that has none.
        kept: Scores on other data by column, times 100.
        why: It has no score; "" if it has one.
    """

    row: str
    own: str
    point: Point
    seed: int
    score: float | None
    kept: Mapping[str, float]
    why: str

    @property
    def values(self) -> dict[str, float]:
        """Its scores by column, its own first; none for a run without a score of its own."""
        return {} if self.score is None else {self.own: self.score, **self.kept}


def read_folders(folders: Sequence[Path], tasks: Tasks = TASKS) -> list[Trained]:
    """Return the runs of comparisons, and runs themselves.

    Args:
        folders: Of them.
        tasks: Of the table.

    Raises:
        FileNotFoundError: If a folder is neither.
        ConfigError: If one is of another task, or there twice.
    """
    from magneto.analysis.sweep.sweep import SPEC_FILE
    from magneto.training.task import DIGEST_FILE

    given = [(folder, run) for folder in folders for run in (
        comparison(folder) if (folder / SPEC_FILE).is_file() else [single(folder)])]  # fmt: skip
    digests: dict[str, set[str]] = {}
    for _, run in given:
        file, own = run.directory / DIGEST_FILE, digests.setdefault(run.source, set())
        own |= {file.read_text("utf-8")} if file.is_file() else set()
    names = source_names(digests)
    found: dict[tuple, Path] = {}
    runs = []
    for folder, one in given:
        run = trained(one, names[one.source], tasks)
        place = (run.row, run.own, run.point, run.seed)
        if place in found:
            raise ConfigError([f"{found[place]} and {folder} both have {run.row} on {run.own} "
                               f"at {words(run.point)}, seed {run.seed}"])  # fmt: skip
        found[place] = folder
        runs.append(run)
    return with_columns_apart(runs)


def with_columns_apart(runs: Sequence[Trained]) -> list[Trained]:
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


def comparison(folder: Path) -> Iterator[Given]:
    """Yield the runs of a comparison."""
    from magneto.analysis.sweep.sweep import cell_directory, read_result, read_sweep

    sweep = read_sweep(folder)
    for cell in sweep.cells():
        run, outcome = cell_directory(folder, cell), read_result(folder, cell) or {}
        yield Given(run, sweep.load(cell), run / "outcome.json", outcome, point_of(cell))


def single(run: Path) -> Given:
    """Return a run that is no part of a comparison.

    Raises:
        FileNotFoundError: If there is none.
    """
    recipe, ended = open_run(run), run / "result.json"
    outcome = read_object(ended) if ended.is_file() else {}
    return Given(run, recipe, ended, outcome, ((RATE, recipe.training.learning_rate),))


def point_of(cell: Cell) -> Point:
    """Return what a grid sets, besides placement and seed."""
    return tuple((key, v) for key, v in cell.values.items() if key not in (PLACEMENT, SEED))


def trained(run: Given, name_of_data: str, tasks: Tasks) -> Trained:
    """Return what is known of a run.

    Args:
        run: As it lies.
        name_of_data: In the table.
        tasks: Of the table.

    Raises:
        ConfigError: If its task is none of the table's, or a kept score is not of the whole set or
            there twice.
        Damaged: If its result is none.
    """
    recipe = run.recipe
    if recipe.task not in tasks:
        raise ConfigError([f"{run.directory}: its task is {recipe.task}, not "
                           f"{' or '.join(tasks)}"])  # fmt: skip
    metric = task_class(recipe.task).primary_metric
    score, why = own_score(run, metric)
    known: dict[str, float] = {}
    held: dict[str, Path] = {}
    for file in sorted((run.directory / SCORES).glob("*.json")) if score is not None else ():
        for name, value in kept_scores(file, metric).items():
            if name in held:
                raise ConfigError([f"{held[name]} and {file} both have {name}: remove one"])
            known[name], held[name] = value, file
    row = f"{recipe.model.row.title}, {recipe.model.layers} layers"
    own = tasks[recipe.task].format(name_of_data)
    return Trained(row, own, run.point, recipe.seed, score, known, why)


def own_score(run: Given, metric: str) -> tuple[float | None, str]:
    """Return a run's score on its own validation data, times 100; or None, and why it has none.

    It is that of the weights that `magneto evaluate` measures where none are named.

    Raises:
        Damaged: If its result is none.
    """
    status = run.outcome.get("status")
    if status != "finished":
        return None, "diverged" if status == "diverged" else "no result yet"
    metrics, best = run.outcome.get("metrics"), run.outcome.get("best") or {}
    if not isinstance(metrics, dict) or not isinstance(best, dict):
        raise Damaged(f"{run.file} is damaged: it has no metrics")
    value = best.get("value", metrics.get(metric))
    if value is None:
        return None, f"no {metric}"
    if not is_number(value):
        raise Damaged(f"{run.file} is damaged: its {metric} is {value!r}")
    return 100 * value, ""


def kept_scores(file: Path, metric: str) -> dict[str, float]:
    """Return the scores in a file of a run by column, times 100.

    Args:
        file: What `magneto evaluate --keep NAME` wrote, whose column is NAME; or the result that
            VQA's leaderboard gives, [{"test-dev": {"overall": 71.2, ...}}], with a column for each
            of its parts.
        metric: By which the run is chosen.

    Raises:
        ConfigError: If `magneto evaluate` measured other weights than the best, or a part of a
            set; or if the file is neither.
        Damaged: If the score is no number.
    """
    found = read_json(file)
    if not isinstance(found, dict) or not isinstance(found.get("metrics"), dict):
        return leaderboard_scores(file, found)
    weights, limit = found.get("weights", "best"), found.get("limit")
    if weights != "best" or limit is not None:
        what = f"{limit} batches alone" if limit is not None else f"the weights {weights}, not best"
        raise ConfigError([f"{file} was measured with {what}: measure it anew, or remove it"])
    value = found["metrics"].get(metric)
    if value is not None and not is_number(value):
        raise Damaged(f"{file} is damaged: its {metric} is {value!r}")
    return {} if value is None else {file.stem: 100 * value}


def leaderboard_scores(file: Path, found: Any) -> dict[str, float]:
    """Return what a leaderboard gave for parts of a test set, each once.

    Raises:
        ConfigError: If there is no part, or something else than a number for one.
    """
    parts = found if isinstance(found, list) else [found]
    pairs = [pair for part in parts if isinstance(part, dict) for pair in part.items()]
    scores = [(name, value.get("overall")) for name, value in pairs if isinstance(value, dict)]
    numbers = {name: float(score) for name, score in scores if is_number(score)}
    if not numbers or len(numbers) < len(scores):
        raise ConfigError([f"{file} is neither what `magneto evaluate --keep` writes nor a result "
                           'as [{"test-dev": {"overall": 71.2}}]'])  # fmt: skip
    return numbers


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value of JSON is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def words(point: Point) -> str:
    """Return a point in words."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in point)
