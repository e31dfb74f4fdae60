"""`magneto report`: the report of a run as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from magneto.commands.shared import Parser, answer, check_folder
from magneto.data.problems import PROBLEMS_FILE
from magneto.files import DamagedError, read_object
from magneto.progress import ProgressBars, clock
from magneto.recipe import Recipe
from magneto.runs import load_model, resolved_recipe

if TYPE_CHECKING:
    from magneto.training.task import Figure, Task


def parser() -> Parser:
    made = Parser(
        "report",
        "Write an HTML report of a run. The report shows the result, training curves, a trivial "
        "baseline, and predictions on validation data.",
        "magneto report runs/first",
        recipe=True,
    ).with_run()
    made.add_argument("--out", type=Path, help="output folder (default: RUN/report)")
    return made.with_json()


def main(words: Sequence[str]) -> int:
    args, overrides = parser().parse_with_overrides(words)
    check_folder("--out", args.out)
    progress = ProgressBars()
    recipe = resolved_recipe(args.run, overrides)
    task = recipe.build_task()
    task.problems.write_to(args.run, progress)
    task.prepare(progress)
    figures: Sequence[Figure] = ()
    try:
        figures = draw_figures(args.run, args.weights, recipe, task)
    except (FileNotFoundError, DamagedError) as error:
        progress.say(f"The report has no predictions of the model: {error}")
    progress.finish()
    from magneto.lab.report.report import write_run_page

    found = {**describe(args.run, recipe, task), "figures": figures}
    page = write_run_page(found, args.out or args.run / "report")
    value = {"page": str(page), "figures": [figure.name for figure in figures]}
    return answer(args, value, [f"report: {page}"])


def draw_figures(run: Path, weights: str, recipe: Recipe, task: Task) -> Sequence[Figure]:
    from magneto.training.task import figures_of, place_companion

    model = load_model(run, weights, recipe, task).model
    place_companion(task, next(model.parameters()).device)
    return figures_of(task, model)


def describe(run: Path, recipe: Recipe, task: Task) -> dict[str, Any]:
    from magneto.lab.comparison import environments, without_places
    from magneto.training.logging import METRICS_FILE, read_metrics

    rows = read_metrics(run) if (run / METRICS_FILE).is_file() else []
    baseline = task.baseline(recipe.training.evaluate_limit)
    last: dict[str, float] = {}
    for row in rows:
        found = {k: v for k, v in row.items() if k.startswith("validation_")}
        # A class that is neither in the data nor predicted has no score in the last evaluation.
        last = {k.removeprefix("validation_"): v for k, v in found.items()} or last
    names = list(dict.fromkeys([*last, *baseline]))
    return {
        "name": run.resolve().name,
        "subtitle": f"{recipe.task}, batch size {recipe.training.batch_size}, seed {recipe.seed}",
        "answer": ending_sentences(run, task, last, baseline),
        "metrics": [(name, last.get(name), baseline.get(name)) for name in names],
        "rows": rows,
        "baseline": baseline,
        "facts": [(name, ", ".join(values)) for name, values in environments([run]).items()],
        "config": yaml.safe_dump(without_places(recipe.to_mapping()), sort_keys=False).rstrip(),
    }


def ending_sentences(
    run: Path, task: Task, last: Mapping[str, float], baseline: Mapping[str, float]
) -> list[str]:
    name, path = task.primary_metric, run / "result.json"
    counted = task.problems.describe()
    problems = [f"Data problems: {counted}. {PROBLEMS_FILE} lists them."] if counted else []
    sentences = []
    if name in last:
        compared = f" (trivial baseline: {baseline[name]:.4g})" if name in baseline else ""
        sentences.append(f"Last validation {name}: {last[name]:.4g}{compared}.")
    if not path.is_file():
        return [*sentences, "The run has no result.json, so it has not ended.", *problems]
    result = read_object(path, "status", "reason", "seconds", "step", "best")
    reason = f": {result['reason']}" if result["reason"] else ""
    duration = clock(result["seconds"])
    if result["best"]:
        best = result["best"]
        sentences.append(f"Best {name}: {best['value']:.4g} at step {best['step']:,}.")
    ended = f"Status: {result['status']} at step {result['step']:,} after {duration}{reason}."
    return [*sentences, ended, *problems]
