"""Text classification and regression: one label per text or pair (paper, section 4.2)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.stream import (
    BatchStream,
    LazyBatches,
    by_length,
    example_stream,
    mixed_order,
    to_device,
)
from magneto.data.tokenizer import Tokenizer, load_tokenizer, vocabulary_size
from magneto.files import import_extra
from magneto.functional.cross_entropy import count_numbers, frequency_nats
from magneto.language.config import (
    ClassificationDataConfig,
    TextClassifierConfig,
    TextEncoderConfig,
)
from magneto.language.labelled_texts import (
    ROWS,
    Inputs,
    TextPair,
    Texts,
    encode,
    is_empty,
    label_values,
    pairs_of,
    read_texts,
)
from magneto.language.models import TextClassifier, TextEncoder
from magneto.language.text import text_tokenizer
from magneto.progress import SILENT, Progress
from magneto.runs import check_same_encoder, open_run, pretrained_run, run_tokenizer, warn_unlearnt
from magneto.training.task import DIGEST_FILE, Loss, Scores, Task
from magneto.weights import StoredTensor, find_weights, open_tensors

# Texts of each validation set in an evaluation batch; and texts that are answered at once.
EVALUATION_BATCH = 64
VALIDATION_DIGEST_FILE = "data-validation.digest"
# The largest class is remarked on from this share on, where there are two or more.
LARGEST = 0.8
# And the smallest, if it is so many times smaller than an equal share.
SMALLEST = 10


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
        name = self.data_config.tokenizer
        if name == "auto" and self.model_config.pretrained:
            return load_tokenizer(run_tokenizer(pretrained_run(self.model_config)))
        name = "bpe" if name == "auto" else name
        rows = pairs_of(self.texts.train) if name == "bpe" else ()
        texts = (part for row in rows for part in row if part is not None)
        return text_tokenizer(name, self.data_config.vocab_size, texts, self._progress)

    @cached_property
    def train(self) -> Inputs:
        """The training texts, tokenised."""
        return self._encode("training", pairs_of(self.texts.train))

    @cached_property
    def validation(self) -> Inputs:
        """The texts of all validation sets, one set after the other, tokenised."""
        sets = self.texts.validation.values()
        return self._encode("validation", [row for rows in sets for row in pairs_of(rows)])

    def _encode(self, name: str, rows: Sequence[TextPair]) -> Inputs:
        made = encode(rows, self.tokenizer, self.data_config, self._progress)
        if cut := sum(made.cut):
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
        if self.data_config.token_dropout and self.tokenizer.mask is None:
            raise ValueError("data.token_dropout: the tokenizer has no mask token")
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
        train, labels = self.train, label_values(self.texts.train, self.labels)
        share, mask = self.data_config.token_dropout, self.tokenizer.mask

        def make(numbers: np.ndarray, draws: np.ndarray) -> dict[str, Tensor]:
            batch = self._batch(train, labels, numbers)
            if share and mask is not None:
                for row, draw, number in zip(batch["tokens"], draws, numbers, strict=True):
                    self._hide(row, mask, share, (seed, int(draw), int(number)))
            return batch

        return example_stream(by_length(train.lengths, batch_size, seed), make)

    def _hide(self, row: Tensor, mask: int, share: float, draw: tuple[int, int, int]) -> None:
        """Put the mask in the place of some tokens of a text, in place; what frames it stays."""
        drawn = torch.from_numpy(np.random.default_rng(draw).random(len(row)) < share)
        for kept in (self.tokenizer.begin, self.tokenizer.end, self.tokenizer.pad):
            drawn &= row != kept
        row[drawn] = mask

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        """Return the longest inputs that fit."""
        longest, numbers = self.data_config.max_length, np.arange(examples)
        rows = [np.zeros(longest, np.int64)] * examples
        made = Inputs(rows, np.full(examples, longest), []).batch(numbers, pad=0)
        kind = torch.float32 if self.data_config.number else torch.int64
        return made | {"labels": torch.zeros(examples, dtype=kind)}

    def _batch(self, inputs: Inputs, labels: np.ndarray, numbers: np.ndarray) -> dict[str, Tensor]:
        """Pad numbered inputs: tokens, mask, token_types (all (batch, length)), labels (batch)."""
        made = inputs.batch(numbers, self.tokenizer.pad)
        return made | {"labels": torch.from_numpy(labels[numbers])}

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
        tables = self.texts.validation.values()
        sizes = [len(table) for table in tables]
        held, sets = self.validation, np.repeat(range(len(sizes)), sizes)
        labels = np.concatenate([label_values(table, self.labels) for table in tables])
        turns = np.concatenate([mixed_order(size) // EVALUATION_BATCH for size in sizes])
        order = np.argsort(turns, kind="stable")
        plans = np.split(order, np.cumsum(np.bincount(turns))[:-1])

        def make(rows: np.ndarray) -> dict[str, Tensor]:
            return {**self._batch(held, labels, rows), "sets": torch.from_numpy(sets[rows])}

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
        """Return "loss", and accuracy, F1 and Matthews correlation, or correlations of numbers.

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
            metrics[f"loss_{name}" if name else "loss"] = total / len(known)
            metrics |= named_scores(given, known, len(self.labels), name)
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
        made = encode(rows, self.tokenizer, self.data_config, SILENT)
        device = next(model.parameters()).device
        order = np.argsort(made.lengths, kind="stable")
        for some in np.split(order, range(EVALUATION_BATCH, len(order), EVALUATION_BATCH)):
            batch = to_device(made.batch(some, self.tokenizer.pad), device)
            answers = self.answers(model, batch).cpu()
            if self.data_config.number:
                said = [TextPrediction(f"{n:.6g}") for n in answers.squeeze(-1).tolist()]
            else:
                shares = [dict(zip(self.labels, row, strict=True))
                          for row in answers.softmax(-1).tolist()]  # fmt: skip
                said = [TextPrediction(max(row, key=row.__getitem__), row) for row in shares]
            for place, prediction in zip(some, said, strict=True):
                found[asked[place]] = replace(prediction, cut=made.cut[place])
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


def class_scores(answers: np.ndarray, labels: np.ndarray, classes: int) -> dict[str, float]:
    """Score chosen classes.

    Args:
        answers: Class numbers, (count).
        labels: The right ones.
        classes: How many classes there are.

    Returns:
        "accuracy"; "f1": of class 1 for two classes (as GLUE has it), the mean over classes for
        more; "matthews": the Matthews correlation, 0 where all answers are the same.
    """
    metrics = import_extra("sklearn.metrics", "text", "scores of classifiers need scikit-learn")
    kinds = list(range(classes))
    average = "binary" if classes == 2 else "macro"
    f1 = metrics.f1_score(labels, answers, labels=kinds, average=average, zero_division=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of one class alone: 0
        matthews = float(metrics.matthews_corrcoef(labels, answers))
    return {
        "accuracy": float(np.mean(answers == labels)),
        "f1": float(f1),
        "matthews": matthews,
    }


def number_scores(answers: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Score numbers: "pearson" and "spearman" correlation; 0 where all answers are the same.

    Raises:
        ValueError: If there are fewer than two.
    """
    if len(labels) < 2:
        raise ValueError(f"a correlation is of two answers or more, not {len(labels)}")
    stats = import_extra("scipy.stats", "text", "correlations need scipy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        found: dict[str, Any] = {
            "pearson": stats.pearsonr(answers, labels),
            "spearman": stats.spearmanr(answers, labels),
        }
    values = {name: float(result.statistic) for name, result in found.items()}
    constant = np.ptp(answers) == 0 or np.ptp(labels) == 0
    return {name: 0.0 if constant else value for name, value in values.items()}


def imbalance(values: np.ndarray, labels: Sequence[str]) -> str:
    """Say that classes are of unequal size, or "" if they are not.

    Args:
        values: Class numbers of the training texts.
        labels: Names of the classes.
    """
    shares = np.bincount(values, minlength=len(labels)) / max(len(values), 1)
    large, small = int(shares.argmax()), int(shares.argmin())
    if shares[large] < LARGEST and shares[small] * len(labels) * SMALLEST >= 1:
        return ""
    return (
        f"classes of unequal size: {labels[large]!r} is {shares[large]:.1%} of the training texts, "
        f"{labels[small]!r} {shares[small]:.1%}; who always answers {labels[large]!r} has that "
        "accuracy: look at f1 and matthews, and choose checkpoints by one (--data.metric f1)"
    )


def score_remarks(metrics: Mapping[str, float], labels: Sequence[str]) -> list[str]:
    """Say what scores of 0 mean.

    Args:
        metrics: Of the task.
        labels: Names of the classes.
    """
    lines = []
    if metrics.get("f1") == 0 and len(labels) == 2:
        lines.append(f"f1 is 0: {labels[1]!r}, of which it is, was never answered rightly; the "
                     f"order of classes is data.labels ({', '.join(labels)})")  # fmt: skip
    elif metrics.get("matthews") == 0:
        lines.append("matthews is 0: the answers tell nothing of the labels, as where all are one "
                     "class")  # fmt: skip
    return lines


def constant_answer(train: np.ndarray, held: np.ndarray, classes: int) -> tuple[np.ndarray, float]:
    """Answer without a look at the texts.

    Args:
        train: Labels of the training texts as `label_values` gives them.
        held: Those of the texts to answer.
        classes: How many there are; 0 for numbers.

    Returns:
        The commonest class, or the mean, for each text, (len(held),); and the summed loss: nats of
        the classes' frequencies, or squared error.
    """
    if not classes:
        mean = train.mean(dtype=np.float64)
        return np.full(len(held), mean), float(((held - mean) ** 2).sum())
    counts = count_numbers(train, classes)
    nats = frequency_nats(counts, count_numbers(held, classes))
    return np.full(len(held), counts.argmax()), nats


def named_scores(
    answers: np.ndarray, labels: np.ndarray, classes: int, name: str
) -> dict[str, float]:
    """Return the scores of a validation set; those of a second one end in its name.

    Args:
        answers: Class numbers, or numbers, (count).
        labels: The right ones.
        classes: How many there are; 0 for numbers.
        name: Of the set, as "mismatched"; "" of the first.
    """
    found = class_scores(answers, labels, classes) if classes else number_scores(answers, labels)
    return {f"{key}_{name}" if name else key: value for key, value in found.items()}


def baseline_metrics(texts: Texts) -> dict[str, dict[str, float]]:
    """Return the metrics that two baselines reach on validation data, by the baseline's name.

    "majority class" (the mean, of numbers) does not look at the text. "bag of words" is a logistic
    regression (ridge, for numbers) with scikit-learn's own strengths on tf-idf of words; a pair's
    features are the words' product and absolute difference, and the cosine of the two texts.
    """
    names = ("sklearn.linear_model", "sklearn.feature_extraction.text", "scipy.sparse")
    linear, text, sparse = (import_extra(n, "text", "baselines need scikit-learn") for n in names)
    words = text.TfidfVectorizer(token_pattern=r"(?u)\b\w+\b")
    rows, known = pairs_of(texts.train), label_values(texts.train, texts.labels)
    words.fit([part for row in rows for part in row if part is not None])
    learner = linear.LogisticRegression(max_iter=2000) if texts.labels else linear.Ridge()

    def features(rows: Sequence[TextPair]) -> Any:
        first = words.transform([row.text for row in rows])
        if rows[0].pair is None:
            return first
        second = words.transform([row.pair for row in rows])
        product = first.multiply(second).tocsr()
        return sparse.hstack([product, abs(first - second), sparse.csr_matrix(product.sum(axis=1))])

    learner.fit(features(rows), known)
    common = np.bincount(known).argmax() if texts.labels else known.mean()
    found: dict[str, dict[str, float]] = {"majority class": {}, "bag of words": {}}
    for name, held in texts.validation.items():
        labels, rows = label_values(held, texts.labels), pairs_of(held)
        for baseline, answers in zip(
            found, (np.full(len(held), common), learner.predict(features(rows))), strict=True
        ):
            found[baseline] |= named_scores(answers, labels, len(texts.labels), name)
    return found
