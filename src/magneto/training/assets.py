"""What a run keeps of its data: files that its model needs, and what the data told the recipe.

`assets/` holds what `Task.save_assets` writes (a tokenizer, answers, means, digests of the data)
and `resolved.json`, the recipe's fields with the values that the data gave them. With both a run is
opened without its data and without another run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto.files import directory_aside, read_json, read_object, write_json
from magneto.progress import Progress

if TYPE_CHECKING:
    from magneto.training.task import Task

ASSETS = "assets"
"""In a run: the folder of them."""
RESOLVED_FILE = "resolved.json"
# In a run whose encoder others begin with: the metrics of guessing by frequency.
PLATEAU_FILE = "baseline.json"
# A loss above this share of the plateau's is at the plateau: its place differs by a few hundredths
# with the batches that it is measured on.
AT_PLATEAU = 0.97
# A model that has learnt by heart has a loss as high; but its answers are right more often, by more
# than this share of all.
MORE_RIGHT = 0.02


@contextmanager
def fitting_assets(task: Task, run: Path) -> Iterator[dict[Path, Path]]:
    """Make a run's assets aside; give where each one is, and its place.

    Raises:
        ValueError: If the task would put something else in its place: the run's weights were
            trained with another tokenizer, on other data.
    """
    with directory_aside(run / ASSETS) as aside:
        fields = task.save_assets(aside)
        files = {
            name: str(value.relative_to(aside))
            for name, value in fields.items()
            if isinstance(value, Path)
        }
        values = {name: value for name, value in fields.items() if name not in files}
        write_json(aside / RESOLVED_FILE, {"values": values, "files": files})
        made = {path: run / ASSETS / path.name for path in sorted(aside.iterdir(), reverse=True)}
        for path, place in made.items():
            if contents(place) not in ({}, contents(path)):
                raise ValueError(
                    f"{place} differs from what this recipe and its data give now: they changed "
                    "after the run began; give it what it began with, or begin another run"
                )
        yield made


def put_in_place(made: Mapping[Path, Path]) -> None:
    """Rename what was made aside; what is there already stays."""
    for path, place in made.items():
        if not contents(place):
            place.parent.mkdir(exist_ok=True)
            path.replace(place)


def contents(path: Path) -> dict[str, bytes]:
    """Return the content of a file, or of those in a folder, by path; nothing if there is none."""
    files = [path, *path.rglob("*")]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


def resolved_fields(run: Path) -> dict[str, Any]:
    """Return the recipe's fields that a run's data told, by dotted name; none before it began.

    Raises:
        FileNotFoundError: If the run began and has lost them, or a file that they name: one that
            is made anew (a tokenizer) would not fit the weights.
    """
    folder = run / ASSETS
    if not folder.is_dir() and not (run / "environment.json").exists():
        return {}
    if not (folder / RESOLVED_FILE).is_file():
        raise FileNotFoundError(f"{folder / RESOLVED_FILE} is gone, which says what the run's "
                                "weights were made for")  # fmt: skip
    held = read_object(folder / RESOLVED_FILE, "values", "files")
    for name in held["files"].values():
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder / name} is gone, and the run's weights fit no other")
    return held["values"] | {key: str(folder / name) for key, name in held["files"].items()}


def write_plateau(run: Path, metrics: Mapping[str, float]) -> None:
    """Keep what guessing by frequency scores, for those who begin with this run's encoder."""
    if metrics:
        write_json(run / PLATEAU_FILE, {name: round(value, 4) for name, value in metrics.items()})


def warn_unlearnt(run: Path, progress: Progress) -> None:
    """Say it if a run that another begins with has learnt nothing; it goes on all the same."""
    try:
        plateau = read_json(run / PLATEAU_FILE)
        metrics = read_json(run / "result.json")["metrics"]
        level, loss = float(plateau["loss"]), float(metrics["loss"])
        gained = [metrics[name] - plateau[name] for name in plateau if name.endswith("accuracy")]
    except (OSError, ValueError, KeyError, TypeError):
        return  # another kind of run, or one that has not ended
    if loss < AT_PLATEAU * level or any(more > MORE_RIGHT for more in gained):
        return
    progress.say(
        f"warning: the encoder of {run} has learnt nothing but frequencies: its validation loss is "
        f"{loss:.3g}, and {level:.3g} is had without a look at the input; train it longer, or at "
        "another learning rate, before it is fine-tuned"
    )
