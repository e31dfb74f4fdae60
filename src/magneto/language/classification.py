"""Text classification and regression of single texts and pairs (paper, section 4.2)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.sources import check_two_sources
from magneto.data.stream import (
    BatchStream,
    LazyBatches,
    by_length,
    evaluation_order,
    example_stream,
    to_device,
)
from magneto.data.table import evenly_spaced
from magneto.data.tokenizer import Tokenizer, check_vocabulary, load_tokenizer
from magneto.files import import_extra
from magneto.functional.cross_entropy import count_numbers, frequency_sums
from magneto.language.config import (
    ClassificationDataConfig,
    TextClassifierConfig,
    TextEncoderConfig,
)
from magneto.language.labelled_texts import (
    ROWS,
    EncodedTexts,
    LabelledTexts,
    TextPair,
    encode,
    is_empty,
    label_values,
    pairs_of,
    read_texts,
)
from magneto.language.models import TextClassifier, TextEncoder
from magneto.language.text import (
    LENGTH_SAMPLE,
    build_tokenizer,
    derive_length,
)
from magneto.progress import SILENT, Progress
from magneto.runs import check_same_encoder, open_run, pretrained_run, run_tokenizer, warn_unlearnt
from magneto.training.task import Loss, Scores, Task, write_assets
from magneto.weights import StoredTensor, find_weights, open_weights

# Texts of each validation set per evaluation batch, and texts per batch of predictions.
EVALUATION_BATCH = 64
VALIDATION_DIGEST_FILE = "data-validation.digest"
# Imbalance is reported if the largest class has this share of the training texts,
LARGEST = 0.8
# or if the smallest class is this many times smaller than an equal share.
SMALLEST = 10


@dataclass(frozen=True)
class TextPrediction:
    """Prediction for a text or a pair of texts.

    `label` is the most probable class, or the predicted number as a string. An empty text has the
    label "". `probabilities` maps classes to probabilities, and is empty for regression.
    """

    label: str
    probabilities: Mapping[str, float] = field(default_factory=dict)
    truncated: bool = False


class TextClassification(Task):
    """Classification or regression by a `TextClassifier`.

    The loss is the cross-entropy in nats per text, or the squared error for regression.
    """

    higher_is_better = True
    unit = "texts"
    model_config: TextClassifierConfig
    data_config: ClassificationDataConfig

    def __init__(
        self, model: TextClassifierConfig, data: ClassificationDataConfig, seed: int
    ) -> None:
        super().__init__(model, data, seed)
        self.primary_metric = data.primary_metric  # type: ignore[misc]
        self._prepared = False

    @cached_property
    def texts(self) -> LabelledTexts:
        return read_texts(self.data_config)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return () if self.data_config.regression else self.data_config.labels or self.texts.labels

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of `data.tokenizer`. A "bpe" tokenizer is trained on the training texts."""
        name = self.data_config.tokenizer
        if name == "auto" and self.model_config.pretrained:
            return load_tokenizer(run_tokenizer(pretrained_run(self.model_config)))
        name = "bpe" if name == "auto" else name
        rows = pairs_of(self.texts.train) if name == "bpe" else ()
        texts = (part for row in rows for part in row if part is not None)
        return build_tokenizer(name, self.data_config.vocab_size, texts, self._progress)

    @cached_property
    def train(self) -> EncodedTexts:
        return self._encode("training", pairs_of(self.texts.train))

    @cached_property
    def validation(self) -> EncodedTexts:
        sets = self.texts.validation.values()
        return self._encode("validation", [row for rows in sets for row in pairs_of(rows)])

    def _encode(self, name: str, rows: Sequence[TextPair]) -> EncodedTexts:
        encoded = encode(rows, self.tokenizer, self.data_config, self._progress)
        if truncated := sum(encoded.truncated):
            most = self.data_config.max_length
            self._progress.say(f"{name}: {truncated} of {len(rows)} inputs are truncated to "
                               f"{most} tokens (data.max_length)")  # fmt: skip
        return encoded

    def prepare(self, progress: Progress = SILENT) -> None:
        """Read the texts.

        If `data.max_length` is null, it is derived from the training texts.

        Raises:
            FileNotFoundError: If the pre-training run does not exist.
            ValueError: If the model does not fit the data or the pre-training run.
            ValueError: If `data.token_dropout` is set, but the tokenizer has no mask token.
        """
        if self._prepared:
            return
        self._prepared, self._progress = True, progress
        if self.model_config.pretrained:
            check_pretrained(self.model_config)
            warn_unlearnt(pretrained_run(self.model_config), progress)
        progress.say(f"{self.data_config.source}: {self.texts.counts.describe(ROWS)}, "
                     f"{len(self.labels) or 'no'} classes")  # fmt: skip
        train, held = self.texts.train, self.texts.validation[""]
        known = self.labels if train is not held else ()  # held: an evaluation on other data
        if known and (warning := imbalance_warning(label_values(train, known), known)):
            progress.say(warning)
        given, most = self.data_config.max_length, self.model_config.max_length
        if given is None:
            self.data_config = replace(self.data_config, max_length=self._derived_length(most))
        elif self.model_config.positions == "learned" and most < given:
            raise ValueError(f"data.max_length ({given}) is above model.max_length ({most}). "
                             "Lower data.max_length.")  # fmt: skip
        self._classes()
        if self.data_config.token_dropout and self.tokenizer.mask is None:
            raise ValueError("data.token_dropout needs a tokenizer with a mask token. Train a "
                             "tokenizer with `magneto tokenizer train`.")  # fmt: skip
        check_vocabulary(self.model_config.vocab_size, self.tokenizer.vocab_size)

    def _derived_length(self, most: int) -> int:
        rows = pairs_of(self.texts.train)
        sample = [rows[number] for number in evenly_spaced(len(rows), LENGTH_SAMPLE)]
        longer = replace(self.data_config, max_length=most + 1)
        lengths = encode(sample, self.tokenizer, longer, self._progress).lengths
        return derive_length(lengths, most, self._progress)

    def _classes(self) -> int:
        classes = 1 if self.data_config.regression else len(self.labels)
        if self.model_config.classes not in (None, classes):
            raise ValueError(
                f"model.classes is {self.model_config.classes}, but {self.data_config.source} "
                f"needs {classes}. Leave model.classes out."
            )
        return classes

    def build_model(self) -> TextClassifier:
        size = self.model_config.vocab_size or self.tokenizer.vocab_size
        return TextClassifier(replace(self.model_config, vocab_size=size, classes=self._classes()))

    def initial_weights(self) -> dict[str, StoredTensor]:
        if not self.model_config.pretrained:
            return {}
        with torch.device("meta"):
            encoder = self.build_model().text_encoder
        return pretrained_weights(encoder, pretrained_run(self.model_config))

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        check_two_sources(self.data_config)
        train, labels = self.train, label_values(self.texts.train, self.labels)
        share, mask = self.data_config.token_dropout, self.tokenizer.mask

        def make(numbers: np.ndarray, draws: np.ndarray) -> dict[str, Tensor]:
            batch = self._batch(train, labels, numbers)
            if share and mask is not None:
                for row, draw, number in zip(batch["tokens"], draws, numbers, strict=True):
                    self._mask(row, mask, share, (seed, int(draw), int(number)))
            return batch

        return example_stream(by_length(train.lengths, batch_size, seed), make)

    def _mask(self, row: Tensor, mask: int, share: float, draw: tuple[int, int, int]) -> None:
        drawn = torch.from_numpy(np.random.default_rng(draw).random(len(row)) < share)
        for kept in (self.tokenizer.begin, self.tokenizer.end, self.tokenizer.pad):
            drawn &= row != kept
        row[drawn] = mask

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        longest, numbers = self.data_config.input_length, np.arange(examples)
        rows = [np.zeros(longest, np.int64)] * examples
        inputs = EncodedTexts(rows, np.full(examples, longest), []).batch(numbers, pad=0)
        kind = torch.float32 if self.data_config.regression else torch.int64
        return inputs | {"labels": torch.zeros(examples, dtype=kind)}

    def _batch(
        self, inputs: EncodedTexts, labels: np.ndarray, numbers: np.ndarray
    ) -> dict[str, Tensor]:
        batch = inputs.batch(numbers, self.tokenizer.pad)
        return batch | {"labels": torch.from_numpy(labels[numbers])}

    def outputs(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Return logits (batch, classes), or numbers (batch, 1) for regression."""
        types = batch["token_types"] if self.model_config.token_types > 1 else None
        return model(batch["tokens"], batch["mask"], types).float()

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self.data_config.regression:
            return (outputs.squeeze(-1) - labels) ** 2
        return F.cross_entropy(outputs, labels, reduction="none")

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        outputs, labels = self.outputs(model, batch), batch["labels"]
        total = self._losses(outputs, labels).sum()
        count = torch.ones_like(labels).sum()
        if self.data_config.regression:
            return Loss(total, count)
        return Loss(total, count, {"accuracy": (outputs.detach().argmax(-1) == labels).sum()})

    def validation_batches(self) -> Sequence[dict[str, Tensor]]:
        plans, sets, labels = self._validation_plans()
        held = self.validation

        def make(rows: np.ndarray) -> dict[str, Tensor]:
            return {**self._batch(held, labels, rows), "sets": torch.from_numpy(sets[rows])}

        return LazyBatches(plans, make)

    def _validation_plans(self) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        """Divide the validation rows into batches.

        Returns:
            The tuple (batches, sets, labels): the row numbers of each batch, the index of each
            row's validation set, and each row's label.
        """
        tables = self.texts.validation.values()
        sizes = [len(table) for table in tables]
        sets = np.repeat(range(len(sizes)), sizes)
        labels = np.concatenate([label_values(table, self.labels) for table in tables])
        turns = np.concatenate([evaluation_order(size) // EVALUATION_BATCH for size in sizes])
        order = np.argsort(turns, kind="stable")
        return np.split(order, np.cumsum(np.bincount(turns))[:-1]), sets, labels

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        outputs, labels, sets = self.outputs(model, batch), batch["labels"], batch["sets"]
        losses = self._losses(outputs, labels).double()
        sums = {
            name: losses.masked_fill(sets != number, 0).sum()
            for number, name in enumerate(self.texts.validation)
        }
        predicted = outputs.squeeze(-1) if self.data_config.regression else outputs.argmax(-1)
        return Scores(sums, (sets, predicted, labels))

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return "loss" and scores.

        Classification has accuracy, F1 and Matthews correlation. Regression has Pearson and
        Spearman correlation.

        Metrics of a second validation set have a suffix ("accuracy_mismatched").
        """
        arrays = (torch.cat(parts).numpy() for parts in zip(*predictions, strict=True))
        metrics = self._metrics(sums, *arrays)
        for line in score_warnings(metrics, self.labels):
            self._progress.say(line)
        return metrics

    def _metrics(
        self, sums: Mapping[str, Any], sets: np.ndarray, predicted: np.ndarray, labels: np.ndarray
    ) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for number, (name, total) in enumerate(sums.items()):
            rows = sets == number
            metrics[f"loss_{name}" if name else "loss"] = total / rows.sum()
            metrics |= suffixed_scores(predicted[rows], labels[rows], len(self.labels), name)
        return metrics

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the metrics of a constant prediction; see `constant_prediction`."""
        train, sums = label_values(self.texts.train, self.labels), {}
        plans, sets, labels = self._validation_plans()
        rows = np.concatenate(plans[:limit])
        sets, labels = sets[rows], labels[rows]
        predicted = np.empty_like(labels)
        for number, name in enumerate(self.texts.validation):
            own = sets == number
            predicted[own], sums[name] = constant_prediction(train, labels[own], len(self.labels))
        return self._metrics(sums, sets, predicted, labels)

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Sequence[TextPair]) -> list[TextPrediction]:
        nonempty = [number for number, row in enumerate(inputs) if not is_empty(row)]
        predictions = [TextPrediction("")] * len(inputs)
        if not nonempty:
            return predictions
        rows = [inputs[number] for number in nonempty]
        encoded = encode(rows, self.tokenizer, self.data_config, SILENT)
        device = next(model.parameters()).device
        order = np.argsort(encoded.lengths, kind="stable")
        for some in np.split(order, range(EVALUATION_BATCH, len(order), EVALUATION_BATCH)):
            batch = to_device(encoded.batch(some, self.tokenizer.pad), device)
            outputs = self.outputs(model, batch).cpu()
            if self.data_config.regression:
                made = [TextPrediction(f"{n:.6g}") for n in outputs.squeeze(-1).tolist()]
            else:
                shares = [dict(zip(self.labels, row, strict=True))
                          for row in outputs.softmax(-1).tolist()]  # fmt: skip
                made = [TextPrediction(max(row, key=row.__getitem__), row) for row in shares]
            for place, prediction in zip(some, made, strict=True):
                truncated = encoded.truncated[place]
                predictions[nonempty[place]] = replace(prediction, truncated=truncated)
        return predictions

    def save_assets(self, directory: Path) -> dict[str, Any]:
        fields = write_assets(directory, self.texts.train.digest, self.tokenizer)
        held = " ".join(f"{name}{part.digest}" for name, part in self.texts.validation.items())
        (directory / VALIDATION_DIGEST_FILE).write_text(held, encoding="utf-8")
        return fields | {
            "data.labels": list(self.labels) or None,
            "data.max_length": self.data_config.max_length,
            "model.pretrained": None,
        }


PREFIX = "text_encoder."


def check_pretrained(config: Any) -> None:
    """Check that a pre-training run exists and has the configured encoder.

    Raises:
        FileNotFoundError: If the run does not exist. The message suggests the nearest name.
        ValueError: If the run's encoder has another shape. The message names the options to change.
    """
    run = pretrained_run(config)
    names = (field.name for field in fields(TextEncoderConfig))
    check_same_encoder(run, open_run(run).model, config, names)
    find_weights(run)


def pretrained_weights(encoder: TextEncoder, run: Path) -> dict[str, StoredTensor]:
    stored = open_weights(find_weights(run))
    if missing := sorted({f"{PREFIX}{name}" for name in encoder.state_dict()} - stored.keys()):
        raise ValueError(f"{run} has no weights {missing[0]}. Give a masked-lm run.")
    return {name: tensor for name, tensor in stored.items() if name.startswith(PREFIX)}


def class_scores(predicted: np.ndarray, labels: np.ndarray, classes: int) -> dict[str, float]:
    """Score predicted classes.

    Returns:
        The scores "accuracy", "f1" and "matthews". With two classes, "f1" is the F1 of class 1, as
        in GLUE. With more classes, "f1" is the mean of the classes' F1. "matthews" is the Matthews
        correlation, or 0 if all predictions are equal.
    """
    metrics = import_extra("sklearn.metrics", "text", "classification metrics need scikit-learn")
    kinds = list(range(classes))
    average = "binary" if classes == 2 else "macro"
    f1 = metrics.f1_score(labels, predicted, labels=kinds, average=average, zero_division=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # for a single class: the result is 0
        matthews = float(metrics.matthews_corrcoef(labels, predicted))
    return {
        "accuracy": float(np.mean(predicted == labels)),
        "f1": float(f1),
        "matthews": matthews,
    }


def number_scores(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return "pearson" and "spearman" correlations.

    The correlations are 0 if all predictions or all labels are equal.
    """
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        results: dict[str, Any] = {
            "pearson": stats.pearsonr(predicted, labels),
            "spearman": stats.spearmanr(predicted, labels),
        }
    constant = np.ptp(predicted) == 0 or np.ptp(labels) == 0
    return {name: 0.0 if constant else float(each.statistic) for name, each in results.items()}


def imbalance_warning(values: np.ndarray, labels: Sequence[str]) -> str:
    shares = np.bincount(values, minlength=len(labels)) / max(len(values), 1)
    large, small = int(shares.argmax()), int(shares.argmin())
    if shares[large] < LARGEST and shares[small] * len(labels) * SMALLEST >= 1:
        return ""
    return (
        f"Imbalanced classes: {labels[large]!r} has {shares[large]:.1%} of the training texts, "
        f"{labels[small]!r} has {shares[small]:.1%}. Always predicting {labels[large]!r} gives "
        f"{shares[large]:.1%} accuracy. Consider f1 or matthews (--data.metric f1)."
    )


def score_warnings(metrics: Mapping[str, float], labels: Sequence[str]) -> list[str]:
    if metrics.get("f1") == 0 and len(labels) == 2:
        return [f"f1 is 0: the positive class {labels[1]!r} was never predicted correctly. The "
                f"second of data.labels ({', '.join(labels)}) is the positive class."]  # fmt: skip
    if metrics.get("matthews") == 0:
        return ["matthews is 0: predictions do not correlate with the labels, or are all the same "
                "class."]  # fmt: skip
    return []


def constant_prediction(
    train: np.ndarray, held: np.ndarray, classes: int
) -> tuple[np.ndarray, float]:
    """Predict the most frequent training label, or for regression the mean of the labels.

    Returns:
        The predictions (len(held),) and the summed loss. For classes, the loss is the cross-entropy
        in nats, with the class frequencies as predicted probabilities. For regression, the loss is
        the squared error.
    """
    if not classes:
        mean = train.mean(dtype=np.float64)
        return np.full(len(held), mean), float(((held - mean) ** 2).sum())
    counts = count_numbers(train, classes)
    sums = frequency_sums(counts, count_numbers(held, classes))
    return np.full(len(held), counts.argmax()), sums["loss"]


def suffixed_scores(
    predicted: np.ndarray, labels: np.ndarray, classes: int, name: str
) -> dict[str, float]:
    score = (
        class_scores(predicted, labels, classes) if classes else number_scores(predicted, labels)
    )
    return {f"{key}_{name}" if name else key: value for key, value in score.items()}


def word_baseline(texts: LabelledTexts) -> dict[str, float]:
    """Return the validation metrics of a bag of words.

    The features are tf-idf of words. The classifier is logistic regression; ridge regression
    predicts numbers. The features of a pair are the product, the absolute difference and the cosine
    of the two tf-idf vectors.
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
    metrics: dict[str, float] = {}
    for name, held in texts.validation.items():
        predicted, labels = learner.predict(features(pairs_of(held))), texts.labels
        metrics |= suffixed_scores(predicted, label_values(held, labels), len(labels), name)
    return metrics
