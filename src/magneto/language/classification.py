"""Text classification and regression: one label per text or pair (paper, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.stream import BatchStream, LazyBatches, by_length, example_stream, mixed_order
from magneto.data.table import Table
from magneto.data.tokenizer import Tokenizer, load_tokenizer, vocabulary_size
from magneto.language.classification_inputs import (
    Examples,
    assemble_all,
    encode,
    joined,
    label_values,
    make_tokenizer,
    padded,
)
from magneto.language.classification_scores import (
    class_scores,
    constant_answer,
    imbalance,
    number_scores,
    score_remarks,
)
from magneto.language.config import (
    ClassificationDataConfig,
    TextClassifierConfig,
    TextEncoderConfig,
)
from magneto.language.labelled_texts import ROWS, TextPair, Texts, is_empty, pairs_of, read_texts
from magneto.language.models import TextClassifier, TextEncoder
from magneto.progress import SILENT, Progress
from magneto.runs import check_same_encoder, open_run, pretrained_run, run_tokenizer, warn_unlearnt
from magneto.training.task import DIGEST_FILE, Loss, Scores, Task
from magneto.weights import StoredTensor, find_weights, open_tensors

# Texts of each validation set in an evaluation batch.
EVALUATION_BATCH = 64
VALIDATION_DIGEST_FILE = "data-validation.digest"


class TextClassification(Task):
    """Labelled texts, a `TextClassifier`; nats, or squared error, per text."""

    higher_is_better = True
    unit = "texts"
    model_config: TextClassifierConfig
    data_config: ClassificationDataConfig

    def __init__(
        self, model: TextClassifierConfig, data: ClassificationDataConfig, seed: int
    ) -> None:
        super().__init__(model, data, seed)
        self.primary_metric = data.primary_metric  # type: ignore[misc]

    @cached_property
    def texts(self) -> Texts:
        """What was read."""
        return read_texts(self.data_config)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The classes; those that the recipe names are known without the texts."""
        return () if self.data_config.number else self.data_config.labels or self.texts.labels

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The pre-trained run's tokenizer, the one named, or one trained on the texts."""
        if self.data_config.tokenizer == "auto" and self.model_config.pretrained:
            return load_tokenizer(run_tokenizer(pretrained_run(self.model_config)))
        trained = self.data_config.tokenizer in ("auto", "bpe")
        return make_tokenizer(self.data_config, pairs_of(self.texts.train) if trained else ())

    @cached_property
    def train(self) -> Examples:
        """The training split, tokenised."""
        return self._encode("training", self.texts.train)

    @cached_property
    def validation(self) -> dict[str, Examples]:
        """The validation splits by name, tokenised."""
        return {
            name: self._encode(name or "validation", rows)
            for name, rows in self.texts.validation.items()
        }

    def _encode(self, name: str, rows: Table) -> Examples:
        made = encode(rows, self.labels, self.tokenizer, self.data_config, self._progress)
        if (cut := made.truncated) > 0:
            most = self.data_config.max_length
            self._progress.say(f"{name}: {cut} of {len(rows)} inputs cut to {most} tokens")
        return made

    def prepare(self, progress: Progress = SILENT) -> None:
        """Read the texts; see that model, data and pre-trained run fit together.

        Raises:
            ValueError: If they don't.
        """
        if "texts" in self.__dict__:
            return
        self._progress = progress
        if self.model_config.pretrained:
            check_pretrained(self.model_config)
            warn_unlearnt(pretrained_run(self.model_config), progress)
        progress.say(f"{self.data_config.source}: {self.texts.counts.describe(ROWS)}, "
                     f"{len(self.labels) or 'no'} classes")  # fmt: skip
        values = label_values(self.texts.train, self.labels)
        if remark := "" if self.data_config.number else imbalance(values, self.labels):
            progress.say(remark)
        given, most = self.data_config.max_length, self.model_config.max_length
        if self.model_config.positions == "learned" and most < given:
            raise ValueError(f"data.max_length ({given}) is above model.max_length ({most})")
        self._classes()
        vocabulary_size(self.model_config.vocab_size, self.tokenizer)

    def _classes(self) -> int:
        """Return the model's classes: as many as the data has, if none are set; 1 for a number."""
        found = 1 if self.data_config.number else len(self.labels)
        if self.model_config.classes not in (None, found):
            raise ValueError(f"{self.data_config.source} has {found} classes, the model "
                             f"{self.model_config.classes}: leave model.classes out")  # fmt: skip
        return found

    def build_model(self) -> TextClassifier:
        """Build the model; the encoder of a pre-trained run is in `initial_weights`."""
        size = self.model_config.vocab_size or self.tokenizer.vocab_size
        return TextClassifier(replace(self.model_config, vocab_size=size, classes=self._classes()))

    def initial_weights(self) -> dict[str, StoredTensor]:
        """Return the encoder of the pre-trained run, if one is named."""
        if not self.model_config.pretrained:
            return {}
        with torch.device("meta"):
            encoder = self.build_model().text_encoder
        return pretrained_weights(encoder, pretrained_run(self.model_config))

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return texts in random order, those of a batch of like length."""
        train = self.train
        return example_stream(
            by_length(train.lengths, batch_size, seed),
            lambda numbers, draws: self._batch(train, numbers),
        )

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        """Return the longest inputs that fit."""
        longest = self.data_config.max_length
        rows = [np.zeros(longest, np.int64)] * examples
        kind = torch.float32 if self.data_config.number else torch.int64
        made = padded(rows, np.full(examples, longest), pad=0)
        return made | {"labels": torch.zeros(examples, dtype=kind)}

    def _batch(self, examples: Examples, numbers: np.ndarray) -> dict[str, Tensor]:
        """Pad numbered inputs: tokens, mask, token_types (all (batch, length)), labels (batch)."""
        rows = [examples.tokens[number] for number in numbers]
        made = padded(rows, examples.second[numbers], self.tokenizer.pad)
        return made | {"labels": torch.from_numpy(examples.labels[numbers])}

    def answers(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Return the model's answers, (batch, classes) logits or (batch, 1) numbers."""
        types = batch["token_types"] if self.model_config.token_types > 1 else None
        return model(batch["tokens"], batch["mask"], types).float()

    def _losses(self, answers: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each text."""
        if self.data_config.number:
            return (answers.squeeze(-1) - labels) ** 2
        return F.cross_entropy(answers, labels, reduction="none")

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum cross-entropy, or squared error; "accuracy" of classes is logged with it."""
        answers, labels = self.answers(model, batch), batch["labels"]
        total = self._losses(answers, labels).sum()
        count = torch.ones_like(labels).sum()
        if self.data_config.number:
            return Loss(total, count)
        return Loss(total, count, {"accuracy": (answers.detach().argmax(-1) == labels).sum()})

    def validation_batches(self) -> Sequence[dict[str, Tensor]]:
        """Return the texts of all validation sets, mixed: some of each set in a batch."""
        sizes = [len(examples.tokens) for examples in self.validation.values()]
        held, sets = joined(list(self.validation.values())), np.repeat(range(len(sizes)), sizes)
        turns = np.concatenate([mixed_order(size) // EVALUATION_BATCH for size in sizes])
        order = np.argsort(turns, kind="stable")
        plans = np.split(order, np.cumsum(np.bincount(turns))[:-1])

        def make(rows: np.ndarray) -> dict[str, Tensor]:
            return {**self._batch(held, rows), "sets": torch.from_numpy(sets[rows])}

        return LazyBatches(plans, make)

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        """Sum the losses of each set, and keep answers and labels."""
        answers, labels, sets = self.answers(model, batch), batch["labels"], batch["sets"]
        losses = self._losses(answers, labels).double()
        sums = {
            name: losses.masked_fill(sets != number, 0).sum()
            for number, name in enumerate(self.texts.validation)
        }
        chosen = answers.squeeze(-1) if self.data_config.number else answers.argmax(-1)
        return Scores(sums, (sets, chosen, labels))

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return "loss" and the scores of `magneto.language.classification_scores`.

        Those of a second validation set end in its name ("accuracy_mismatched"). What an F1 or a
        correlation of 0 means is said.
        """
        metrics = self._metrics(sums, predictions)
        for line in score_remarks(metrics, self.labels):
            self._progress.say(line)
        return metrics

    def _metrics(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        sets, answers, labels = (
            torch.cat(parts).numpy() for parts in zip(*predictions, strict=True)
        )
        metrics: dict[str, float] = {}
        for number, (name, total) in enumerate(sums.items()):
            given, known = answers[sets == number], labels[sets == number]
            found = (
                number_scores(given, known)
                if self.data_config.number
                else class_scores(given, known, len(self.labels))
            )
            found = {"loss": total / len(known), **found}
            metrics |= {f"{key}_{name}" if name else key: v for key, v in found.items()}
        return metrics

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the loss of the classes' frequencies and the scores of the commonest.

        Of numbers: the squared error and the scores of the training texts' mean.
        """
        train, sums, predictions = label_values(self.texts.train, self.labels), {}, []
        asked = islice(self.validation_batches(), limit)
        held = [(batch["sets"], batch["labels"]) for batch in asked]
        sets, labels = (torch.cat(parts).numpy() for parts in zip(*held, strict=True))
        for number, name in enumerate(self.texts.validation):
            known = labels[sets == number]
            answers, sums[name] = constant_answer(train, known, len(self.labels))
            found = (np.full(len(known), number), answers, known)
            predictions.append(tuple(map(torch.from_numpy, found)))
        return self._metrics(sums, predictions)

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Sequence[TextPair]) -> list[TextPrediction]:
        """Return what a model says of texts, or pairs of them; "" of an empty one."""
        asked = [number for number, row in enumerate(inputs) if not is_empty(row)]
        found = [TextPrediction("")] * len(inputs)
        if not asked:
            return found
        rows = [inputs[number] for number in asked]
        tokens, second, cut = assemble_all(rows, self.tokenizer, self.data_config, SILENT)
        device = next(model.parameters()).device
        order = np.argsort([len(each) for each in tokens], kind="stable")
        for some in np.split(order, range(BATCH, len(order), BATCH)):
            batch = padded([tokens[place] for place in some], second[some], self.tokenizer.pad)
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            answers = self.answers(model, batch).cpu()
            said = _numbers(answers) if self.data_config.number else _classes(answers, self.labels)
            for place, prediction in zip(some, said, strict=True):
                found[asked[place]] = replace(prediction, cut=cut[place])
        return found

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write the tokenizer; the classes are told by the texts, and begun weights are its own."""
        (directory / "tokenizer").mkdir()
        self.tokenizer.save(directory / "tokenizer")
        (directory / DIGEST_FILE).write_text(self.texts.train.digest, encoding="utf-8")
        held = " ".join(f"{name}{part.digest}" for name, part in self.texts.validation.items())
        (directory / VALIDATION_DIGEST_FILE).write_text(held, encoding="utf-8")
        return {
            "data.tokenizer": directory / "tokenizer",
            "data.labels": list(self.labels) or None,
            "model.pretrained": None,
        }


# Texts that the model reads at once.
BATCH = 64


@dataclass(frozen=True)
class TextPrediction:
    """What a model says of a text.

    Attributes:
        label: The likeliest class, or a number as text; "" for a text without any visible word.
        probabilities: Of all classes, in their order; empty for numbers.
        cut: Whether the text is longer than what is read of it.
    """

    label: str
    probabilities: Mapping[str, float] = field(default_factory=dict)
    cut: bool = False


def _classes(logits: torch.Tensor, labels: Sequence[str]) -> Iterator[TextPrediction]:
    for shares in logits.softmax(-1).tolist():
        by_name = dict(zip(labels, shares, strict=True))
        yield TextPrediction(max(by_name, key=lambda name: by_name[name]), by_name)


def _numbers(answers: torch.Tensor) -> Iterator[TextPrediction]:
    for number in answers.squeeze(-1).tolist():
        yield TextPrediction(f"{number:.6g}")


PREFIX = "text_encoder."


def check_pretrained(config: Any) -> None:
    """See that a pre-trained run is there and has the encoder that a configuration describes.

    Raises:
        FileNotFoundError: If there is no such run; names the nearest one.
        ValueError: If its encoder has another shape; names the options that give it that shape.
    """
    run = pretrained_run(config)
    names = (field.name for field in fields(TextEncoderConfig))
    check_same_encoder(run, open_run(run).model, config, names)
    find_weights(run)


def pretrained_weights(encoder: TextEncoder, run: Path) -> dict[str, StoredTensor]:
    """Return the encoder's tensors in a run's best, final or last weights, by their names there.

    Args:
        encoder: That shall have them; its shapes are looked at, not its values.
        run: The run's directory.

    Raises:
        FileNotFoundError: If the run has no weights.
        ValueError: If they are damaged, or it has no text encoder, or one of another shape.
    """
    stored = open_tensors(find_weights(run))
    tensors = {name: tensor for name, tensor in stored.items() if name.startswith(PREFIX)}
    if not tensors:
        raise ValueError(f"{run} has no text encoder: give a masked-lm run")
    wanted = {f"{PREFIX}{name}": tensor for name, tensor in encoder.state_dict().items()}
    for name in sorted(wanted.keys() | tensors.keys()):
        there, here = (tuple(t[name].shape) if name in t else "none" for t in (tensors, wanted))
        if there != here:
            name = name.removeprefix(PREFIX)
            raise ValueError(f"{run} has another encoder: {name} is {there}, the model has {here}")
    return tensors
