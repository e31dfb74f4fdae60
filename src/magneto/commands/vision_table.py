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
from magneto.analysis.sweep.sweep import SPEC_FILE, cell_directory, read_result, read_sweep
from magneto.commands.validation_scores import SCORES
from magneto.config import ConfigError
from magneto.files import read_json
from magneto.functional.statistics import half_width
from magneto.recipe import Recipe, open_run, task_class

TASKS = ("image-classification", "segmentation")
Point = tuple[tuple[str, Any], ...]
"""Dotted fields and their values."""


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


def read_folders(folders: Sequence[Path]) -> list[Trained]:
    """Return the runs of comparisons, and runs themselves.

    Raises:
        FileNotFoundError: If a folder is neither.
        ConfigError: If one is of another task, or there twice.
    """
    found: dict[tuple, Path] = {}
    runs = []
    for folder in folders:
        for run in comparison(folder) if (folder / SPEC_FILE).is_file() else [single(folder)]:
            place = (run.row, run.own, run.point, run.seed)
            if place in found:
                raise ConfigError([f"{found[place]} and {folder} both have {run.row} on {run.own} "
                                   f"at {words(run.point)}, seed {run.seed}"])  # fmt: skip
            found[place] = folder
            runs.append(run)
    return runs


def comparison(folder: Path) -> Iterator[Trained]:
    """Yield the runs of a comparison."""
    sweep = read_sweep(folder)
    for cell in sweep.cells():
        outcome = read_result(folder, cell) or {}
        recipe = sweep.load(cell)
        yield trained(cell_directory(folder, cell), recipe, outcome, point_of(cell))


def single(run: Path) -> Trained:
    """Return a run that is no part of a comparison.

    Raises:
        FileNotFoundError: If there is none.
    """
    recipe, ended = open_run(run), run / "result.json"
    outcome = read_json(ended) if ended.is_file() else {}
    return trained(run, recipe, outcome, ((RATE, recipe.training.learning_rate),))


def point_of(cell: Cell) -> Point:
    """Return what a grid sets, besides placement and seed."""
    return tuple((key, v) for key, v in cell.values.items() if key not in (PLACEMENT, SEED))


def trained(run: Path, recipe: Recipe, outcome: Mapping[str, Any], point: Point) -> Trained:
    """Return what is known of a run.

    Args:
        run: Its directory.
        recipe: Its recipe.
        outcome: Its result; empty if it has none.
        point: Of the grid.

    Raises:
        ConfigError: If its task is none of the table's, or a kept score is not of the whole set.
    """
    if recipe.task not in TASKS:
        raise ConfigError([f"{run}: its task is {recipe.task}, not {' or '.join(TASKS)}"])
    data: Any = recipe.data
    metric, own = task_class(recipe.task).primary_metric, name_of(data.source)
    values = {}
    if outcome.get("status") == "finished":
        # Of the weights that `magneto evaluate` measures where none are named.
        values[own] = outcome.get("best", {}).get("value", outcome["metrics"].get(metric))
        for file in sorted((run / SCORES).glob("*.json")):
            values[file.stem] = kept_metrics(file).get(metric)
    known = {name: 100 * value for name, value in values.items() if value is not None}
    row = f"{recipe.model.row.title}, {recipe.model.layers} layers"
    return Trained(row, own, point, recipe.seed, known)


def kept_metrics(file: Path) -> dict[str, float]:
    """Return what `magneto evaluate --keep` measured.

    Raises:
        ConfigError: If that was with other weights than the best, or of a part of the images.
    """
    kept = read_json(file)
    weights, limit = kept.get("weights", "best"), kept.get("limit")
    if weights != "best" or limit is not None:
        what = f"{limit} batches alone" if limit is not None else f"the weights {weights}, not best"
        raise ConfigError([f"{file} was measured with {what}: measure it anew, or remove it"])
    return kept["metrics"]


def name_of(source: str) -> str:
    """Return a short name of images: the last part of a path, a data set's name."""
    return source.rstrip("/").replace(":", "/").rpartition("/")[2] or source


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
