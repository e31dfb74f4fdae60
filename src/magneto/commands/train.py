"""`magneto train`: train a recipe, or go on with a run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from magneto.analysis.probe.levels import PERIOD
from magneto.commands.arguments import Parser, print_json
from magneto.config import ConfigError
from magneto.files import is_aside
from magneto.lease import Lease, acquire_lease, alive_here, holder, newest_lease
from magneto.progress import ProgressBars
from magneto.recipe import RUN_FILE, Recipe, load_recipe, open_run

if TYPE_CHECKING:
    from magneto.training.hooks import Hook
    from magneto.training.state import TrainingState

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
    made.add_argument(
        "--dry-run", action="store_true",
        help="say parameters, tokens, memory, steps and time, by taking some steps; write no run",
    )  # fmt: skip
    made.add_argument("--wandb", action="store_true", help="send curves to Weights & Biases, too")
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given, overrides = parser().parse_with_overrides(words)
    run, recipe = asked(given, overrides)
    report = ProgressBars(quiet=not is_main_process())
    if given.dry_run:
        from magneto.commands.dry_run import dry_run

        return dry_run(recipe, report, given.json)
    from magneto.training.distributed import pick_device, pick_strategy
    from magneto.training.loop import train
    from magneto.training.trackers import check_trackers

    check_trackers(recipe.training)
    task = recipe.build_task()
    task.check_strategy(recipe.training.distributed)
    pick_strategy(recipe.training)
    pick_device(recipe.training.device)
    resume = given.resume is not None
    with held(run, new=not resume) as lease:
        if is_main_process():
            task.prepare(report)  # what is wrong with the data is known before anything is written
        result = train(
            task,
            recipe.training,
            run,
            seed=recipe.seed,
            resume=resume,
            hooks=own_hooks(lease, recipe, given.probe_every),
            report=report,
            recipe=recipe.to_mapping(),
            keep_recipe=lambda: recipe.save(run / RUN_FILE),
        )
    if given.json and is_main_process():
        print_json({"run": str(run), **asdict(result)})
    return EXIT_CODES[result.status]


def asked(given: argparse.Namespace, overrides: dict[str, str]) -> tuple[Path, Recipe]:
    """Return where to train, and what.

    Raises:
        ConfigError: If neither a recipe nor a run to go on with is named, or both; or the recipe is
            wrong.
        FileNotFoundError: If there is none.
    """
    if given.data is not None:
        overrides["data.source"] = given.data
    if given.distributed:
        overrides["training.distributed"] = given.distributed
    if given.wandb:
        overrides["training.tracker"] = "wandb"
    if given.resume:
        if given.recipe or given.out:
            raise ConfigError(
                ["--resume goes on in its own directory: give no recipe and no --out"]
            )
        return given.resume, open_run(given.resume, overrides)
    if given.recipe:
        recipe = load_recipe(given.recipe, overrides)
        return new_directory(given.out, recipe), recipe
    raise ConfigError(["give a recipe (`magneto recipes` lists them) or --resume RUN"])


def own_hooks(lease: Lease | None, recipe: Recipe, probe_every: int | None) -> list[Hook]:
    """Return what the command adds to the loop."""
    hooks = [lease_hook(lease, recipe.training.log_every)]
    if probe_every is not None:
        from magneto.analysis.probe.probe_hook import ProbeHook

        hooks.append(ProbeHook(probe_every).hook)
    return hooks


@contextmanager
def held(run: Path, new: bool) -> Iterator[Lease | None]:
    """Hold a run's directory while it is trained, so that no other process writes there.

    The main process holds it for all ranks; the others get None.

    Raises:
        FileExistsError: If another process holds it, or a new run would go into another's place.
    """
    if not is_main_process():
        yield None
        return
    if new and newest_lease(run) is None:
        refuse_taken(run)  # a folder that is no run's stays untouched
    made = not run.exists()
    lease = None if living(run) else acquire_lease(run)
    if lease is None:
        raise FileExistsError(
            f"{run} is being trained by {holder(run)}: wait for it, stop it, or train in another "
            "directory (--out)"
        )
    try:
        if new:
            refuse_taken(run)
        yield lease
    finally:
        lease.release()
        if made:
            with suppress(OSError):
                run.rmdir()  # which is so only where nothing was written: it never began


def living(run: Path) -> bool:
    """Return whether a process of this machine holds a run, even if it sleeps."""
    lease = newest_lease(run)
    return lease is not None and alive_here(lease)


def lease_hook(lease: Lease | None, every: int) -> Hook:
    """Return a hook that ends a run, without writing, once another process has taken it over."""
    from magneto.training.distributed import any_rank
    from magneto.training.hooks import Hook

    def check(state: TrainingState) -> None:
        if any_rank(lease is not None and lease.lost, state.world):
            raise FileExistsError(
                f"{state.run} was taken over by {holder(state.run)}, which had heard nothing of "
                "this one for a minute: nothing more is written here"
            )

    return Hook(every, check)


def is_main_process() -> bool:
    """Return whether this process is the one that writes and talks."""
    return os.environ.get("RANK", "0") == "0"


def new_directory(out: Path | None, recipe: Recipe) -> Path:
    """Return where a new run goes."""
    if out is not None:
        return out
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = Path(recipe.name).stem if "." in recipe.name else recipe.name
    return Path("runs") / f"{name}-{stamp}"


def refuse_taken(out: Path) -> None:
    """Raise FileExistsError if something is in a new run's place.

    What a start that was killed leaves (a lease, files aside) is nothing.
    """
    if out.is_dir():
        found = [p for p in out.iterdir() if not p.match("lease-*") and not is_aside(p)]
    else:
        found = [out] if out.exists() else []
    if found:
        hint = f"; go on with it: magneto train --resume {out}" if (out / RUN_FILE).exists() else ""
        raise FileExistsError(f"{out} is there already and not empty{hint}")
