"""Simple baselines, scored on a task's validation examples: scikit-learn models and n-grams.

A trained recipe should beat the simple baselines. A `Baseline` is a function that takes a prepared
task, and returns names of baselines with their scores.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from magneto.data.stream import LazyBatches
from magneto.data.table import evenly_spaced
from magneto.files import import_extra

# Maximum training examples and pixels of a baseline, so that it takes seconds on one core.
MAX_EXAMPLES, MAX_PIXELS = 10_000, 200_000
MAX_PIXELS_PER_IMAGE = 50_000
MAX_ITERATIONS = 300

LIBRARY = "`magneto start` needs scikit-learn"

Scored = tuple[str, dict[str, float]]
Baseline = Callable[[Any], Sequence[Scored]]


def pixel_regression(task: Any) -> Sequence[Scored]:
    linear = import_extra("sklearn.linear_model", "vision", LIBRARY)
    train, labels = _images(task.fixed_batches(task.splits.train))
    asked, right = _images(task.fixed_batches(task.splits.validation))
    model = linear.LogisticRegression(C=0.1, max_iter=MAX_ITERATIONS)
    answers = predict(model, train[:MAX_EXAMPLES], labels[:MAX_EXAMPLES], asked)
    return accuracy("logistic regression on pixels", answers, right)


def predict(model: Any, examples: Any, labels: np.ndarray, asked: Any) -> np.ndarray | None:
    if len(np.unique(labels)) < 2:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of incomplete convergence
        return model.fit(examples, labels).predict(asked)


def accuracy(name: str, answers: np.ndarray | None, right: np.ndarray) -> Sequence[Scored]:
    return () if answers is None else [(name, {"accuracy": float((answers == right).mean())})]


def _images(batches: LazyBatches) -> tuple[np.ndarray, np.ndarray]:
    images, labels, seen = [], [], 0
    for batch in batches:
        readable = ~batch["broken"]
        images.append(batch["images"][readable].flatten(1).numpy())
        labels.append(batch["labels"][readable].numpy())
        seen += len(labels[-1])
        if seen >= MAX_EXAMPLES:
            break
    return np.concatenate(images), np.concatenate(labels)


def bag_of_words(task: Any) -> Sequence[Scored]:
    from magneto.language.classification import number_scores, word_baseline

    number = task.data_config.regression
    name = "ridge regression on words" if number else "logistic regression on words"
    train, held = task.texts.train, next(iter(task.texts.validation.values()))
    if number and len(held) < 2:
        return ()
    if "pair" in train.columns:
        try:
            return [(f"{name} of both texts", word_baseline(task.texts))]
        except ValueError:  # the texts have no words
            return ()
    right = _labels(task, held)
    answers = predict_by_words(
        train.values("text"), _labels(task, train), held.values("text"), least=2, number=number
    )
    if number and answers is not None:
        return [(name, number_scores(answers, right))]
    return accuracy(name, answers, right)


def statement_alone(task: Any) -> Sequence[Scored]:
    train, held = task.splits.train, task.splits.validation
    known, right = (np.array(list(part.values("truth"))) for part in (train, held))
    answers = predict_by_words(train.values("statement"), known, held.values("statement"))
    return accuracy("the statement's words alone", answers, right)


def predict_by_words(
    train: Sequence[str],
    known: np.ndarray,
    asked: Sequence[str],
    least: int = 1,
    number: bool = False,
) -> np.ndarray | None:
    text = import_extra("sklearn.feature_extraction.text", "text", LIBRARY)
    linear = import_extra("sklearn.linear_model", "text", LIBRARY)
    words = text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=least)
    try:
        seen = words.fit_transform(train)
    except ValueError:  # no word occurs in enough texts
        return None
    model = linear.Ridge() if number else linear.LogisticRegression(C=10, max_iter=MAX_ITERATIONS)
    return predict(model, seen, known, words.transform(asked))


def _labels(task: Any, table: Any) -> np.ndarray:
    return np.array(list(table.values("label")), float if task.data_config.regression else str)


def n_grams(task: Any) -> Sequence[Scored]:
    train = np.asarray(task.text.train, np.int64)
    asked = np.asarray(task.text.validation, np.int64)
    nats = interpolated_nats(train, asked, task.vocabulary())
    return [("token trigrams", task.summarise({"loss": nats, "count": 1.0}, ()))]


def interpolated_nats(train: np.ndarray, asked: np.ndarray, size: int, most: int = 3) -> float:
    """Return the nats per token of n-grams with Witten-Bell smoothing.

    p(w | h) = (c(h w) + d(h) p(w | shorter h)) / (c(h) + d(h)) for the token w after the context h.
    In `train`, c counts occurrences, and d(h) is the number of distinct tokens after h.
    """
    single = np.bincount(train, minlength=size) + 1.0
    chance = (single / single.sum())[asked]
    for order in range(2, most + 1):
        grams, history = _codes(train, order, size), _codes(train, order - 1, size)[:-1]
        wanted, before = _codes(asked, order, size), _codes(asked, order - 1, size)[:-1]
        known, counts = np.unique(grams, return_counts=True)
        seen, totals = np.unique(history, return_counts=True)
        different = np.bincount(np.searchsorted(seen, known // size), minlength=len(seen))
        c_gram = _look_up(known, counts, wanted)
        c_history, d_history = (_look_up(seen, n, before) for n in (totals, different))
        shorter = chance[order - 1 :]
        new = (c_gram + d_history * shorter) / np.maximum(c_history + d_history, 1)
        chance = np.concatenate([chance[: order - 1], np.where(c_history > 0, new, shorter)])
    return float(-np.log(chance).mean())


def _codes(tokens: np.ndarray, order: int, size: int) -> np.ndarray:
    codes = np.zeros(max(len(tokens) - order + 1, 0), np.int64)
    for place in range(order):
        codes = codes * size + tokens[place : place + len(codes)]
    return codes


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    places = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)


def colour_and_place(task: Any) -> Sequence[Scored]:
    linear = import_extra("sklearn.linear_model", "vision", LIBRARY)
    from magneto.vision.decoding import BrokenImage
    from magneto.vision.segmentation import confusion, read_pair, segmentation_scores

    def pixels_of(split: Any, images: int) -> tuple[np.ndarray, np.ndarray]:
        values, classes = [], []
        for index in evenly_spaced(len(split), images).tolist():
            try:
                image, mask = read_pair(split, index, task.masks)
            except BrokenImage:
                continue
            some = evenly_spaced(mask.size, MAX_PIXELS_PER_IMAGE)
            y, x = (place / size for place, size in zip(np.divmod(some, mask.shape[1]), mask.shape,
                                                        strict=True))  # fmt: skip
            colours = image.reshape(mask.size, -1)[some] / 127.5 - 1
            values.append(np.column_stack((colours, y, x, y * y, x * x, x * y)))
            classes.append(mask.reshape(-1)[some])
        return np.concatenate(values), np.concatenate(classes)

    train, known = pixels_of(task.splits.train, 100)
    asked, right = pixels_of(task.splits.validation, 200)
    draws = np.random.default_rng(0)
    counted = np.flatnonzero(known < task.classes)
    some = draws.choice(counted, min(len(counted), MAX_PIXELS), replace=False)
    answers = predict(linear.LogisticRegression(max_iter=100), train[some], known[some], asked)
    if answers is None:
        return ()
    guesses = torch.from_numpy(answers.astype(np.int64))
    matrix = confusion(torch.from_numpy(right), guesses, task.classes)
    return [("colour and position of a pixel", segmentation_scores(matrix.tolist(), task.names))]
