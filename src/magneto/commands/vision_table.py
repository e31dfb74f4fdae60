"""The paper's table of images (section 4.5) from runs and comparisons: a row per placement.

A column is what a run is chosen by, its own validation images (ImageNet's accuracy, ADE20k's mean
IoU) by its best weights, or a set that its model was measured on without further training and that
`magneto evaluate RUN --keep NAME` has kept (-A, -R, Sketch). Of each row's grid the point with the
best mean over seeds on its own validation images counts, in all of its columns; and rows are set
side by side at each point that several of them have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from magneto.analysis.sweep.cells import PLACEMENT, RATE, SEED, Cell
from magneto.commands.source_names import source_names
from magneto.commands.validation_scores import SCORES
from magneto.config import ConfigError
from magneto.files import read_json, read_object
from magneto.functional.statistics import half_width
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
        outcome: Its result; empty if it has none.
        point: Of the grid.
    """

    directory: Path
    recipe: Recipe
    outcome: Mapping[str, Any]
    point: Point

    @property
    def source(self) -> str:
        """Its data."""
        data: Any = self.recipe.data
        return data.source


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes:
        row: Placement's title and number of layers.
        own: Name of its own validation images.
        point: Of the grid.
        seed: Of the run.
        values: Its scores by column, times 100; none for a run that has not finished.
    """

    row: str
    own: str
    point: Point
    seed: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Score:
    """One number of the table.

    Attributes:
        row: Placement's title and number of layers.
        column: Name of the images.
        seeds: Each seed's score, times 100, in the seeds' order.
        point: Of the grid.
    """

    row: str
    column: str
    seeds: tuple[float, ...]
    point: Point

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.seeds)

    @property
    def interval(self) -> float:
        """Half-width of the 95 % confidence interval of the mean; nan for one seed."""
        return half_width(self.seeds)


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
    return runs


def comparison(folder: Path) -> Iterator[Given]:
    """Yield the runs of a comparison."""
    from magneto.analysis.sweep.sweep import cell_directory, read_result, read_sweep

    sweep = read_sweep(folder)
    for cell in sweep.cells():
        outcome = read_result(folder, cell) or {}
        yield Given(cell_directory(folder, cell), sweep.load(cell), outcome, point_of(cell))


def single(run: Path) -> Given:
    """Return a run that is no part of a comparison.

    Raises:
        FileNotFoundError: If there is none.
    """
    recipe, ended = open_run(run), run / "result.json"
    outcome = read_object(ended) if ended.is_file() else {}
    return Given(run, recipe, outcome, ((RATE, recipe.training.learning_rate),))


def point_of(cell: Cell) -> Point:
    """Return what a grid sets, besides placement and seed."""
    return tuple((key, v) for key, v in cell.values.items() if key not in (PLACEMENT, SEED))


def trained(run: Given, name: str, tasks: Tasks) -> Trained:
    """Return what is known of a run.

    Args:
        run: As it lies.
        name: Of its data.
        tasks: Of the table.

    Raises:
        ConfigError: If its task is none of the table's, or a kept score is not of the whole set.
    """
    recipe, outcome = run.recipe, run.outcome
    if recipe.task not in tasks:
        raise ConfigError([f"{run.directory}: its task is {recipe.task}, not "
                           f"{' or '.join(tasks)}"])  # fmt: skip
    metric = task_class(recipe.task).primary_metric
    own = tasks[recipe.task].format(name)
    known = {}
    if outcome.get("status") == "finished":
        # Of the weights that `magneto evaluate` measures where none are named.
        value = outcome.get("best", {}).get("value", outcome["metrics"].get(metric))
        if value is not None:
            known[own] = 100 * value
        for file in sorted((run.directory / SCORES).glob("*.json")):
            known |= kept_scores(file, metric)
    row = f"{recipe.model.row.title}, {recipe.model.layers} layers"
    return Trained(row, own, run.point, recipe.seed, known)


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
    """
    found = read_json(file)
    if not isinstance(found, dict) or "metrics" not in found:
        return leaderboard_scores(file, found)
    weights, limit = found.get("weights", "best"), found.get("limit")
    if weights != "best" or limit is not None:
        what = f"{limit} batches alone" if limit is not None else f"the weights {weights}, not best"
        raise ConfigError([f"{file} was measured with {what}: measure it anew, or remove it"])
    value = found["metrics"].get(metric)
    return {} if value is None else {file.stem: 100 * value}


def leaderboard_scores(file: Path, found: Any) -> dict[str, float]:
    """Return what a leaderboard gave for parts of a test set; raise ConfigError for nothing."""
    parts = found if isinstance(found, list) else [found]
    pairs = [pair for part in parts if isinstance(part, dict) for pair in part.items()]
    scores = {name: value.get("overall") for name, value in pairs if isinstance(value, dict)}
    numbers = {name: score for name, score in scores.items() if isinstance(score, int | float)}
    if not scores or len(numbers) < len(scores):
        raise ConfigError([f"{file} is neither what `magneto evaluate --keep` writes nor a result "
                           'as [{"test-dev": {"overall": 71.2}}]'])  # fmt: skip
    return {name: float(score) for name, score in numbers.items()}


def whole_points(runs: Sequence[Trained]) -> dict[tuple[str, str, Point], list[Trained]]:
    """Return the runs of each row at each point at which all of its seeds finished."""
    points: dict[tuple[str, str, Point], list[Trained]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        points.setdefault((run.row, run.own, run.point), []).append(run)
    return {key: some for key, some in points.items() if all(run.own in run.values for run in some)}


def scores_at(runs: Sequence[Trained]) -> list[Score]:
    """Return the scores of one row at one point: of the columns that all seeds have."""
    columns = [name for name in runs[0].values if all(name in run.values for run in runs)]
    return [
        Score(runs[0].row, name, tuple(run.values[name] for run in runs), runs[0].point)
        for name in columns
    ]


def best_scores(runs: Sequence[Trained]) -> list[Score]:
    """Return each row's scores at its best point, by its own validation images."""
    best: dict[tuple[str, str], list[Trained]] = {}
    for (row, own, _), some in whole_points(runs).items():
        held = best.get((row, own))
        if held is None or own_mean(some) > own_mean(held):
            best[row, own] = some
    return [score for some in best.values() for score in scores_at(some)]


def own_mean(runs: Sequence[Trained]) -> float:
    """Return the mean score on the runs' own validation images."""
    return fmean(run.values[run.own] for run in runs)


def matched_scores(runs: Sequence[Trained]) -> dict[Point, list[Score]]:
    """Return the scores at each point at which several rows are whole."""
    there: dict[tuple[str, Point], list[list[Trained]]] = {}
    for (_, own, point), some in whole_points(runs).items():
        there.setdefault((own, point), []).append(some)
    found: dict[Point, list[Score]] = {}
    for (_, point), rows in there.items():
        if len(rows) > 1:
            found.setdefault(point, []).extend(score for some in rows for score in scores_at(some))
    return found


def table(title: str, scores: Sequence[Score], rows: Sequence[str]) -> list[list[str]]:
    """Return scores as words: a head, then a line per row; 95 % intervals over seeds.

    Args:
        title: Of the first column.
        scores: At most one per row and column.
        rows: All rows; "-" where there is no score.
    """
    columns = list(dict.fromkeys(score.column for score in scores))
    by_place = {(score.row, score.column): score for score in scores}
    lines = [[title, *columns]]
    return lines + [[row, *(_word(by_place.get((row, name))) for name in columns)] for row in rows]


def words(point: Point) -> str:
    """Return a point in words."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in point)


def _word(score: Score | None) -> str:
    if score is None:
        return "-"
    interval = "" if math.isnan(score.interval) else f" ± {score.interval:.1f}"
    return f"{score.mean:.1f}{interval}"
