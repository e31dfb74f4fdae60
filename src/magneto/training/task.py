"""The interface between the training loop and a task: batches, and losses as sums and counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from magneto.data.problems import DataProblems
from magneto.data.stream import BatchStream, named_tensors
from magneto.files import directory_aside, read_object, write_json
from magneto.progress import SILENT, Progress

if TYPE_CHECKING:
    from magneto.tasks import TaskEntry
    from magneto.weights import StoredTensor

ASSETS = "assets"
"""Folder in a run that `Task.save_assets` fills."""
RESOLVED_FILE = "resolved.json"
"""File in a run's assets with the recipe's fields that the data determined. With it a run opens
without its data and without other runs."""
DIGEST_FILE = "data.digest"
"""File in a run's assets that identifies the content of the training data."""
NON_FINITE = "non_finite"
"""Log of a loss: predictions excluded as not finite. A step without any others has diverged."""
WHOLE_MODEL_STRATEGIES = ("auto", "none", "ddp")
"""Values of `training.distributed` that a task with `Task.whole_model` allows."""


@dataclass(frozen=True)
class Loss:
    """A loss as a sum and a count, so that parts of a batch add up to the whole.

    Attributes:
        total: Sum over all predictions, a scalar with a gradient.
        count: Number of predictions, a scalar tensor on the same device.
        logs: Further sums to log; each is divided by `count`.
        units: Number of the task's `unit` in the batch, for throughput; by default the rows of the
            batch's first tensor.
    """

    total: Tensor
    count: Tensor
    logs: Mapping[str, Tensor] = field(default_factory=dict)
    units: int | None = None


@dataclass(frozen=True)
class Scores:
    """Scores of one validation batch.

    Attributes:
        sums: Tensors on the model's device, with the same names for every batch; they are added in
            float64 over batches and ranks.
        predictions: Data that a metric needs of the whole set (texts for BLEU): nested dicts, lists
            and tuples of tensors and plain values, or None. Tensors stay on their device.
    """

    sums: Mapping[str, Tensor]
    predictions: Any = None


@dataclass(frozen=True)
class Figure:
    """A picture of a model's behaviour for the report.

    Attributes:
        name: File name without ending: letters, digits and dashes.
        title: A few words on what it shows.
        caption: One or two sentences on how to read it, with its numbers.
        image: SVG text, or the bytes of a PNG.
    """

    name: str
    title: str
    caption: str
    image: str | bytes


class Task(ABC):
    """An objective on one kind of data.

    Attributes:
        primary_metric: Key of `summarise`'s result that selects checkpoints.
        higher_is_better: Whether a higher value of it is better.
        unit: Unit of throughput, in the plural.
        whole_model: Reason why each rank needs a whole model, as a clause before "which needs a
            whole model on each rank"; "" if ranks may hold shards.
        ModelConfig: Dataclass of the recipe's `model` section, for a task named by import path.
        DataConfig: Dataclass of the `data` section, likewise.
        model_config: Values of the `model` section.
        data_config: Values of the `data` section.
        seed: Seed of weights, data order, dropout and splits.
        problems: Records examples with problems; the run lists them by name.
    """

    primary_metric: str = "loss"
    higher_is_better: bool = False
    unit: ClassVar[str] = "examples"
    whole_model: str = ""
    ModelConfig: ClassVar[type]
    DataConfig: ClassVar[type]

    def __init__(self, model_config: Any, data_config: Any, seed: int) -> None:
        self.model_config = model_config
        self.data_config = data_config
        self.seed = seed
        self.problems = DataProblems()
        self._progress: Progress = SILENT  # set by `prepare`

    def prepare(self, progress: Progress = SILENT) -> None:
        """Tokenise, cache or download; runs once, on the first rank first."""
        return None

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Build the model, initialised from torch's current random state.

        It is also built on the meta device, to be initialised module by module
        (`magneto.training.model`) and to count operations.
        """

    def initial_weights(self) -> Mapping[str, StoredTensor]:
        """Return weights by name that replace initial ones, such as those of another run."""
        return {}

    def companion(self) -> nn.Module | None:
        """Return the frozen model that `loss` and `score` use, or None.

        One example is the tokenizer whose codes an image model predicts. It is moved to the model's
        device and appears in no optimizer or checkpoint. `save_assets` must add its weights to the
        digest, so that a run is not resumed with another one.
        """
        return None

    def rate_multipliers(self, model: nn.Module) -> Mapping[str, float]:
        """Return multiples of the learning rate by parameter name; 1 by default.

        Uses: layer-wise decay, a faster head, or 0 for frozen weights.
        """
        return {}

    def begin_training(
        self,
        model: nn.Module,
        batches: Iterator[Sequence[Any]],
        gather: Callable[[Tensor], Tensor],
    ) -> None:
        """Initialise weights that depend on data; called once, before the first step.

        Args:
            model: The initialised model on its device; gradients are off.
            batches: Training batches from the first on, without end, made on demand: each is the
                list of this rank's micro-batches, on the device.
            gather: Returns the rows of all ranks' tensors, the same on every rank.
        """
        return None

    def dummy_batch(self, examples: int) -> Any:
        """Return a training batch of the largest shape that the configuration allows, on the CPU.

        `magneto plan` uses its shapes only. A batch made of the configuration alone needs no data.
        """
        self.prepare()
        return self.train_stream(examples, self.seed).batch(0)[0]

    def end_step(self, model: nn.Module, add_up: Callable[[Tensor], Tensor]) -> None:
        """Update what gradients don't, such as moving averages, after every optimizer step.

        Micro-batches leave sums in the model; this method adds them over ranks, so that the way a
        batch is cut changes nothing.

        Args:
            model: The model on its device; gradients are off.
            add_up: Returns the sum of all ranks' tensors, the same on every rank.
        """
        return None

    @abstractmethod
    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return the training batches of `batch_size` examples."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Return the loss of the model on a batch on its device."""

    @abstractmethod
    def validation_batches(self) -> Sequence[Any]:
        """Return the validation split as batches, each made on the CPU when accessed.

        Batch i must not depend on the number of ranks or on the limit, which takes the first
        batches; so their order should not follow the content. See
        `magneto.data.stream.LazyBatches`.
        """

    def score(self, model: nn.Module, batch: Any) -> Scores:
        """Return the scores of the model on a validation batch, without waiting for the device.

        The model is in evaluation mode, without gradients, in the run's precision. It must run the
        same number of times for every batch, because ranks may hold shards of it. The default sums
        are those of `loss`: "loss", "count" and its logs.
        """
        found = self.loss(model, batch)
        return Scores({**found.logs, "loss": found.total, "count": found.count})

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return metrics of all batches; by default each sum divided by "count".

        Args:
            sums: Sums over batches and ranks, as numbers or nested lists.
            predictions: Predictions of the batches that have any, in order, on the CPU.
        """
        return {name: sums[name] / sums["count"] for name in sums if name != "count"}

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return metrics of a trivial baseline on the validation data, or {}.

        Examples are token frequencies, the commonest class, and the mean. Keys are those of
        `summarise` for which the baseline is defined.

        Args:
            limit: Number of first batches, as `training.evaluate_limit`; None for all.
        """
        return {}

    def predict(self, model: nn.Module, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the model's prediction for each input, as plain values or tensors to print.

        Args:
            model: The model with a run's weights, in evaluation mode. Data is not prepared.
            inputs: For a task named by import path, rows of tables: mappings from column names to
                values, which are strings in a .csv file.
        """
        raise NotImplementedError

    def save_assets(self, directory: Path) -> Mapping[str, Any]:
        """Write what a model needs besides weights, and a digest of the data.

        A run is resumed only if they are unchanged.

        Args:
            directory: An empty folder, which becomes the run's `assets`.

        Returns:
            Values of the recipe's fields that the data determined, by dotted name. With them the
            model is built without data. A path is one inside `directory`.
        """
        return {}


def task_entry(name: str, kind: type[Task]) -> TaskEntry:
    """Return the command-line entry of a task named by its import path."""
    from magneto.tasks import TaskEntry

    verbs = ("predict TABLE",) if kind.predict is not Task.predict else ()
    return TaskEntry(name, "", "", verbs=verbs, reads="rows")


def count_units(loss: Loss, piece: Any) -> int:
    """Return the units in a micro-batch, from its loss or the rows of its first tensor."""
    if loss.units is not None:
        return loss.units
    return len(next(iter(named_tensors(piece).values())))


def figures_of(task: Task, model: nn.Module) -> Sequence[Figure]:
    """Return pictures of a model's behaviour on validation data, with the model in evaluation mode.

    They come from the function `figures(task, model)` of the task's module, if there is one.
    """
    draw = getattr(import_module(type(task).__module__), "figures", None)
    return () if draw is None else draw(task, model)


def place_companion(task: Task, device: torch.device) -> None:
    """Move a task's companion to a device, frozen and in evaluation mode."""
    companion = task.companion()
    if companion is not None:
        companion.requires_grad_(False).eval().to(device)


def strategy_error(task: Task, strategy: str) -> str:
    """Return why ranks can't train a task with a strategy, or ""."""
    if strategy in WHOLE_MODEL_STRATEGIES or not task.whole_model:
        return ""
    return (f"training.distributed {strategy}: {task.whole_model}, which needs a whole model on "
            "each rank: use ddp")  # fmt: skip


@contextmanager
def staged_assets(task: Task, run: Path) -> Iterator[dict[Path, Path]]:
    """Write a run's assets to a temporary folder; yield their paths and final places.

    Raises:
        ValueError: If they differ from the run's existing assets, such as its tokenizer or the
            digest of its data.
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
            if read_files(place) not in ({}, read_files(path)):
                raise ValueError(
                    f"{place} differs from what this recipe and its data give now: they changed "
                    "after the run began. Restore them, or start another run (--out)."
                )
        yield made


def install_assets(made: Mapping[Path, Path]) -> None:
    """Move staged assets to their places; existing ones stay."""
    for path, place in made.items():
        if not read_files(place):
            place.parent.mkdir(exist_ok=True)
            path.replace(place)


def read_files(path: Path) -> dict[str, bytes]:
    """Return the content of a file or of the files in a folder, by path; {} if it is missing."""
    files = [path, *path.rglob("*")]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


def resolved_fields(run: Path) -> dict[str, Any]:
    """Return the recipe's fields that a run's data determined; {} before training began.

    Raises:
        FileNotFoundError: If a file of these is missing: a new tokenizer would not fit the weights.
    """
    folder = run / ASSETS
    if not folder.is_dir() and not (run / "environment.json").exists():
        return {}
    if not (folder / RESOLVED_FILE).is_file():
        raise FileNotFoundError(f"{folder / RESOLVED_FILE} is missing, and the run's weights "
                                    "need it. Restore it from a copy of the run.")  # fmt: skip
    held = read_object(folder / RESOLVED_FILE, "values", "files")
    for name in held["files"].values():
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder / name} is missing, and the run's weights need it. "
                                    "Restore it from a copy of the run.")  # fmt: skip
    return held["values"] | {key: str(folder / name) for key, name in held["files"].items()}
