"""`magneto table`: placements side by side, a column for each task or set and its metric.

Of each row's grid the point with the best mean over seeds on its own validation data counts, in all
of its columns; and rows are set side by side at each point that several of them have. Which point
that is, and which runs have no result to choose from, is said under the table.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from magneto.commands.shared import Parser, aligned, answer
from magneto.functional.statistics import half_width
from magneto.lab.scores import Measured, Point, Preset, read_runs, source_of, words
from magneto.progress import ProgressBars

NUMBERS = (
    "mnli accuracy", "mnli accuracy_mismatched", "qnli accuracy", "qqp accuracy", "sst2 accuracy",
    "cola matthews", "mrpc accuracy", "stsb pearson",
)  # fmt: skip
"""The eight numbers of the paper's average over GLUE's tasks; RTE is none of them."""
PRESETS = {
    "glue": Preset(
        {"text-classification": "{data} {metric}"}, (*NUMBERS, "rte accuracy"), NUMBERS,
        by_origin=True, at_end=True,
    ),
    "images": Preset({"image-classification": "{data}", "segmentation": "{data}"}),
    "vision-language": Preset(
        {"visual-question-answering": "VQA, {data}", "visual-reasoning": "NLVR, {data}"},
        decimals=2,
    ),
    "librispeech": Preset(
        {"transducer": "validation"},
        splits=("dev-clean", "dev-other", "test-clean", "test-other"),
        decimals=2,
        paper={
            "Pre-LN, 18 layers": (2.97, 6.52, 3.19, 6.62),
            "Sub-LN, 18 layers": (2.68, 6.04, 2.99, 6.16),
            "Pre-LN, 36 layers": (2.59, 6.10, 2.89, 6.04),
            "Sub-LN, 36 layers": (2.43, 5.34, 2.72, 5.56),
        },
    ),
}  # fmt: skip
ANY = Preset(scale=1.0, decimals=4)


@dataclass(frozen=True)
class Score:
    """One number of a table.

    Attributes:
        row: Of the table.
        column: Of the table.
        seeds: Each seed's score, in the seeds' order.
        point: Of the grid.
        within: Half-width of a 95 % interval over the examples of a single run; nan if unknown.
    """

    row: str
    column: str
    seeds: tuple[float, ...]
    point: Point = ()
    within: float = math.nan

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.seeds)

    @property
    def interval(self) -> float:
        """Half-width of the 95 % interval of the mean over seeds; of one seed, over examples."""
        return half_width(self.seeds) if len(self.seeds) > 1 else self.within


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "table",
        "Set placements side by side: scores on a run's own validation data, on what\n"
        "`magneto evaluate RUN --keep NAME` measured, and on a leaderboard's result that lies\n"
        "in RUN/scores/; at each row's best point and at shared ones, with 95 % intervals.\n"
        f"--preset makes one of the paper's tables: {', '.join(PRESETS)}.",
        "magneto table runs/glue/* --preset glue --baselines\n"
        "  magneto table runs/compare-imagenet runs/compare-ade20k --preset images\n"
        "  magneto table runs/sub-18 runs/pre-18 --preset librispeech --weights averaged --paper",
    )
    add = made.add_argument
    add("folders", nargs="+", type=Path, metavar="RUN", help="runs, or folders of comparisons")
    add("--preset", choices=list(PRESETS), help="columns and names of one of the paper's tables")
    add("--baselines", action="store_true", help="rows for what needs no training, such as the "
        "commonest class")  # fmt: skip
    add("--weights", default="best", help="that kept scores are of: best (default), averaged, ...")
    add("--paper", action="store_true", help="with the paper's rows, where a preset has them")
    return made.with_json()


def main(given_words: Sequence[str]) -> int:
    """Run the command."""
    given = parser().parse(given_words)
    preset, report = PRESETS.get(given.preset, ANY), ProgressBars()
    runs = read_runs(given.folders, preset, given.weights)
    best, matched = best_scores(runs), matched_scores(runs)
    if given.baselines:
        best += baseline_scores(runs, preset, report)
    report.finish()
    if given.paper:
        pairs = ((row, zip(preset.splits, scores, strict=False))
                 for row, scores in preset.paper.items())  # fmt: skip
        best += [Score(f"{row} (paper)", name, (value,)) for row, all_ in pairs
                 for name, value in all_]  # fmt: skip
    best += averages(best, preset.averaged)
    rows = list(dict.fromkeys(run.row for run in runs))
    tables = [table("each row at its best", best, rows, preset)]
    tables += [table(f"all at {words(point)}", s, rows, preset) for point, s in matched.items()]
    first, *others = map(aligned, tables)
    said = [*point_lines(best, {run.own for run in runs}), *missing_lines(runs)]
    value = {
        "best": [plainly(score) for score in best],
        "matched": [plainly(score) for scores in matched.values() for score in scores],
        "without_score": [
            {"row": run.row, "column": run.own, "seed": run.recipe.seed,
             "point": dict(run.point), "why": run.why}
            for run in runs if not run.scores
        ],
    }  # fmt: skip
    return answer(given, value, [first, *said, *(f"\n{each}" for each in others)])


def whole_points(runs: Sequence[Measured]) -> dict[tuple[str, str, Point], list[Measured]]:
    """Return the runs of each row at each point at which all of its seeds finished."""
    points: dict[tuple[str, str, Point], list[Measured]] = {}
    for run in sorted(runs, key=lambda run: run.recipe.seed):
        points.setdefault((run.row, run.own, run.point), []).append(run)
    return {key: some for key, some in points.items() if all(run.scores for run in some)}


def scores_at(runs: Sequence[Measured]) -> list[Score]:
    """Return the scores of one row at one point: of the columns that all seeds have."""
    values = [run.values for run in runs]
    names = [name for name in values[0] if all(name in each for each in values)]
    return [
        Score(runs[0].row, name, tuple(each[name].value for each in values), runs[0].point,
              values[0][name].half_width)
        for name in names
    ]  # fmt: skip


def best_scores(runs: Sequence[Measured]) -> list[Score]:
    """Return each row's scores at its best point, by its own validation data."""
    best: dict[tuple[str, str], list[Measured]] = {}
    for (row, own, _), some in whole_points(runs).items():
        held = best.get((row, own))
        if held is None or own_mean(some) > own_mean(held):
            best[row, own] = some
    return [score for some in best.values() for score in scores_at(some)]


def own_mean(runs: Sequence[Measured]) -> float:
    """Return the mean score on the runs' own validation data; negative where lower is better."""
    mean = fmean(run.scores[run.own] for run in runs)
    return mean if runs[0].higher_is_better else -mean


def matched_scores(runs: Sequence[Measured]) -> dict[Point, list[Score]]:
    """Return the scores at each point at which several rows are whole."""
    there: dict[tuple[str, Point], list[list[Measured]]] = {}
    for (_, own, point), some in whole_points(runs).items():
        there.setdefault((own, point), []).append(some)
    found: dict[Point, list[Score]] = {}
    for (_, point), rows in there.items():
        if len(rows) > 1:
            found.setdefault(point, []).extend(score for some in rows for score in scores_at(some))
    return found


def averages(scores: Sequence[Score], columns: Sequence[str]) -> list[Score]:
    """Return each row's mean over the columns, of a table's, that every row has; seed by seed.

    Where columns have other numbers of seeds than one another, there is one mean and no interval.
    """
    by_place = {(score.row, score.column): score for score in scores}
    rows = list(dict.fromkeys(score.row for score in scores))
    common = [name for name in columns if all((row, name) in by_place for row in rows)]
    found = []
    for row in rows if common else ():
        among = [by_place[row, name] for name in common]
        whole = len({len(score.seeds) for score in among}) == 1
        each = zip(*(score.seeds for score in among), strict=True) if whole else ()
        means = tuple(map(fmean, each)) or (fmean(score.mean for score in among),)
        found.append(Score(row, f"average of {len(common)}", means))
    return found


def baseline_scores(runs: Sequence[Measured], preset: Preset, report: ProgressBars) -> list[Score]:
    """Return what trivial answers reach on the runs' validation data, each data once."""
    found: dict[tuple[str, str], Score] = {}
    for own, run in {run.own: run for run in runs}.items():
        task: Any = run.recipe.build_task()
        if run.recipe.task == "text-classification":
            from magneto.language.classification import baseline_metrics

            baselines = baseline_metrics(task.texts)
        else:
            task.prepare(report)
            baselines = {"baseline": task.baseline()}
        title = preset.tasks.get(run.recipe.task, "{data} {metric}")
        for row, metrics in baselines.items():
            for metric, value in metrics.items():
                name = title.format(data=source_of(run.recipe), metric=metric)
                name = own if metric == task.primary_metric else name
                if name == own or name in preset.columns:
                    found[row, name] = Score(row, name, (preset.scale * value,))
    return list(found.values())


def plainly(score: Score) -> dict[str, Any]:
    """Return a score as plain values."""
    return {
        "row": score.row, "column": score.column, "mean": score.mean, "interval": score.interval,
        "seeds": score.seeds, "point": dict(score.point),
    }  # fmt: skip


def point_lines(scores: Sequence[Score], owns: Container[str]) -> Iterator[str]:
    """Say for each row at which point of its grid it is, in a line."""
    rows: dict[str, list[str]] = {}
    for score in scores:
        if score.column in owns and score.point:
            rows.setdefault(score.row, []).append(f"{score.column} at {words(score.point)}")
    yield from (f"{row}: {'; '.join(parts)}" for row, parts in rows.items())


def missing_lines(runs: Sequence[Measured]) -> Iterator[str]:
    """Name the runs that have no score, in one line for each reason: no row is at their points."""
    reasons: dict[str, dict[tuple[str, str, Point], list[str]]] = {}
    for run in runs:
        if not run.scores:
            points = reasons.setdefault(run.why, {})
            points.setdefault((run.row, run.own, run.point), []).append(str(run.recipe.seed))
    for why, points in reasons.items():
        parts = (f"{row} on {own} at {words(point)}, seed{'s'[: len(seeds) > 1]} {', '.join(seeds)}"
                 for (row, own, point), seeds in points.items())  # fmt: skip
        yield f"{why}: {'; '.join(parts)}"


def table(
    title: str, scores: Sequence[Score], rows: Sequence[str], preset: Preset = ANY
) -> list[list[str]]:
    """Return scores as words: a head, then a line per row; 95 % intervals over seeds.

    Args:
        title: Of the first column.
        scores: At most one per row and column.
        rows: Of runs: "-" where there is no score. Further rows of the scores follow them.
        preset: Its columns come first, in its order.
    """
    there = list(dict.fromkeys(score.column for score in scores))
    columns = [name for name in (*preset.columns, *preset.splits) if name in there]
    columns += [name for name in there if name not in columns]
    by_place = {(score.row, score.column): score for score in scores}
    lines = [[title, *columns]]
    return lines + [
        [row, *(_word(by_place.get((row, name)), preset.decimals) for name in columns)]
        for row in dict.fromkeys([*rows, *(score.row for score in scores)])
    ]


def _word(score: Score | None, decimals: int) -> str:
    if score is None:
        return "-"
    decimals = 1 if score.interval >= 1 else decimals
    interval = "" if math.isnan(score.interval) else f" ± {score.interval:.{decimals}f}"
    return f"{score.mean:.{decimals}f}{interval}"
