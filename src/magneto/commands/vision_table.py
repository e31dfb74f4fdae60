"""The paper's table of images (section 4.5) from runs and comparisons: a row per placement.

Of each row's grid the point with the best mean over seeds on its own validation data counts, in all
of its columns; and rows are set side by side at each point that several of them have. Which point
that is, and which runs have no result to choose from, is said under the table.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from magneto.commands.vision_runs import Point, Trained, words
from magneto.functional.statistics import half_width


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


def point_lines(scores: Sequence[Score], owns: Container[str]) -> Iterator[str]:
    """Say for each row at which point of its grid it is, in a line.

    Args:
        scores: Of the rows.
        owns: Columns by which points are chosen.
    """
    rows: dict[str, list[str]] = {}
    for score in scores:
        if score.column in owns:
            rows.setdefault(score.row, []).append(f"{score.column} at {words(score.point)}")
    yield from (f"{row}: {'; '.join(parts)}" for row, parts in rows.items())


def missing_lines(runs: Sequence[Trained]) -> Iterator[str]:
    """Name the runs that have no score, in one line for each reason: no row is at their points."""
    reasons: dict[str, dict[tuple[str, str, Point], list[str]]] = {}
    for run in runs:
        if run.score is None:
            points = reasons.setdefault(run.why, {})
            points.setdefault((run.row, run.own, run.point), []).append(str(run.seed))
    for why, points in reasons.items():
        parts = (f"{row} on {own} at {words(point)}, seed{'s'[: len(seeds) > 1]} {', '.join(seeds)}"
                 for (row, own, point), seeds in points.items())  # fmt: skip
        yield f"{why}: {'; '.join(parts)}"


def table(
    title: str, scores: Sequence[Score], rows: Sequence[str], decimals: int = 1
) -> list[list[str]]:
    """Return scores as words: a head, then a line per row; 95 % intervals over seeds.

    Args:
        title: Of the first column.
        scores: At most one per row and column.
        rows: All rows; "-" where there is no score.
        decimals: Of a score; one where its interval is 1 or more.
    """
    columns = list(dict.fromkeys(score.column for score in scores))
    by_place = {(score.row, score.column): score for score in scores}
    lines = [[title, *columns]]
    return lines + [
        [row, *(_word(by_place.get((row, name)), decimals) for name in columns)] for row in rows
    ]


def _word(score: Score | None, decimals: int) -> str:
    if score is None:
        return "-"
    decimals = 1 if score.interval >= 1 else decimals
    interval = "" if math.isnan(score.interval) else f" ± {score.interval:.{decimals}f}"
    return f"{score.mean:.{decimals}f}{interval}"
