"""`magneto train`: train a recipe, or resume a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from filelock import FileLock

from magneto.commands.plan import dry_run
from magneto.commands.shared import Parser, answer, is_main_process
from magneto.config import ConfigError
from magneto.files import LOCK_FILE, acquire_lock, is_temporary, lock_holder
from magneto.progress import Progress, ProgressBars
from magneto.recipe import RUN_FILE, Recipe, load_recipe, open_run, recipe_names
from magneto.tasks import command

# Seconds after which file servers release the locks of a lost machine.
LOCK_TIMEOUT = 120.0
EXIT_CODES = {"finished": 0, "diverged": 3, "interrupted": 130}


def parser() -> Parser:
    made = Parser(
        "train",
        "Train a recipe. Weights, checkpoints, metrics and the recipe are written to the run's "
        "directory. Exit codes: 0 finished, 2 error with a message, 3 diverged, 130 interrupted.",
        "magneto train causal-lm/tiny --model.placement sub --data book.txt --out runs/book",
        recipe=True,
    )
    add = made.add_argument
    add("recipe", nargs="?", help="name or path of a recipe (`magneto recipes` lists names)")
    add("--resume", metavar="RUN", help="resume this run")
    what = "resume the run in --out, or start it if there is none (for restarted jobs)"
    add("--auto-resume", action="store_true", help=what)
    add("--out", type=Path, help="directory of the run, new or empty (default: runs/RECIPE-TIME)")
    what = "same as --training.distributed (under torchrun)"
    add("--distributed", choices=("none", "ddp", "fsdp", "hybrid"), help=what)
    what = ("write statistics of every layer to probe.jsonl every STEPS steps (100 if STEPS is "
            "omitted; measuring every 100 steps adds less than 1 %% to the FLOPs of training's "
            "matrix products)")  # fmt: skip
    add("--probe-every", type=int, nargs="?", const=100, metavar="STEPS", help=what)
    what = "train a few steps, and print parameters, memory and time; write no run"
    add("--dry-run", action="store_true", help=what)
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    args, overrides = parser().parse_with_overrides(words)
    run, recipe, resume = read_options(args, overrides)
    progress = ProgressBars(quiet=not is_main_process())
    from magneto.lab.probe import ProbeHook
    from magneto.lab.sweep import check_weights_first
    from magneto.training.distributed import pick_device, pick_strategy
    from magneto.training.logging import import_wandb
    from magneto.training.loop import train
    from magneto.training.task import strategy_error

    hooks = [] if args.probe_every is None else [ProbeHook(args.probe_every).hook]
    task = recipe.build_task()
    if refused := strategy_error(task, recipe.training.distributed):
        raise ValueError(refused)
    alone = pick_strategy(recipe.training) == "none"  # ranks may share the weights
    pick_device(recipe.training.device)
    if alone and not resume:
        check_weights_first(recipe)
    if args.dry_run:
        return dry_run(args, recipe, progress)
    if recipe.training.tracker == "wandb":
        import_wandb()
    with locked(run, progress, new=not resume, patient=args.auto_resume):
        result = train(
            task,
            recipe.training,
            run,
            seed=recipe.seed,
            resume=resume,
            hooks=hooks,
            report=progress,
            recipe=recipe.to_mapping(),
            save_recipe=lambda: recipe.save(run / RUN_FILE),
        )
    answer(args, {"run": str(run), **asdict(result)}, [])
    return EXIT_CODES[result.status]


def read_options(args: argparse.Namespace, overrides: dict[str, str]) -> tuple[Path, Recipe, bool]:
    if args.distributed:
        overrides["training.distributed"] = args.distributed
    if args.resume:
        if args.recipe or args.auto_resume:
            raise ConfigError(["--resume RUN uses the run's recipe; omit RECIPE and --auto-resume"])
        if args.out is not None:
            raise ConfigError(["--resume RUN writes to the run's directory; omit --out"])
        run = Path(args.resume)
        return run, open_run(run, overrides), True
    if not args.recipe:
        raise ConfigError(["give a recipe (`magneto recipes` lists them) or --resume RUN"])
    if args.auto_resume and args.out is None:
        raise ConfigError(["--auto-resume needs --out DIR"])
    recipe, run = load_recipe(args.recipe, overrides), args.out
    if run is None:
        name = recipe.name if recipe.name in recipe_names() else Path(recipe.name).stem
        run = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    return run, recipe, args.auto_resume and (run / RUN_FILE).is_file()


@contextmanager
def locked(run: Path, progress: Progress, *, new: bool, patient: bool) -> Iterator[None]:
    if not is_main_process():
        yield
        return
    if new and not (run / LOCK_FILE).exists():
        check_empty(run)  # before a lock file is created in a folder that is not a run
    made = not run.exists()
    lock = lock_of(run, progress, patient)
    try:
        if new:
            check_empty(run)
        yield
    finally:
        if made and [path.name for path in run.glob("*")] == [LOCK_FILE]:  # nothing was written
            (run / LOCK_FILE).unlink()
            with suppress(OSError):
                run.rmdir()
        lock.release()


def lock_of(run: Path, progress: Progress, patient: bool) -> FileLock:
    lock = acquire_lock(run)
    # A restarted job may begin before a file server releases the lock of the previous job.
    if lock is None and patient:
        progress.say(f"{run} is being trained by {lock_holder(run)}; waiting up to two minutes")
        lock = acquire_lock(run, LOCK_TIMEOUT)
    if lock is None:
        raise FileExistsError(
            f"{run} is being trained by {lock_holder(run)}; wait for it, stop it, or choose "
            "another directory (--out)"
        )
    return lock


def check_empty(out: Path) -> None:
    if out.is_dir():
        found = [p for p in out.iterdir() if p.name != LOCK_FILE and not is_temporary(p)]
    else:
        found = [out] if out.exists() else []
    if found:
        is_run = (out / RUN_FILE).exists()
        hint = f"; to resume it: {command('train --resume', out)}" if is_run else ""
        raise FileExistsError(f"{out} already exists and is not empty{hint}")
