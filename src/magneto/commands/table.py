"""`magneto table`: tables of scores, with a row for each placement.

A grid point is one combination of learning rate and --grid values. The first table shows each
placement at its grid point with the best mean validation score.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from magneto.commands.shared import Parser, aligned, answer
from magneto.config import ConfigError
from magneto.functional.statistics import half_width
from magneto.lab.scores import Measured, Point, Preset, read_runs, source_of, words
from magneto.progress import ProgressBars

# Columns of the paper's GLUE average, which excludes RTE.
NUMBERS = (
    "mnli accuracy", "mnli accuracy_mismatched", "qnli accuracy", "qqp accuracy", "sst2 accuracy",
    "cola matthews", "mrpc accuracy", "stsb pearson",
)  # fmt: skip
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
    """One entry of a table."""

    row: str
    column: str
    seeds: tuple[float, ...]  # one score per seed
    point: Point = ()
    within: float = math.nan  # half-width of the 95 % interval over the examples of one run
    numbers: tuple[int, ...] = ()  # the seeds

    @property
    def mean(self) -> float:
        return fmean(self.seeds)

    @property
    def interval(self) -> float:  # half-width of the 95 % interval
        return half_width(self.seeds) if len(self.seeds) > 1 else self.within


def parser() -> Parser:
    made = Parser(
        "table",
        "Print tables of scores with 95 % intervals, with a row for each placement. The first "
        "table gives each placement's scores at its best learning rate (and best --grid values). "
        "For each learning rate (and set of --grid values) at which at least two placements have "
        "scores, a further table compares the placements. "
        "Columns are validation scores, scores saved by `magneto evaluate RUN --keep NAME`, and "
        "leaderboard results in RUN/scores/. "
        "The option --preset arranges the columns as in a table of the paper: "
        f"{', '.join(PRESETS)}.",
        "magneto table runs/glue/* --preset glue --baselines\n"
        "  magneto table runs/compare-imagenet runs/compare-ade20k --preset images\n"
        "  magneto table runs/sub-18 runs/pre-18 --preset librispeech --weights averaged --paper",
    )
    add = made.add_argument
    add("folders", nargs="+", type=Path, metavar="RUN", help="runs, or folders of comparisons")
    add("--preset", choices=list(PRESETS), help="arrange the columns as in a table of the paper")
    what = "add rows for trivial baselines, such as the most frequent class"
    add("--baselines", action="store_true", help=what)
    what = "show the saved scores of these weights"
    add("--weights", choices=("best", "final", "averaged"), default="best", help=what)
    add("--paper", action="store_true", help="add the paper's results (preset librispeech)")
    return made.with_json()


def main(arguments: Sequence[str]) -> int:
    args = parser().parse(arguments)
    preset, progress = PRESETS.get(args.preset, ANY), ProgressBars()
    if args.paper and not preset.paper:
        raise ConfigError(["--paper needs --preset librispeech"])
    runs = read_runs(args.folders, preset, args.weights)
    best, shared = best_scores(runs), shared_scores(runs)
    if args.baselines:
        best += baseline_scores(runs, preset, progress)
    progress.finish()
    if args.paper:
        pairs = ((row, zip(preset.splits, scores, strict=False))
                 for row, scores in preset.paper.items())  # fmt: skip
        best += [Score(f"{row} (paper)", name, (value,)) for row, all_ in pairs
                 for name, value in all_]  # fmt: skip
    best += averages(best, preset.averaged)
    rows = list(dict.fromkeys(run.row for run in runs))
    tables = [table("best settings of each row", best, rows, preset)]
    tables += [table(f"all rows at {words(point)}", s, rows, preset) for point, s in shared.items()]
    first, *others = map(aligned, tables)
    notes = [*point_lines(best, {run.own for run in runs}), *missing_lines(runs)]
    value = {
        "best": [as_mapping(score) for score in best],
        "shared": [as_mapping(score) for scores in shared.values() for score in scores],
        "without_score": [
            {"row": run.row, "column": run.own, "seed": run.recipe.seed,
             "point": dict(run.point), "reason": run.reason}
            for run in runs if not run.scores
        ],
    }  # fmt: skip
    return answer(args, value, [first, *notes, *(f"\n{each}" for each in others)])


def finished_points(runs: Sequence[Measured]) -> dict[tuple[str, str, Point], list[Measured]]:
    points: dict[tuple[str, str, Point], list[Measured]] = {}
    for run in sorted(runs, key=lambda run: run.recipe.seed):
        points.setdefault((run.row, run.own, run.point), []).append(run)
    return {key: some for key, some in points.items() if all(run.scores for run in some)}


def scores_at(runs: Sequence[Measured]) -> list[Score]:
    values = [run.values for run in runs]
    names = [name for name in values[0] if all(name in each for each in values)]
    return [
        Score(runs[0].row, name, tuple(each[name].value for each in values), runs[0].point,
              values[0][name].half_width, tuple(run.recipe.seed for run in runs))
        for name in names
    ]  # fmt: skip


def best_scores(runs: Sequence[Measured]) -> list[Score]:
    best: dict[tuple[str, str], list[Measured]] = {}
    for (row, own, _), some in finished_points(runs).items():
        best_so_far = best.get((row, own))
        if best_so_far is None or own_mean(some) > own_mean(best_so_far):
            best[row, own] = some
    return [score for some in best.values() for score in scores_at(some)]


def own_mean(runs: Sequence[Measured]) -> float:
    mean = fmean(run.scores[run.own] for run in runs)
    return mean if runs[0].higher_is_better else -mean


def shared_scores(runs: Sequence[Measured]) -> dict[Point, list[Score]]:
    by_point: dict[tuple[str, Point], list[list[Measured]]] = {}
    for (_, own, point), some in finished_points(runs).items():
        by_point.setdefault((own, point), []).append(some)
    found: dict[Point, list[Score]] = {}
    for (_, point), rows in by_point.items():
        if len(rows) > 1:
            found.setdefault(point, []).extend(score for some in rows for score in scores_at(some))
    return found


def averages(scores: Sequence[Score], columns: Sequence[str]) -> list[Score]:
    by_place = {(score.row, score.column): score for score in scores}
    rows = list(dict.fromkeys(score.row for score in scores))
    common = [name for name in columns if all((row, name) in by_place for row in rows)]
    found = []
    for row in rows if common else ():
        own = [by_place[row, name] for name in common]
        same_seeds = len({(score.numbers, len(score.seeds)) for score in own}) == 1
        each = zip(*(score.seeds for score in own), strict=True) if same_seeds else ()
        # Without the same seeds in all columns, the mean has no interval.
        means = tuple(map(fmean, each)) or (fmean(score.mean for score in own),)
        found.append(Score(row, f"average of {len(common)}", means))
    return found


def baseline_scores(
    runs: Sequence[Measured], preset: Preset, progress: ProgressBars
) -> list[Score]:
    found: dict[tuple[str, str], Score] = {}
    for own, run in {run.own: run for run in runs}.items():
        task: Any = run.recipe.build_task()
        if run.recipe.task == "text-classification":
            from magneto.language.classification import word_baseline

            words = word_baseline(task.texts)
            baselines = {"majority class": task.baseline(), "bag of words": words}
        else:
            task.prepare(progress)
            baselines = {"baseline": task.baseline()}
        title = preset.tasks.get(run.recipe.task, "{data} {metric}")
        for row, metrics in baselines.items():
            for metric, value in metrics.items():
                name = title.format(data=source_of(run.recipe), metric=metric)
                name = own if metric == task.primary_metric else name
                if name == own or name in preset.columns:
                    found[row, name] = Score(row, name, (preset.scale * value,))
    return list(found.values())


def as_mapping(score: Score) -> dict[str, Any]:
    return {
        "row": score.row, "column": score.column, "mean": score.mean, "interval": score.interval,
        "seeds": score.seeds, "point": dict(score.point),
    }  # fmt: skip


def point_lines(scores: Sequence[Score], owns: Container[str]) -> Iterator[str]:
    rows: dict[str, list[str]] = {}
    for score in scores:
        if score.column in owns and score.point:
            rows.setdefault(score.row, []).append(f"{score.column} at {words(score.point)}")
    yield from (f"{row}: {'; '.join(parts)}" for row, parts in rows.items())


def missing_lines(runs: Sequence[Measured]) -> Iterator[str]:
    reasons: dict[str, dict[tuple[str, str, Point], list[str]]] = {}
    for run in runs:
        if not run.scores:
            points = reasons.setdefault(run.reason, {})
            points.setdefault((run.row, run.own, run.point), []).append(str(run.recipe.seed))
    for reason, points in reasons.items():
        parts = (f"{row} on {own} at {words(point)}, seed{'s'[: len(seeds) > 1]} {', '.join(seeds)}"
                 for (row, own, point), seeds in points.items())  # fmt: skip
        yield f"{reason}: {'; '.join(parts)}"


def table(
    title: str, scores: Sequence[Score], rows: Sequence[str], preset: Preset = ANY
) -> list[list[str]]:
    known = list(dict.fromkeys(score.column for score in scores))
    columns = [name for name in (*preset.columns, *preset.splits) if name in known]
    columns += [name for name in known if name not in columns]
    by_place = {(score.row, score.column): score for score in scores}
    lines = [[title, *columns]]
    return lines + [
        [row, *(format_cell(by_place.get((row, name)), preset.decimals) for name in columns)]
        for row in dict.fromkeys([*rows, *(score.row for score in scores)])
    ]


def format_cell(score: Score | None, decimals: int) -> str:
    if score is None:
        return "-"
    decimals = 1 if score.interval >= 1 else decimals
    interval = "" if math.isnan(score.interval) else f" ± {score.interval:.{decimals}f}"
    return f"{score.mean:.{decimals}f}{interval}"
