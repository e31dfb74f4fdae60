"""Models that anybody would try first, on the same held-out examples: of scikit-learn, and counts.

A recipe that does not beat these is not worth its minutes. Each function takes a prepared task and
returns what the model is, and its score by the task's own metric.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from magneto.data.stream import LazyBatches
from magneto.data.table import spread
from magneto.files import import_extra

# Examples that a simple model learns from, and pixels or places of them: seconds of one core.
MOST_EXAMPLES, MOST_PIXELS = 10_000, 200_000
MOST_OF_AN_IMAGE = 50_000
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
    """Return a linear model of the words of texts; of a pair, of those that both have."""
    from magneto.language.classification import baseline_metrics, number_scores

    number = task.data_config.regression
    name = "ridge regression on words" if number else "logistic regression on words"
    train, held = task.texts.train, next(iter(task.texts.validation.values()))
    if number and len(held) < 2:
        return nothing(task)
    if "pair" in train.columns:
        try:
            return [(f"{name} of both", baseline_metrics(task.texts)["bag of words"])]
        except ValueError:  # no text has a word
            return nothing(task)
    right = _labels(task, held)
    answers = answers_by_words(
        train.values("text"), _labels(task, train), held.values("text"), least=2, number=number
    )
    if answers is None:
        return nothing(task)
    scores = number_scores(answers, right) if number else {
        "accuracy": float((answers == right).mean())
    }  # fmt: skip
    return [(name, scores)]


def statement_alone(task: Any) -> Sequence[Scored]:
    """Return a linear model of the statement's words, which sees no image."""
    train, held = task.splits.train, task.splits.validation
    known, right = (np.array(list(part.values("truth"))) for part in (train, held))
    texts = (list(part.values("statement")) for part in (train, held))
    answers = answers_by_words(next(texts), known, next(texts))
    if answers is None:
        return nothing(task)
    return [("the statement's words alone", {"accuracy": float((answers == right).mean())})]


def answers_by_words(
    train: Sequence[str],
    known: np.ndarray,
    asked: Sequence[str],
    least: int = 1,
    number: bool = False,
) -> np.ndarray | None:
    """Return what a linear model of single words and pairs of them, weighed by rarity, answers.

    Args:
        train: Texts to learn from.
        known: Their labels.
        asked: Texts to answer.
        least: Texts that a word must be in to count.
        number: Whether labels are numbers, not classes.

    Returns:
        A label for each text; None where there is one class, or no word, to learn.
    """
    text = import_extra("sklearn.feature_extraction.text", "text", LIBRARY)
    linear = import_extra("sklearn.linear_model", "text", LIBRARY)
    words = text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=least)
    try:
        seen = words.fit_transform(train)
    except ValueError:  # no word is in as many
        return None
    if not number and len(np.unique(known)) < 2:
        return None
    model = linear.Ridge() if number else linear.LogisticRegression(C=10, max_iter=MOST_ITERATIONS)
    return fitted(model, seen, known).predict(words.transform(asked))


def _labels(task: Any, table: Any) -> np.ndarray:
    return np.array(list(table.values("label")), float if task.data_config.regression else str)


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


def colour_and_place(task: Any) -> Sequence[Scored]:
    """Return a logistic regression of single pixels: their colour and where they are."""
    linear = import_extra("sklearn.linear_model", "vision", LIBRARY)
    from magneto.vision.decoding import BrokenImage
    from magneto.vision.segmentation import confusion, read_pair, segmentation_scores

    def pixels_of(split: Any, images: int) -> tuple[np.ndarray, np.ndarray]:
        values, classes = [], []
        for index in spread(len(split), images).tolist():
            try:
                image, mask = read_pair(split, index, task.masks)
            except BrokenImage:
                continue
            some = spread(mask.size, MOST_OF_AN_IMAGE)
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
    some = draws.choice(counted, min(len(counted), MOST_PIXELS), replace=False)
    if len(np.unique(known[some])) < 2:
        return nothing(task)
    model = fitted(linear.LogisticRegression(max_iter=100), train[some], known[some])
    answers = torch.from_numpy(model.predict(asked).astype(np.int64))
    matrix = confusion(torch.from_numpy(right), answers, task.classes)
    return [("colour and place of a pixel", segmentation_scores(matrix.tolist(), task.names))]
