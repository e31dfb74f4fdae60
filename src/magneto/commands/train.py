"""`magneto train`: train a recipe, or go on with a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from magneto.analysis.probe.probe_hook import PERIOD, ProbeHook
from magneto.commands.arguments import Parser, print_json
from magneto.config import ConfigError
from magneto.progress import ProgressBars
from magneto.recipe import RUN_FILE, Recipe, load_recipe, open_run
from magneto.training.loop import train
from magneto.training.metrics_logger import METRICS_FILE
from magneto.training.resume import keep_artifacts

EXIT_CODES = {"finished": 0, "diverged": 3, "interrupted": 130}


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "train",
        "Train a recipe; the run's directory holds weights, checkpoints, metrics and the recipe.\n"
        "The exit code is 0 if it finished, 3 if it diverged, 130 if it was interrupted, and 2 for "
        "a mistake.",
        "magneto train causal-lm/tiny --model.placement sub --data book.txt --out runs/book",
        recipe=True,
    )
    made.add_argument("recipe", nargs="?", help="name (see `magneto recipes`) or path of a recipe")
    made.add_argument("--resume", metavar="RUN", type=Path, help="go on with this run")
    made.add_argument("--out", metavar="DIR", type=Path, help="where the run goes (new, or empty)")
    made.add_argument("--distributed", choices=("none", "ddp", "fsdp"), help="under torchrun")
    made.add_argument(
        "--probe-every",
        metavar="STEPS",
        type=int,
        nargs="?",
        const=PERIOD,
        help=f"write what each layer does to probe.jsonl ({PERIOD} costs under 2 %% of the time)",
    )
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given, overrides = parser().parse_with_overrides(words)
    if given.data:
        overrides["data.source"] = given.data
    if given.distributed:
        overrides["training.distributed"] = given.distributed
    if given.resume:
        if given.recipe or given.out:
            raise ConfigError(
                ["--resume goes on in its own directory: give no recipe and no --out"]
            )
        run, recipe = given.resume, open_run(given.resume, overrides)
    elif given.recipe:
        recipe = load_recipe(given.recipe, overrides)
        run = new_directory(given.out, recipe)
    else:
        raise ConfigError(["give a recipe (`magneto recipes` lists them) or --resume RUN"])
    hooks = [ProbeHook(given.probe_every).hook] if given.probe_every is not None else []
    report = ProgressBars(quiet=not is_main_process())
    task = recipe.build_task()
    task.check_strategy(recipe.training.distributed)
    if is_main_process():
        task.prepare(report)  # what is wrong with the data is known before anything is written
    run.mkdir(parents=True, exist_ok=True)
    if is_main_process():
        keep_artifacts(task, run)  # before a recipe is kept that does not fit the run
        recipe.save(run / RUN_FILE)
    resume = given.resume is not None
    try:
        result = train(
            task, recipe.training, run, seed=recipe.seed, resume=resume, hooks=hooks, report=report
        )
    except Exception:
        if not resume and is_main_process() and not (run / METRICS_FILE).exists():
            clear(run)  # it never began: the same --out can be tried again
        raise
    if given.json and is_main_process():
        print_json({"run": str(run), **asdict(result)})
    return EXIT_CODES[result.status]


def clear(directory: Path) -> None:
    """Remove all that is in a directory."""
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def is_main_process() -> bool:
    """Return whether this process is the one that writes and talks."""
    return os.environ.get("RANK", "0") == "0"


def new_directory(out: Path | None, recipe: Recipe) -> Path:
    """Return where a new run goes.

    Raises:
        FileExistsError: If something is there already.
    """
    if out is None:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        return (
            Path("runs")
            / f"{Path(recipe.name).stem if '.' in recipe.name else recipe.name}-{stamp}"
        )
    if is_main_process() and out.exists() and (not out.is_dir() or any(out.iterdir())):
        hint = f"; go on with it: magneto train --resume {out}" if (out / RUN_FILE).exists() else ""
        raise FileExistsError(f"{out} is there already and not empty{hint}")
    return out
