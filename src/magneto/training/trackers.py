"""Where curves are shown besides metrics.jsonl: TensorBoard, Weights & Biases.

Names are grouped: train/loss, validation/loss, speed/tokens_per_second.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from magneto.files import import_extra, plain, read_json, write_json
from magneto.training.config import TrainingConfig

# Rows' names that are of speed, besides those that end in "_per_second".
SPEED = ("flops_utilisation", "data_wait_seconds")
# In a run: what Weights & Biases calls it, so that a resumed run goes on there.
WANDB_FILE = "wandb.json"


class Tracker(Protocol):
    """Shows the rows of a run."""

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Show the values of a step, by grouped names."""
        ...

    def close(self) -> None:
        """Finish."""
        ...


def grouped(key: str) -> str:
    """Return a row's name with its group."""
    if key.startswith("validation_"):
        return f"validation/{key.removeprefix('validation_')}"
    if key in SPEED or key.endswith("_per_second"):
        return f"speed/{key}"
    return f"train/{key}"


def flat(values: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Return nested hyper-parameters by dotted names; lists and what is None as text."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{section}{key}.")
        else:
            usual = isinstance(value, bool | int | float | str)
            found[f"{section}{key}"] = value if usual else str(value)
    return found


def check_trackers(config: TrainingConfig) -> None:
    """See that what was asked for is installed.

    Raises:
        ModuleNotFoundError: If it is not; says what to install.
    """
    if config.tracker == "wandb":
        import_wandb()


def open_trackers(
    run: Path,
    from_step: int,
    config: TrainingConfig,
    recipe: Mapping[str, Any],
    say: Callable[[str], None],
) -> list[Tracker]:
    """Open what a configuration asks for.

    Args:
        run: Directory of the run.
        from_step: Steps that were taken before; what was shown of later ones is forgotten.
        config: Of the training.
        recipe: Hyper-parameters, which are shown too.
        say: Says what is not installed.

    Raises:
        ModuleNotFoundError: If Weights & Biases is asked for and not installed.
    """
    trackers: list[Tracker] = []
    if config.tensorboard:
        try:
            trackers.append(TensorBoard(run, from_step, recipe))
        except ImportError:
            say("no TensorBoard files: the package tensorboard is not installed")
    if config.tracker == "wandb":
        trackers.append(WeightsAndBiases(run, recipe))
    return trackers


class TensorBoard:
    """Files for TensorBoard in RUN/tensorboard."""

    def __init__(self, run: Path, from_step: int, recipe: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes seconds to import
        from torch.utils.tensorboard.summary import hparams

        self.writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=from_step + 1)
        measured = {name: 0 for name in ("train/loss", "validation/loss")}
        for part in hparams(flat(recipe), measured):  # which the curves' own values fill
            self.writer.file_writer.add_summary(part)

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Write the values of a step."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Close the files."""
        self.writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, in the project "magneto" unless WANDB_PROJECT says otherwise."""

    def __init__(self, run: Path, recipe: Mapping[str, Any]) -> None:
        wandb = import_wandb()
        kept = run / WANDB_FILE
        known = read_json(kept)["id"] if kept.exists() else None
        self.session = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "magneto"),
            name=run.name,
            dir=str(run),
            id=known,
            resume="allow",
            config=plain(recipe),
        )
        write_json(kept, {"id": self.session.id})

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Send the values of a step; those that are not finite are left out."""
        self.session.log({n: v for n, v in values.items() if math.isfinite(v)}, step=step)

    def close(self) -> None:
        """Finish the session."""
        self.session.finish()


def import_wandb() -> Any:
    """Import Weights & Biases, or say what installs it."""
    return import_extra("wandb", "wandb", "training.tracker wandb needs Weights & Biases")
