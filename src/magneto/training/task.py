"""Interface between the training loop and a task: batches, and losses as sums and counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from magneto.data.problems import DataProblems
from magneto.data.stream import BatchStream, named_tensors
from magneto.files import read_object, temporary_directory, write_json
from magneto.progress import SILENT, Progress
from magneto.training.config import SHARDED

if TYPE_CHECKING:
    from magneto.tasks import TaskEntry
    from magneto.weights import StoredTensor

ASSETS = "assets"
"""Folder in a run that `Task.save_assets` fills."""
RESOLVED_FILE = "resolved.json"
"""File in a run's assets with the recipe's fields that the data determined. Because of
resolved.json, a run can be loaded without the data and without other runs."""
DIGEST_FILE = "data.digest"
"""File in a run's assets that identifies the content of the training data."""
NON_FINITE = "non_finite"
"""Name in `Loss.logs` for the number of predictions that are left out because of a non-finite
loss. If all predictions of a step are left out, the run has diverged."""


@dataclass(frozen=True)
class Loss:
    """Loss as a sum and a count, so that losses of micro-batches add up to the loss of the batch.

    Attributes:
        total: Sum of the loss over all predictions, a scalar with a gradient.
        count: Number of predictions, a scalar tensor on the device of `total`.
        logs: Sums of further quantities by name. The log shows each sum divided by `count`.
        units: Number of units in the batch, such as tokens, for throughput. By default, each row of
            the batch's first tensor is a unit.
    """

    total: Tensor
    count: Tensor
    logs: Mapping[str, Tensor] = field(default_factory=dict)
    units: int | None = None


def add_losses(losses: Sequence[Loss]) -> Loss:
    """Add several losses, field by field."""

    def added(parts: Iterable[Tensor]) -> Tensor:
        return torch.stack([*parts]).sum()

    return Loss(
        added(each.total for each in losses),
        added(each.count for each in losses),
        {name: added(each.logs[name] for each in losses) for name in losses[0].logs},
        sum(each.units or 0 for each in losses),
    )


@dataclass(frozen=True)
class Scores:
    """Scores of one validation batch.

    Attributes:
        sums: Sums by name, as tensors on the model's device. The names must be the same in every
            batch. The sums are added over batches and ranks in float64.
        predictions: Predictions for metrics over the whole set, such as texts for BLEU, or None.
            Predictions are nested dicts, lists and tuples of tensors and plain values. Tensors stay
            on the device.
    """

    sums: Mapping[str, Tensor]
    predictions: Any = None


@dataclass(frozen=True)
class Figure:
    """Figure about a model, for the report.

    Attributes:
        name: Name of the file without ending. Letters, digits and dashes are allowed.
        title: Title in a few words.
        caption: Caption of one or two sentences, which explains the figure and quotes the main
            numbers.
        image: Image as SVG text, or as the bytes of a PNG.
    """

    name: str
    title: str
    caption: str
    image: str | bytes


class Task(ABC):
    """Training objective on one kind of data.

    A task must define the abstract methods `build_model`, `train_stream`, `loss` and
    `validation_batches`. A task of your own must also define `ModelConfig` and `DataConfig`. All
    other methods and attributes are optional.

    Attributes:
        primary_metric: Metric that selects checkpoints. The method `summarise` returns a value with
            this name.
        higher_is_better: True if higher values of the primary metric are better.
        unit: Unit of throughput in the plural, such as "tokens".
        whole_model: Reason why each rank needs the whole model, for error messages; "" if ranks may
            hold shards of the model.
        ModelConfig: Dataclass of the recipe's section `model`, for a task of your own.
        DataConfig: Dataclass of the recipe's section `data`, for a task of your own.
        model_config: Values of the section `model`.
        data_config: Values of the section `data`.
        seed: Seed of weights, data order, dropout and splits.
        problems: Problems of single examples, such as damaged files. The run writes them to a file.
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

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Build the model, initialised from torch's current random state.

        Magneto also builds the model on the meta device, to initialise weights module by module
        (`magneto.training.model`) and to count operations without allocating memory.
        """

    @abstractmethod
    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return the training batches of `batch_size` examples."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Return the loss of the model on a batch, which is on the model's device."""

    @abstractmethod
    def validation_batches(self) -> Sequence[Any]:
        """Return the validation split as batches, each made on the CPU when accessed.

        Batches must not depend on the number of ranks or on `training.evaluate_limit`. The order of
        examples should be random, since `training.evaluate_limit` selects the first batches. See
        `magneto.data.stream.LazyBatches`.
        """

    def prepare(self, progress: Progress = SILENT) -> None:
        """Tokenise, cache or download data.

        Each rank calls this method once. Rank 0 calls this method first.
        """
        return None

    def initial_weights(self) -> Mapping[str, StoredTensor | Tensor]:
        """Return weights to start from, such as those of another run, by parameter name."""
        return {}

    def companion(self) -> nn.Module | None:
        """Return the frozen model that `loss` and `score` use, or None.

        An example is an image tokenizer, whose codes the trained model predicts. The frozen model
        is moved to the device of the trained model, is not trained, and is not in checkpoints.
        `save_assets` must add the weights of the frozen model to the digest, so that a run is not
        resumed with another frozen model.
        """
        return None

    def rate_multipliers(self, model: nn.Module) -> Mapping[str, float]:
        """Return factors of the learning rate by parameter name.

        A parameter without an entry has the factor 1. Examples are layer-wise decay, a higher rate
        of the head, and a factor of 0 for frozen weights.
        """
        return {}

    def begin_training(
        self,
        model: nn.Module,
        batches: Iterator[Sequence[Any]],
        gather: Callable[[Tensor], Tensor],
    ) -> None:
        """Initialise weights whose initial values depend on training batches.

        The training loop calls this method once, before the first step.

        Args:
            model: Model with initial weights on the device. Gradients are disabled.
            batches: Iterator over the training batches from the first step on, without end. Each
                batch is the list of this rank's micro-batches, on the device.
            gather: Function that concatenates the rows of a tensor over all ranks, and returns the
                result on every rank.
        """
        return None

    def dummy_batch(self, examples: int) -> Any:
        """Return a training batch of the largest shape that the configuration allows, on the CPU.

        `magneto plan` uses only the shapes of the batch, so the method needs no data.
        """
        self.prepare()
        return self.train_stream(examples, self.seed).batch(0)[0]

    def end_step(self, model: nn.Module, add_up: Callable[[Tensor], Tensor]) -> None:
        """Update values without gradients, such as moving averages, after every optimizer step.

        In its forward passes, the model may store sums over examples. `add_up` adds such sums over
        all ranks. The updated values must not depend on how a batch is divided into micro-batches
        and among ranks.

        Args:
            model: Model on the device. Gradients are disabled.
            add_up: Function that adds a tensor over all ranks, and returns the sum on every rank.
        """
        return None

    def score(self, model: nn.Module, batch: Any) -> Scores:
        """Return the scores of the model on a validation batch, without waiting for the device.

        The model is in evaluation mode, without gradients, in the run's precision. The method must
        call the model equally often for every batch, because ranks may hold shards of the model. By
        default, the method calls `loss`, and returns the sums "loss", "count" and those of
        `Loss.logs`.
        """
        found = self.loss(model, batch)
        return Scores({**found.logs, "loss": found.total, "count": found.count})

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return metrics over all batches. By default, each sum is divided by "count".

        Args:
            sums: Sums over all batches and ranks, as numbers or nested lists.
            predictions: Predictions on the CPU, one element per batch, in the order of batches.
                Batches without predictions are left out.
        """
        return {name: sums[name] / sums["count"] for name in sums if name != "count"}

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return metrics of a trivial baseline on the validation data, or {}.

        A baseline may predict token frequencies, the commonest class, or the mean. The names of the
        metrics are as in `summarise`.

        Args:
            limit: Number of batches to evaluate, from the first batch on, or None for all batches.
        """
        return {}

    def predict(self, model: nn.Module, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the model's prediction for each input, as plain values or tensors to print.

        `prepare` has not been called, so the method must work without the data.

        Args:
            model: Model with a run's weights, in evaluation mode.
            inputs: Inputs of the model. For your own task, each input is a table row: a mapping
                from column names to values. Values of a .csv file are strings.
        """
        raise NotImplementedError

    def save_assets(self, directory: Path) -> Mapping[str, Any]:
        """Write the files that a model needs besides weights, and a digest of the data.

        A resumed run writes these files again, and stops if they differ from the old files.

        Args:
            directory: Empty folder, which becomes the folder `assets` of the run.

        Returns:
            Values of the recipe's fields that the data determined, such as "data.tokenizer". These
            values suffice to build the model without the data. A value that is a path must be
            inside `directory`.
        """
        return {}


def task_entry(name: str, kind: type[Task]) -> TaskEntry:
    """Return a task's entry in `TASKS`, or a new entry for a task of your own."""
    from magneto.tasks import TASKS, TaskEntry

    if name in TASKS:
        return TASKS[name]
    verbs = ("predict TABLE",) if kind.predict is not Task.predict else ()
    return TaskEntry(name, ("", ""), verbs=verbs, reads="rows")


def count_units(loss: Loss, piece: Any) -> int:
    if loss.units is not None:
        return loss.units
    return len(next(iter(named_tensors(piece).values())))


def figures_of(task: Task, model: nn.Module) -> Sequence[Figure]:
    """Return figures about a model on validation data, in evaluation mode.

    If the task's module has a function `figures(task, model)`, that function returns the figures.
    """
    draw = getattr(import_module(type(task).__module__), "figures", None)
    return () if draw is None else draw(task, model)


def place_companion(task: Task, device: torch.device) -> None:
    """Move the frozen model of `Task.companion` to a device, and set evaluation mode."""
    companion = task.companion()
    if companion is not None:
        companion.requires_grad_(False).eval().to(device)


def strategy_error(task: Task, strategy: str) -> str:
    """Return why a strategy does not suit a task, or "" if the strategy suits the task."""
    if strategy not in SHARDED or not task.whole_model:
        return ""
    return (f"training.distributed cannot be {strategy!r}, because {task.whole_model}. Each rank "
            "needs the whole model for this task: use 'ddp'")  # fmt: skip


@contextmanager
def staged_assets(task: Task, run: Path) -> Iterator[dict[Path, Path]]:
    """Write a run's assets to a temporary folder, and yield their temporary and final paths.

    Raises:
        ValueError: If an asset, such as the tokenizer, differs from the run's existing one.
    """
    with temporary_directory(run / ASSETS) as temporary:
        fields = task.save_assets(temporary)
        files = {
            name: str(value.relative_to(temporary))
            for name, value in fields.items()
            if isinstance(value, Path)
        }
        values = {name: value for name, value in fields.items() if name not in files}
        write_json(temporary / RESOLVED_FILE, {"values": values, "files": files})
        made = {
            path: run / ASSETS / path.name for path in sorted(temporary.iterdir(), reverse=True)
        }
        for path, place in made.items():
            if read_files(place) not in ({}, read_files(path)):
                raise ValueError(
                    f"{place} does not match the recipe and the data. Recipe or data changed "
                    "after the run began. Undo the change, or start another run (--out)."
                )
        yield made


def data_changed(task: Task, run: Path) -> bool:
    """Return whether the data of a prepared task differ from the data of a run."""
    with TemporaryDirectory() as made:
        task.save_assets(Path(made))
        digests = ((run / ASSETS / path.name, path) for path in Path(made).glob("*.digest"))
        return any(kept.is_file() and kept.read_bytes() != path.read_bytes()
                   for kept, path in digests)  # fmt: skip


def write_assets(directory: Path, digest: str, tokenizer: Any = None) -> dict[str, Any]:
    """Write the digest of a task's data, and the tokenizer if there is one.

    Returns:
        Recipe field "data.tokenizer" with its value, or {} without a tokenizer.
    """
    (directory / DIGEST_FILE).write_text(digest, encoding="utf-8")
    if tokenizer is None:
        return {}
    folder = directory / "tokenizer"
    folder.mkdir()
    tokenizer.save(folder)
    return {"data.tokenizer": folder}


def install_assets(made: Mapping[Path, Path]) -> None:
    """Move staged assets to their final paths. Existing assets stay."""
    for path, place in made.items():
        if not read_files(place):
            place.parent.mkdir(exist_ok=True)
            path.replace(place)


def read_files(path: Path) -> dict[str, bytes]:
    files = [path, *path.rglob("*")]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


def resolved_fields(run: Path) -> dict[str, Any]:
    """Return the recipe's fields that the data determined, or {} if the run has not started.

    Raises:
        FileNotFoundError: If an asset is missing, such as the tokenizer. The weights fit only the
            tokenizer of the run.
    """
    folder = run / ASSETS
    if not folder.is_dir() and not (run / "environment.json").exists():
        return {}
    held: dict[str, Any] = {"files": {}}
    if (folder / RESOLVED_FILE).is_file():
        held = read_object(folder / RESOLVED_FILE, "values", "files")
    for path in (folder / name for name in (RESOLVED_FILE, *held["files"].values())):
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing, and the run's weights need it. Restore "
                                    f"{path.name} from a copy of the run.")  # fmt: skip
    return held["values"] | {key: str(folder / name) for key, name in held["files"].items()}
