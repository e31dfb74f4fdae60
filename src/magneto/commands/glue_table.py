"""The paper's GLUE table (section 4.2) from comparisons: best point of each grid, mean over seeds.

A folder holds the comparison (`magneto compare`) of one task. Among the points of its grid at which
every seed finished, the one with the best mean over seeds counts, on the same validation set: the
paper does so too, and it flatters all rows a little. A row is a placement and where its encoder
comes from; the average is over the paper's eight numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from magneto.analysis.sweep.cells import SEED, Cell, Sweep
from magneto.config import ConfigError
from magneto.functional.statistics import half_width
from magneto.language.classification.glue import GLUE
from magneto.language.classification.scores import class_scores, number_scores

# Task and metric of the columns in the paper's order, its eight numbers first.
NUMBERS = (
    ("mnli", "accuracy"), ("mnli", "accuracy_mismatched"), ("qnli", "accuracy"),
    ("qqp", "accuracy"), ("sst2", "accuracy"), ("cola", "matthews"), ("mrpc", "accuracy"),
    ("stsb", "pearson"),
)  # fmt: skip
COLUMNS = (*NUMBERS, ("rte", "accuracy"))
Column = tuple[str, str]


@dataclass(frozen=True)
class Score:
    """One number of the table.

    Attributes:
        row: Placement's title and where its encoder comes from; or a baseline's name.
        column: Task and metric.
        seeds: Each seed's number at the best point of the grid, times 100, in the seeds' order.
        point: The best point: dotted fields and their values; empty for a baseline.
    """

    row: str
    column: Column
    seeds: tuple[float, ...]
    point: dict[str, Any]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.seeds)

    @property
    def interval(self) -> float:
        """Half-width of the 95 % confidence interval of the mean; nan for one seed."""
        return half_width(self.seeds)


def read_scores(folder: Path) -> list[Score]:
    """Return the best points of one comparison: a score per row and metric.

    Raises:
        FileNotFoundError: If there is no comparison in the folder.
        ConfigError: If it is not of one of GLUE's tasks.
    """
    from magneto.analysis.sweep.sweep import read_sweep

    sweep = read_sweep(folder)
    first = sweep.load(sweep.cells()[0])
    task = first.to_mapping()["data"].get("glue", "none")
    if task not in GLUE:
        raise ConfigError([f"{folder} compares no task of GLUE (its data.glue is {task!r})"])
    rows: dict[str, list[Cell]] = {}
    for cell in sweep.cells():
        rows.setdefault(row_name(sweep, cell), []).append(cell)
    scores = []
    for row, cells in rows.items():
        if best := best_point(folder, cells, GLUE[task].metric):
            point, found = best
            for column in COLUMNS:
                if column[0] == task and all(column[1] in metrics for metrics in found):
                    values = tuple(100 * metrics[column[1]] for metrics in found)
                    scores.append(Score(row, column, values, point))
    return scores


def read_folders(folders: Sequence[Path]) -> list[Score]:
    """Return the scores of several comparisons.

    Raises:
        ConfigError: If two folders hold the same row of the same task: which one counts?
    """
    held: dict[tuple[str, Column], Path] = {}
    scores = []
    for folder in folders:
        for score in read_scores(folder):
            place = (score.row, score.column)
            if place in held:
                raise ConfigError([f"{held[place]} and {folder} both have {score.row} on "
                                   f"{score.column[0]}: give one of them"])  # fmt: skip
            held[place] = folder
            scores.append(score)
    return scores


def row_name(sweep: Sweep, cell: Cell) -> str:
    """Return "Sub-LN, from runs/base" or "Sub-LN, from scratch"."""
    model = sweep.load(cell).model
    source = (model.pretrained or "scratch").replace("{placement}", model.row.name)
    return f"{model.row.title}, from {source}"


def best_point(
    folder: Path, cells: Sequence[Cell], metric: str
) -> tuple[dict[str, Any], list[dict[str, float]]] | None:
    """Return the best point of a grid and the metrics of its seeds; None if none is whole."""
    from magneto.analysis.sweep.sweep import read_result

    points: dict[str, tuple[dict[str, Any], list[dict[str, float]]]] = {}
    for cell in sorted(cells, key=lambda cell: int(cell.values.get(SEED, 0))):
        point = {key: value for key, value in cell.values.items() if key != SEED}
        result = read_result(folder, cell)
        if result is None or result["status"] != "finished":
            result = {"metrics": {}}
        points.setdefault(str(point), (point, []))[1].append(result["metrics"])
    whole = [(point, found) for point, found in points.values() if all(found)]
    return max(whole, key=lambda entry: fmean(m[metric] for m in entry[1]), default=None)


def baseline_scores(folder: Path) -> list[Score]:
    """Return what the commonest label and a bag of words reach on a comparison's data."""
    from magneto.analysis.sweep.sweep import read_sweep
    from magneto.language.classification.baselines import label_baselines
    from magneto.language.classification.data import label_values

    sweep = read_sweep(folder)
    task: Any = sweep.load(sweep.cells()[0]).build_task()
    texts, rows = task.texts, []
    for name, held in texts.validation.items():
        known = label_values(held, texts.labels)
        for baseline, answers in label_baselines(texts.train, held, texts.labels).items():
            if texts.labels:
                found = class_scores(answers, known, len(texts.labels))
            else:
                found = number_scores(answers, known)
            rows += [
                Score(baseline, column, (100 * found[metric],), {})
                for column in COLUMNS
                for metric, _, of in [column[1].partition("_")]
                if (column[0], of) == (task.data_config.glue, name)
            ]
    return rows


def average(scores: Sequence[Score]) -> Score:
    """Return the mean over the paper's eight numbers of one row, seed by seed.

    Where tasks have other numbers of seeds than one another, there is one mean and no interval.
    """
    among = [score for score in scores if score.column in NUMBERS]
    whole = len({len(score.seeds) for score in among}) == 1
    values = zip(*(score.seeds for score in among), strict=True) if whole else ()
    each = tuple(map(fmean, values)) or (fmean(score.mean for score in among),)
    return Score(among[0].row, ("average", f"of {len(among)}"), each, {})


def table(scores: Sequence[Score]) -> list[list[str]]:
    """Return the table as words: a head, then a line per row; 95 % intervals over seeds.

    The average is over the numbers of the paper's eight that every row has.
    """
    columns = [column for column in COLUMNS if any(s.column == column for s in scores)]
    rows = list(dict.fromkeys(score.row for score in scores))
    by_place = {(score.row, score.column): score for score in scores}
    common = [c for c in columns if c in NUMBERS and all((row, c) in by_place for row in rows)]
    head = ["", *(f"{task} {metric}" for task, metric in columns)]
    lines = [[*head, f"average of {len(common)}"] if common else head]
    for row in rows:
        line = [row, *(_word(by_place.get((row, column))) for column in columns)]
        if common:
            line.append(_word(average([by_place[row, column] for column in common])))
        lines.append(line)
    return lines


def _word(score: Score | None) -> str:
    if score is None:
        return "-"
    interval = "" if math.isnan(score.interval) else f" ± {score.interval:.1f}"
    return f"{score.mean:.1f}{interval}"
