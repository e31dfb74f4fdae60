"""Models that anybody would try first, on the same held-out examples: of scikit-learn, and counts.

A recipe that does not beat these is not worth its minutes. Each function takes a prepared task and
returns what the model is, and its score by the task's own metric.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from magneto.data.stream import LazyBatches
from magneto.files import import_extra

# Examples that a simple model learns from, and pixels or places of them: seconds of one core.
MOST_EXAMPLES, MOST_PIXELS = 10_000, 200_000
MOST_ITERATIONS = 300

LIBRARY = "`magneto start` needs scikit-learn"

Scored = tuple[str, dict[str, float]]
Obvious = Callable[[Any], Sequence[Scored]]


def nothing(task: Any) -> Sequence[Scored]:
    """Return no simple model: the trivial answer is all there is to beat."""
    return ()


def pixels(task: Any) -> Sequence[Scored]:
    """Return a logistic regression on the pixels that the model will see."""
    linear = import_extra("sklearn.linear_model", "vision", LIBRARY)
    splits = task.splits
    train, labels = _images(task.fixed_batches(splits.train))
    if len(np.unique(labels)) < 2:
        return nothing(task)
    asked, right = _images(task.fixed_batches(splits.validation))
    model = linear.LogisticRegression(C=0.1, max_iter=MOST_ITERATIONS)
    answers = fitted(model, train[:MOST_EXAMPLES], labels[:MOST_EXAMPLES]).predict(asked)
    return [("logistic regression on pixels", {"accuracy": float((answers == right).mean())})]


def fitted(model: Any, examples: Any, answers: Any) -> Any:
    """Return a model of scikit-learn that has learnt; that it could go on is not said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(examples, answers)


def _images(batches: LazyBatches) -> tuple[np.ndarray, np.ndarray]:
    images, labels, seen = [], [], 0
    for batch in batches:
        readable = ~batch["broken"]
        images.append(batch["images"][readable].flatten(1).numpy())
        labels.append(batch["labels"][readable].numpy())
        seen += len(labels[-1])
        if seen >= MOST_EXAMPLES:
            break
    return np.concatenate(images), np.concatenate(labels)


def bag_of_words(task: Any) -> Sequence[Scored]:
    """Return a linear model of single words and pairs of them, weighed by rarity."""
    from magneto.language.classification import number_scores

    text = import_extra("sklearn.feature_extraction.text", "text", LIBRARY)
    linear = import_extra("sklearn.linear_model", "text", LIBRARY)
    words = text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    train, held = task.texts.train, next(iter(task.texts.validation.values()))
    try:
        seen, asked = words.fit_transform(_joined(train)), words.transform(_joined(held))
    except ValueError:  # no word comes twice
        return nothing(task)
    right = list(held.values("label"))
    if task.data_config.number:
        known, wanted = (np.array(part, float) for part in (train.values("label"), right))
        if len(wanted) < 2:
            return nothing(task)
        answers = linear.Ridge().fit(seen, known).predict(asked)
        return [("ridge regression on words", number_scores(answers, wanted))]
    if len({*train.values("label")}) < 2:
        return nothing(task)
    model = linear.LogisticRegression(C=10, max_iter=MOST_ITERATIONS)
    answers = fitted(model, seen, list(train.values("label"))).predict(asked)
    found = {"accuracy": float(np.mean([a == b for a, b in zip(answers, right, strict=True)]))}
    return [("logistic regression on words", found)]


def _joined(table: Any) -> list[str]:
    if "pair" not in table.columns:
        return list(table.values("text"))
    return [f"{a} {b}" for a, b in zip(table.values("text"), table.values("pair"), strict=True)]


def n_grams(task: Any) -> Sequence[Scored]:
    """Return trigrams of the same word pieces, interpolated with bigrams and single ones."""
    train = np.asarray(task.text.train.tokens, np.int64)
    asked = np.asarray(task.text.validation.tokens, np.int64)
    nats = interpolated_nats(train, asked, task.vocabulary())
    return [("trigrams of word pieces", task.summarise({"loss": nats, "count": 1.0}, ()))]


def interpolated_nats(train: np.ndarray, asked: np.ndarray, size: int, most: int = 3) -> float:
    """Return the nats per token of n-grams, discounted by Witten and Bell.

    p(w | h) = (c(h w) + d(h) p(w | shorter h)) / (c(h) + d(h)), d(h) the different words after h.

    Args:
        train: Tokens to count.
        asked: Tokens to predict, each from those before it.
        size: Of the vocabulary.
        most: Tokens of the longest n-gram.
    """
    single = np.bincount(train, minlength=size) + 1.0
    chance = (single / single.sum())[asked]
    for order in range(2, most + 1):
        grams, history = _codes(train, order, size), _codes(train, order - 1, size)[:-1]
        wanted, before = _codes(asked, order, size), _codes(asked, order - 1, size)[:-1]
        known, counts = np.unique(grams, return_counts=True)
        seen, totals = np.unique(history, return_counts=True)
        different = np.bincount(np.searchsorted(seen, known // size), minlength=len(seen))
        c_gram = _looked_up(known, counts, wanted)
        c_history, d_history = (_looked_up(seen, n, before) for n in (totals, different))
        shorter = chance[order - 1 :]
        new = (c_gram + d_history * shorter) / np.maximum(c_history + d_history, 1)
        chance = np.concatenate([chance[: order - 1], np.where(c_history > 0, new, shorter)])
    return float(-np.log(chance).mean())


def _codes(tokens: np.ndarray, order: int, size: int) -> np.ndarray:
    """Return a number for each run of `order` tokens."""
    codes = np.zeros(max(len(tokens) - order + 1, 0), np.int64)
    for place in range(order):
        codes = codes * size + tokens[place : place + len(codes)]
    return codes


def _looked_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the values of wanted keys; 0 where a key is not there."""
    places = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)


def statement_alone(task: Any) -> Sequence[Scored]:
    """Return a linear model of the statement's words, which sees no image."""
    text = import_extra("sklearn.feature_extraction.text", "text", LIBRARY)
    linear = import_extra("sklearn.linear_model", "text", LIBRARY)
    train, held = task.splits.train, task.splits.validation
    words = text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    if len({*train.values("truth")}) < 2:
        return nothing(task)
    seen = words.fit_transform(list(train.values("statement")))
    model = linear.LogisticRegression(C=10, max_iter=MOST_ITERATIONS)
    fitted(model, seen, list(train.values("truth")))
    answers = model.predict(words.transform(list(held.values("statement"))))
    right = np.array(list(held.values("truth")))
    return [("the statement's words alone", {"accuracy": float((answers == right).mean())})]


def colour_and_place(task: Any) -> Sequence[Scored]:
    """Return a logistic regression of single pixels: their colour and where they are."""
    linear = import_extra("sklearn.linear_model", "vision", LIBRARY)
    from magneto.vision.segmentation import read_pair, segmentation_scores

    def pixels_of(split: Any, images: int) -> tuple[np.ndarray, np.ndarray]:
        values, classes = [], []
        some = np.unique(np.linspace(0, len(split) - 1, images).astype(int))
        for index in some.tolist():
            image, mask = read_pair(split, index, task.masks)
            y, x = np.indices(mask.shape) / np.array(mask.shape).reshape(2, 1, 1)
            parts = (image / 127.5 - 1, np.stack((y, x, y * y, x * x, x * y), -1))
            values.append(np.concatenate(parts, -1).reshape(mask.size, -1))
            classes.append(mask.reshape(-1))
        return np.concatenate(values), np.concatenate(classes)

    train, known = pixels_of(task.splits.train, 100)
    asked, right = pixels_of(task.splits.validation, len(task.splits.validation))
    draws = np.random.default_rng(0)
    counted = np.flatnonzero(known < task.model_config.classes)
    some = draws.choice(counted, min(len(counted), MOST_PIXELS), replace=False)
    if len(np.unique(known[some])) < 2:
        return nothing(task)
    model = fitted(linear.LogisticRegression(max_iter=100), train[some], known[some])
    answers, size = model.predict(asked), task.model_config.classes
    there = right < size
    pairs = right[there].astype(np.int64) * size + answers[there]
    matrix = np.bincount(pairs, minlength=size * size).reshape(size, size)
    return [("colour and place of a pixel", segmentation_scores(matrix.tolist(), task.names))]
