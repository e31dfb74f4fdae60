"""Scores of runs and comparisons for the columns of `magneto table`.

The columns contain scores on a run's own validation data, and scores on other data. `magneto
evaluate RUN --keep NAME` measures and stores scores on other data. The run's folder `scores` may
also hold the results of a leaderboard. Scores with the same NAME share a column only if the models
have the same training data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

from magneto.config import ConfigError, differences
from magneto.files import MANIFEST, DamagedError, read_json, read_object
from magneto.lab.grid import (
    PLACEMENT,
    RATE,
    SEED,
    SPEC_FILE,
    cell_directory,
    read_sweep,
)
from magneto.recipe import Recipe, open_run, placement_name

SCORES = "scores"
"""Folder in a run to which `magneto evaluate --keep NAME` writes scores, as NAME.json."""
# Fields of training that the seeds of a row must share, besides model and data.
TRAINED = [
    f"training.{name}" for name in (
        "steps", "epochs", "batch_size", "schedule", "warmup_steps", "warmup_ratio", "warmup_start",
        "final_learning_rate", "power", "optimizer", "betas", "eps", "weight_decay", "clip_norm",
        "ema_decay",
    )
]  # fmt: skip
Point = tuple[tuple[str, Any], ...]
"""Pairs of a field's dotted name, such as "model.layers", and the field's value."""
Found = tuple[Path, Recipe, Point]
"""Result file, recipe and grid point of a run."""


@dataclass(frozen=True)
class Preset:
    """Format of a table."""

    # Title of the column with scores on a run's own validation data, by task, with {data} and
    # {metric}. Runs of other tasks are refused; an empty mapping allows all tasks.
    tasks: Mapping[str, str] = field(default_factory=dict)
    # The only columns of scores on own validation data; empty for each task's primary metric.
    columns: tuple[str, ...] = ()
    # Columns whose mean is the last column; the mean leaves out a column that some row lacks.
    averaged: tuple[str, ...] = ()
    # Columns of scores named SPLIT or NAME-SPLIT (`magneto evaluate RUN --splits SPLIT --keep
    # NAME`), and the paper's scores of these splits by row.
    splits: tuple[str, ...] = ()
    paper: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    by_origin: bool = False  # whether titles name the pre-trained run, not the number of layers
    at_end: bool = False  # whether own scores are of the last step, not of the best weights
    scale: float = 100.0  # factor of metrics: 100 for percentages
    decimals: int = 1  # of a score; one if its interval is 1 or more


@dataclass(frozen=True)
class RunScore:
    """A run's score, and the half-width of its 95 % interval over examples (nan if unknown)."""

    value: float
    half_width: float = math.nan


@dataclass(frozen=True)
class Measured:
    """A run and its scores for `magneto table`."""

    directory: Path
    recipe: Recipe
    row: str  # title of its row: the placement, and the number of layers or the pre-trained run
    own: str  # column of its own validation data and primary metric, which selects the best point
    higher_is_better: bool
    point: Point
    scores: Mapping[str, float]  # on its own data by column; empty for a run without a result
    other_scores: Mapping[str, RunScore]  # on other data by column
    reason: str  # why it has no score; "" if it has one

    @property
    def values(self) -> dict[str, RunScore]:
        """All scores by column; {} without a result.

        Scores on the run's own validation data come first.
        """
        own = {name: RunScore(value) for name, value in self.scores.items()}
        return own | dict(self.other_scores) if own else {}


def read_runs(folders: Sequence[Path], preset: Preset, weights: str = "best") -> list[Measured]:
    """Return the runs in `folders`. Each folder is a comparison or a single run.

    Scores of `magneto evaluate --keep` must have been measured on the weights named by `weights`.

    Raises:
        ValueError: If a file is damaged, a run appears twice, or the table's preset excludes a
            run's task. The message names the run or the file.
        ValueError: If runs at the same grid point of a table row differ in more than the seed.
    """
    found = [run for folder in folders for run in runs_in(folder)]
    sources = [source_of(recipe) for _, recipe, _ in found]
    uses = Counter(map(name_of, {*sources}))
    names = [name_of(source) if uses[name_of(source)] == 1 else source for source in sources]
    runs = [measured(*run, name, preset, weights) for run, name in zip(found, names, strict=True)]
    check_seeds(runs)
    return with_distinct_columns(runs)


def runs_in(folder: Path) -> Iterator[Found]:
    """Yield the runs of a comparison, or the single run in the folder.

    The grid point of a run contains neither the placement nor the seed.
    """
    if not (folder / SPEC_FILE).is_file():
        recipe = open_run(folder)
        yield folder / "result.json", recipe, ((RATE, recipe.training.learning_rate),)
        return
    sweep = read_sweep(folder)
    for cell in sweep.cells():
        point = tuple((key, v) for key, v in cell.values.items() if key not in (PLACEMENT, SEED))
        yield cell_directory(folder, cell) / "outcome.json", sweep.load(cell), point


def source_of(recipe: Recipe) -> str:
    """Return the name of a run's data: the GLUE task, else `data.source`, else the run's task."""
    data: Any = recipe.data
    glue = getattr(data, "glue", "none")
    return getattr(data, "source", recipe.task) if glue == "none" else glue


def row_of(recipe: Recipe, by_origin: bool) -> str:
    """Return the title of a run's row, such as "Sub-LN, 12 layers" or "Sub-LN, 6+6 layers".

    If `by_origin` is true, the title names the pre-trained run, as in "Sub-LN, from RUN". For a
    model without placement the title is the task's name.
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


def measured(
    result: Path, recipe: Recipe, point: Point, data: str, preset: Preset, weights: str
) -> Measured:
    """Return the scores of a run. `data` is the name that the table uses for the run's data."""
    run = result.parent
    if preset.tasks and recipe.task not in preset.tasks:
        raise ConfigError([f"{run} has the task {recipe.task}, not "
                           f"{' or '.join(preset.tasks)}; omit this run"])  # fmt: skip
    task, title = recipe.build_task(), preset.tasks.get(recipe.task, "{data} {metric}")
    metric = task.primary_metric
    own = title.format(data=data, metric=metric)
    if preset.columns and own not in preset.columns:
        raise ConfigError([f"{run}: {own} is not a column of the table "
                           f"({', '.join(preset.columns)}); omit this run"])  # fmt: skip
    metrics, reason = own_metrics(result, metric, preset.at_end)
    named = {title.format(data=data, metric=name): value for name, value in metrics.items()}
    scores = {name: preset.scale * value for name, value in named.items()
              if name == own or name in preset.columns}  # fmt: skip
    others: dict[str, RunScore] = {}
    files: dict[str, Path] = {}
    for file in sorted((run / SCORES).glob("*.json")) if scores else ():
        for stem, score in read_scores(file, metric, preset.scale, weights).items():
            ending = (split for split in preset.splits if f"-{stem}".endswith(f"-{split}"))
            name = next(ending, stem)
            if name in files:
                raise ConfigError(
                    [f"{files[name]} and {file} both have a score for {name}; remove one"]
                )
            others[name], files[name] = score, file
    row, better = row_of(recipe, preset.by_origin), task.higher_is_better
    return Measured(run, recipe, row, own, better, point, scores, others, reason)


def own_metrics(file: Path, metric: str, at_end: bool) -> tuple[dict[str, float], str]:
    """Return a run's metrics on its own validation data; without metrics, return {} and the reason.

    The primary metric is measured with the best weights, or after the final step if `at_end` is
    true.
    """
    outcome = read_object(file, "status") if file.is_file() else {"status": None}
    status = outcome["status"]
    if status != "finished":
        return {}, "diverged" if status == "diverged" else "no result yet"
    metrics, best = outcome.get("metrics"), outcome.get("best") or {}
    if not isinstance(metrics, dict) or not isinstance(best, dict):
        raise DamagedError(f"{file} is damaged: it has no metrics")
    value = metrics.get(metric) if at_end else best.get("value", metrics.get(metric))
    if value is None:
        return {}, f"no {metric}"
    if not is_number(value):
        raise DamagedError(f"{file} is damaged: its {metric} is {value!r}")
    return {metric: value} | {k: v for k, v in metrics.items() if k != metric and is_number(v)}, ""


def read_scores(file: Path, metric: str, scale: float, weights: str) -> dict[str, RunScore]:
    """Return the scores in a file of a run. The keys are columns of `magneto table`.

    If `magneto evaluate --keep NAME` wrote the file, the column is NAME. A result of the VQA
    leaderboard looks like [{"test-dev": {"overall": 71.2, ...}}]. Each split of such a result
    becomes a column, with scores in percent.

    Raises:
        ConfigError: If the file has an unknown format.
        ConfigError: If the scores were not measured on `weights`, if these weights were overwritten
            later, or if `--limit` left out a part of the data.
        DamagedError: If the score is not a number.
    """
    found = read_json(file)
    if not isinstance(found, dict) or not isinstance(found.get("metrics"), dict):
        return leaderboard_scores(file, found)
    measured_on, limit = found.get("weights", weights), found.get("limit")
    if measured_on != weights or limit is not None:
        partial = limit is not None
        how = f"{limit} batches only" if partial else f"weights {measured_on}, not {weights}"
        raise ConfigError([f"the score in {file} was measured with {how}; evaluate again or remove "
                           "the file"])  # fmt: skip
    manifest = file.parent.parent / measured_on / MANIFEST
    if manifest.is_file() and read_json(manifest) != found.get("manifest"):
        raise ConfigError([f"the weights in {manifest.parent} have changed since the score in "
                           f"{file} was measured; evaluate again or remove the file"])  # fmt: skip
    value = found["metrics"].get(metric)
    if value is not None and not is_number(value):
        raise DamagedError(f"{file} is damaged: its {metric} is {value!r}")
    if value is None:
        return {}
    half = found["metrics"].get(f"{metric}_half_width")
    return {file.stem: RunScore(scale * value, scale * half if is_number(half) else math.nan)}


def leaderboard_scores(file: Path, found: Any) -> dict[str, RunScore]:
    parts = found if isinstance(found, list) else [found]
    pairs = [pair for part in parts if isinstance(part, dict) for pair in part.items()]
    scores = [(name, value.get("overall")) for name, value in pairs if isinstance(value, dict)]
    numbers = {name: RunScore(float(score)) for name, score in scores if is_number(score)}
    if not numbers or len(numbers) < len(scores):
        raise ConfigError([f"{file} is neither an output of `magneto evaluate --keep` nor a "
                           'leaderboard result [{"test-dev": {"overall": 71.2}}]'])  # fmt: skip
    return numbers


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_seeds(runs: Sequence[Measured]) -> None:
    """Check that the runs at one grid point of a row differ only in their seeds.

    Raises:
        ConfigError: If two runs at the same grid point differ in another field, or have the same
            seed.
    """
    from magneto.training.checkpoint import LOCATIONS

    def compared(name: str) -> bool:
        return name in TRAINED or (name.startswith(("model.", "data.")) and name not in LOCATIONS)

    by_point: dict[tuple[str, str, Point], dict[int, Measured]] = {}
    for run in runs:
        others = by_point.setdefault((run.row, run.own, run.point), {})
        for other in list(others.values())[:1]:
            mine, theirs = (each.recipe.to_mapping() for each in (run, other))
            found = [f"{name} is {a} and {b}" for name, a, b in differences(mine, theirs)
                     if compared(name)]  # fmt: skip
            if found:
                raise ConfigError([f"{run.directory} and {other.directory} share a row "
                                   f"({run.row}, {words(run.point)}), but differ in more than "
                                   f"the seed: {', '.join(found)}; omit one of them"])  # fmt: skip
        if (other := others.get(run.recipe.seed)) is not None:
            raise ConfigError([f"{other.directory} and {run.directory} are the same run: {run.row} "
                               f"on {run.own} at {words(run.point)}, seed {run.recipe.seed}; give "
                               "only one of them"])  # fmt: skip
        others[run.recipe.seed] = run


def with_distinct_columns(runs: Sequence[Measured]) -> list[Measured]:
    """Rename columns so that no column mixes scores of models that were trained on different data.

    An ambiguous name gets a prefix, which names the training data. A name is ambiguous if models
    with different training data share it, or if a column with scores on a run's own validation data
    has the same name.
    """
    owners: dict[str, set[str]] = {}
    for run in runs:
        for name in run.other_scores:
            owners.setdefault(name, set()).add(run.own)
    shared = {name for name, owns in owners.items() if len(owns) > 1} | {run.own for run in runs}
    return [
        replace(run, other_scores={f"{run.own}: {name}" if name in shared else name: value
                                   for name, value in run.other_scores.items()})
        for run in runs
    ]  # fmt: skip


def words(point: Point) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in point)


def name_of(source: str) -> str:
    return source.rstrip("/").replace(":", "/").rpartition("/")[2] or source
