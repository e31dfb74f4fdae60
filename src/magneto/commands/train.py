"""`magneto train`: train a recipe, or go on with a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from magneto.commands.plan import dry_run
from magneto.commands.shared import Parser, is_main_process, name_source, print_json
from magneto.config import ConfigError
from magneto.files import LOCK_FILE, acquire_lock, is_aside, lock_holder
from magneto.progress import Progress, ProgressBars
from magneto.recipe import RUN_FILE, Recipe, load_recipe, open_run
from magneto.tasks import command

# Seconds for which a file server may take a lost machine for one that is alive.
PATIENCE = 120.0
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
    made.add_argument("--resume", metavar="RUN", help="go on with this run")
    made.add_argument(
        "--auto-resume",
        action="store_true",
        help="go on with the run in --out if there is one, else begin it: for jobs that are "
        "started again by the same command",
    )
    made.add_argument("--out", metavar="DIR", type=Path, help="where the run goes (new, or empty)")
    made.add_argument(
        "--distributed", choices=("none", "ddp", "fsdp", "hybrid"), help="under torchrun"
    )
    made.add_argument(
        "--probe-every",
        metavar="STEPS",
        type=int,
        nargs="?",
        const=100,
        help="write what each layer does to probe.jsonl (100 costs under 2 %% of the time)",
    )
    made.add_argument(
        "--dry-run", action="store_true",
        help="say parameters, tokens, memory, steps and time, by taking some steps; write no run",
    )  # fmt: skip
    made.add_argument("--wandb", action="store_true", help="send curves to Weights & Biases, too")
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given, overrides = parser().parse_with_overrides(words)
    ask = asked(given, overrides)
    run, recipe = ask.run, ask.recipe
    report = ProgressBars(quiet=not is_main_process())
    from magneto.lab.plan import check_weights_first
    from magneto.lab.probe import ProbeHook
    from magneto.training.distributed import pick_device, pick_strategy
    from magneto.training.logging import check_trackers
    from magneto.training.loop import train
    from magneto.training.task import strategy_error

    hooks = [] if given.probe_every is None else [ProbeHook(given.probe_every).hook]
    task = recipe.build_task()
    if refused := strategy_error(task, recipe.training.distributed):
        raise ValueError(refused)
    alone = pick_strategy(recipe.training) == "none"  # ranks may share the weights
    pick_device(recipe.training.device)
    if alone and not ask.resume:
        check_weights_first(recipe)
    if given.dry_run:
        return dry_run(recipe, report, given.json)
    check_trackers(recipe.training)
    with held(run, report, new=not ask.resume, patient=given.auto_resume):
        result = train(
            task,
            recipe.training,
            run,
            seed=recipe.seed,
            resume=ask.resume,
            hooks=hooks,
            report=report,
            recipe=recipe.to_mapping(),
            keep_recipe=lambda: recipe.save(run / RUN_FILE),
        )
    if given.json and is_main_process():
        print_json({"run": str(run), **asdict(result)})
    return EXIT_CODES[result.status]


class Asked(NamedTuple):
    """What the command line asks for: where to train, what, and whether a run is there already."""

    run: Path
    recipe: Recipe
    resume: bool


def asked(given: argparse.Namespace, overrides: dict[str, str]) -> Asked:
    """Return where to train, what, and whether to go on.

    Raises:
        ConfigError: If neither a recipe nor a run to go on with is named, or both; or the recipe is
            wrong.
        FileNotFoundError: If there is none.
    """
    name_source(overrides, given.data)
    if given.distributed:
        overrides["training.distributed"] = given.distributed
    if given.wandb:
        overrides["training.tracker"] = "wandb"
    if given.resume:
        if given.recipe or given.auto_resume:
            raise ConfigError(["--resume RUN goes on with the run's own recipe: give no other"])
        if given.out is not None:
            raise ConfigError(["--resume RUN goes on in the run's own directory: give no --out"])
        return Asked(Path(given.resume), open_run(Path(given.resume), overrides), resume=True)
    if not given.recipe:
        raise ConfigError(["give a recipe (`magneto recipes` lists them) or --resume RUN"])
    if given.auto_resume and given.out is None:
        raise ConfigError(["--auto-resume goes on with what is in a directory: name it by --out"])
    recipe, run = load_recipe(given.recipe, overrides), given.out
    if run is None:
        name = Path(recipe.name).stem if "." in recipe.name else recipe.name
        run = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    return Asked(run, recipe, resume=given.auto_resume and is_run(run))


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, however far it came."""
    return (folder / RUN_FILE).is_file()


@contextmanager
def held(run: Path, progress: Progress, *, new: bool, patient: bool) -> Iterator[None]:
    """Hold a run's directory while it is trained, so that no other process writes there.

    The main process holds it for all ranks.

    Args:
        run: The directory.
        progress: Told what is waited for.
        new: Whether a new run goes there.
        patient: Whether to wait two minutes for it: a job that is started again may come before
            the process before it has ended, or its lost machine is known to be lost.

    Raises:
        FileExistsError: If another process holds it, or a new run would go into another's place.
    """
    if not is_main_process():
        yield
        return
    if new and not (run / LOCK_FILE).exists():
        refuse_taken(run)  # a folder that is no run's stays untouched
    made = not run.exists()
    lock = lock_of(run, progress, patient)
    try:
        if new:
            refuse_taken(run)
        yield
    finally:
        if made and [path.name for path in run.glob("*")] == [LOCK_FILE]:  # it never began
            (run / LOCK_FILE).unlink()
            with suppress(OSError):
                run.rmdir()
        lock.release()


def lock_of(run: Path, progress: Progress, patient: bool) -> FileLock:
    """Return the lock on a run's directory; whoever calls this releases it.

    Raises:
        FileExistsError: If another process holds it.
    """
    lock = acquire_lock(run)
    if lock is None and patient:
        progress.say(f"{run} is held by {lock_holder(run)}: waiting up to two minutes for its end")
        lock = acquire_lock(run, PATIENCE)
    if lock is None:
        raise FileExistsError(
            f"{run} is being trained by {lock_holder(run)}: wait for it, stop it, or train in "
            "another directory (--out)"
        )
    return lock


def refuse_taken(out: Path) -> None:
    """Raise FileExistsError if something is in a new run's place.

    What a start that was killed leaves (its lock's file, files aside) is nothing.
    """
    if out.is_dir():
        found = [p for p in out.iterdir() if p.name != LOCK_FILE and not is_aside(p)]
    else:
        found = [out] if out.exists() else []
    if found:
        held = (out / RUN_FILE).exists()
        hint = f"; go on with it: {command('train --resume', out)}" if held else ""
        raise FileExistsError(f"{out} is there already and not empty{hint}")
