"""All that the training loop knows of a task: batches come out, a sum and a count go in."""

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
"""In a run: the folder of what `Task.save_assets` writes."""
RESOLVED_FILE = "resolved.json"
"""In a run's assets: the recipe's fields with the values that the data gave them. With these a run
is opened without its data and without another run."""
DIGEST_FILE = "data.digest"
"""In a run's assets: what names the content of the data it is trained on."""
NON_FINITE = "non_finite"
"""Among a loss's logs: predictions left out as not finite; if a step's all are, it diverged."""
WHOLE_MODEL_STRATEGIES = ("auto", "none", "ddp")
"""What `training.distributed` may be where `Task.whole_model` says something."""


@dataclass(frozen=True)
class Loss:
    """A loss as a sum and a count, so that pieces of a batch add up to the whole.

    Attributes:
        total: Sum over everything predicted, a scalar with a gradient.
        count: How many things were predicted, a scalar tensor on the same device.
        logs: Further sums to show; each is divided by `count`.
        units: How many of the task's `unit` the batch holds, for throughput; by default as many as
            the first tensor of the batch has rows.
    """

    total: Tensor
    count: Tensor
    logs: Mapping[str, Tensor] = field(default_factory=dict)
    units: int | None = None


@dataclass(frozen=True)
class Scores:
    """What one validation batch adds to the metrics.

    Attributes:
        sums: Tensors of any shape on the model's device, under the same names for every batch; they
            are added up over batches and ranks in float64.
        predictions: What a metric needs of the whole set at once (texts for BLEU): nested dicts,
            lists and tuples of tensors and plain values, or None. Tensors stay on their device.
    """

    sums: Mapping[str, Tensor]
    predictions: Any = None


@dataclass(frozen=True)
class Figure:
    """A picture of what a run's model does, for its report.

    Attributes:
        name: Of its file, without an ending: letters, digits and dashes.
        title: What is to be seen, in a few words.
        caption: How to read it, in a sentence or two; with the numbers that it shows.
        image: An SVG drawing as text, or the bytes of a PNG.
    """

    name: str
    title: str
    caption: str
    image: str | bytes


class Task(ABC):
    """One objective on one kind of data.

    Attributes:
        primary_metric: Key of `summarise`'s result by which checkpoints are chosen.
        higher_is_better: Its direction.
        unit: What throughput counts, in the plural.
        whole_model: Why each rank needs a whole model, as words that "which needs a whole model on
            each rank" can follow; "" where ranks may hold shards of it.
        ModelConfig: Dataclass of a recipe's `model` section, of a task that is not in
            `magneto.tasks.TASKS` and named by its import path.
        DataConfig: Dataclass of the `data` section, likewise.
        model_config: What to train.
        data_config: On what.
        seed: Of weights, data order, dropout and splits.
        problems: Told of each example with which something is wrong; the run keeps them by name.
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
        self._progress: Progress = SILENT  # `prepare` is told who shows its work

    def prepare(self, progress: Progress = SILENT) -> None:
        """Do the slow work that is done once (tokenise, cache); called on the first rank first."""
        return None

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Build the model, initialised from torch's current random state.

        It is also built on the meta device, where tensors have shapes and no values: to be drawn
        module by module (`magneto.training.model`), and to count its operations.
        """

    def initial_weights(self) -> Mapping[str, StoredTensor]:
        """Return weights, by the model's names, that it begins with in place of what is drawn."""
        return {}

    def companion(self) -> nn.Module | None:
        """Return the frozen model that `loss` and `score` ask, the same each time; None for none.

        Such as the tokenizer whose codes a model of images predicts. It is moved to the model's
        device, and is in no optimizer and no checkpoint. What it is made of belongs in the digest
        that `save_assets` writes, so that a run is not resumed with another one.
        """
        return None

    def rate_multipliers(self, model: nn.Module) -> Mapping[str, float]:
        """Return multiples of the learning rate by parameter's name; 1 where there is none.

        Layer-wise decay, a head that learns faster, or 0 for what stays as it is.
        """
        return {}

    def begin_training(
        self,
        model: nn.Module,
        batches: Iterator[Sequence[Any]],
        gather: Callable[[Tensor], Tensor],
    ) -> None:
        """Give weights that are made of data their first values; once, before the first step.

        Args:
            model: On its device, as it was drawn; without gradients.
            batches: The first training batches without end, each as this rank's micro-batches, on
                the device. None is made before it is asked for; training begins with the first.
            gather: Returns the rows of all ranks' tensors, rank by rank, alike on every rank.
        """
        return None

    def dummy_batch(self, examples: int) -> Any:
        """Return a training batch of the largest shape that the configuration allows, on the CPU.

        Its values mean nothing: `magneto plan` follows their shapes. Where it is made of the
        configuration alone, and `build_model` needs no data either, nothing is read.
        """
        self.prepare()
        return self.train_stream(examples, self.seed).batch(0)[0]

    def end_step(self, model: nn.Module, add_up: Callable[[Tensor], Tensor]) -> None:
        """Change what is no gradient's to change (moving averages); after every optimizer step.

        Micro-batches have left their sums in the model; here they are added up once over the ranks,
        so that cutting a batch changes nothing.

        Args:
            model: On its device; without gradients.
            add_up: Returns the sum of all ranks' tensors, alike on every rank.
        """
        return None

    @abstractmethod
    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return the training batches, `batch_size` examples at a time."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Run the model on one batch, which is on its device, and return the loss."""

    @abstractmethod
    def validation_batches(self) -> Sequence[Any]:
        """Return the validation split in batches, each made on the CPU when it is asked for.

        Batch i is the same whatever the number of ranks and whatever the limit, which takes the
        first ones; so their order should not follow the content. See
        `magneto.data.stream.LazyBatches`.
        """

    def score(self, model: nn.Module, batch: Any) -> Scores:
        """Run the model on one validation batch, which is on its device; wait for nothing.

        The model is in evaluation mode, without gradients, under the run's precision. For ranks
        that hold shards of the model it is run the same number of times whatever the batch. By
        default the sums are those of `loss`: "loss", "count" and its logs.
        """
        found = self.loss(model, batch)
        return Scores({**found.logs, "loss": found.total, "count": found.count})

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the metrics of scored batches; by default each sum divided by "count".

        Args:
            sums: Of all batches and ranks: a number each, or nested lists where it has a shape.
            predictions: Of the batches that have any, in the order of the batches, on the CPU.
        """
        return {name: sums[name] / sums["count"] for name in sums if name != "count"}

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return metrics of a trivial answer to the validation data; {} if there is none.

        Token frequencies, the commonest class, the mean: what a model that has learnt beats. Keys
        are those of `summarise`, as far as they are defined.

        Args:
            limit: Of the first batches only, as `training.evaluate_limit` of what is compared.
        """
        return {}

    def predict(self, model: nn.Module, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return what a model says of each input: plain values or tensors that are printed.

        Args:
            model: With a run's weights, in evaluation mode. Data is not prepared.
            inputs: Of a task of one's own: rows of tables, each a mapping from the columns' names
                to what is in the row, words as they stand in a .csv file.
        """
        raise NotImplementedError

    def save_assets(self, directory: Path) -> Mapping[str, Any]:
        """Write what a run's model needs besides weights, and a digest of the data.

        Resuming compares it: a run goes on with what it began with.

        Args:
            directory: An empty folder, which becomes the run's `assets`.

        Returns:
            Values that the data told, by the recipe's dotted fields: with them a run's model is
            built without data and without another run. A path is one in `directory`.
        """
        return {}


def task_entry(name: str, kind: type[Task]) -> TaskEntry:
    """Return what commands know of a task of one's own, which is named by its import path."""
    from magneto.tasks import TaskEntry

    verbs = ("predict TABLE",) if kind.predict is not Task.predict else ()
    return TaskEntry(name, "", "", verbs=verbs, reads="rows")


def count_units(loss: Loss, piece: Any) -> int:
    """Return how many units a micro-batch holds, by its loss or by the rows of its first tensor."""
    if loss.units is not None:
        return loss.units
    return len(next(iter(named_tensors(piece).values())))


def figures_of(task: Task, model: nn.Module) -> Sequence[Figure]:
    """Return pictures of what a model, in evaluation mode, does on validation data.

    The function `figures(task, model)` of the task's module draws them; without one there are none.
    """
    draw = getattr(import_module(type(task).__module__), "figures", None)
    return () if draw is None else draw(task, model)


def place_companion(task: Task, device: torch.device) -> None:
    """Move a task's companion, if it has one, to a device: frozen, in evaluation mode."""
    companion = task.companion()
    if companion is not None:
        companion.requires_grad_(False).eval().to(device)


def strategy_error(task: Task, strategy: str) -> str:
    """Return why ranks can't train a task by a strategy ("ddp", "fsdp", ...); "" if they can."""
    if strategy in WHOLE_MODEL_STRATEGIES or not task.whole_model:
        return ""
    return (f"training.distributed {strategy}: {task.whole_model}, which needs a whole model on "
            "each rank: use ddp")  # fmt: skip


@contextmanager
def assets_aside(task: Task, run: Path) -> Iterator[dict[Path, Path]]:
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
            if read_files(place) not in ({}, read_files(path)):
                raise ValueError(
                    f"{place} differs from what this recipe and its data give now: they changed "
                    "after the run began; give it what it began with, or begin another run"
                )
        yield made


def install_assets(made: Mapping[Path, Path]) -> None:
    """Rename what was made aside; what is there already stays."""
    for path, place in made.items():
        if not read_files(place):
            place.parent.mkdir(exist_ok=True)
            path.replace(place)


def read_files(path: Path) -> dict[str, bytes]:
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
