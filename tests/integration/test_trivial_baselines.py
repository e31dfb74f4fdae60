"""What a task's trivial baseline reaches on its validation data, against numbers made by hand."""

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magneto.data.stream import evaluation_order
from magneto.data.table import table_of_columns
from magneto.functional import cross_entropy
from magneto.language.causal_lm import CausalLanguageModeling
from magneto.language.classification import TextClassification
from magneto.language.config import (
    ClassificationDataConfig,
    LanguageModelConfig,
    MaskedLanguageModelConfig,
    MaskedTextDataConfig,
    TextClassifierConfig,
    TextDataConfig,
)
from magneto.language.masked_lm import MaskedLanguageModeling
from magneto.translation import prepare as prepare_module
from magneto.translation.config import ParallelDataConfig, TranslationConfig
from magneto.translation.task import Translation
from magneto.vision.classification import ImageClassification
from magneto.vision.config import ImageClassificationDataConfig, ImageClassifierConfig
from magneto.vision.decoding import Pixels
from magneto.vision.images import ImageSplit, ImageSplits

SIZES = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 16}


def texts(folder: Path, train: str, validation: str) -> dict[str, str]:
    for name, text in (("train", train), ("validation", validation)):
        (folder / f"{name}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    found = {"source": "train", "validation_source": "validation"}
    return {key: str(folder / f"{name}.jsonl") for key, name in found.items()}


def test_language_modelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 260 tokens a, a, b and the end are trained on; one window asks for b and the end."""
    monkeypatch.setattr(cross_entropy, "PIECE", 2)
    data = TextDataConfig(tokenizer="bytes", max_length=2, **texts(tmp_path, "aab", "ab"))
    found = CausalLanguageModeling(LanguageModelConfig(**SIZES), data, 1).baseline()
    loss = -log(2 / 264)
    per_byte = loss / log(2) * 3 / 2  # three tokens, two bytes
    assert found == pytest.approx({"loss": loss, "perplexity": 132, "bits_per_byte": per_byte})
    streamed = replace(data, streaming=True)
    assert CausalLanguageModeling(LanguageModelConfig(**SIZES), streamed, 1).baseline() == {}


def test_masked_language_modelling(tmp_path: Path) -> None:
    """Whatever is hidden is an a; 256 tokens may be, of which a was seen thrice and b once."""
    values = texts(tmp_path, "aaab", "aaaaaa")
    data = MaskedTextDataConfig(tokenizer="bytes", max_length=4, **values)
    task = MaskedLanguageModeling(MaskedLanguageModelConfig(**SIZES), data, 1)
    expected = {"loss": -log(4 / 260), "perplexity": 65, "masked_accuracy": 1.0}
    assert task.baseline() == pytest.approx(expected)


def classification(folder: Path, train: str, validation: str, **data: Any) -> TextClassification:
    for name, labels in (("train", train), ("dev", validation)):
        rows = "".join(f"text {n}\t{label}\n" for n, label in enumerate(labels.split()))
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + rows)
    config = ClassificationDataConfig(source=str(folder), tokenizer="bytes", **data)
    return TextClassification(TextClassifierConfig(**SIZES), config, 1)


def test_classes_and_numbers_of_texts(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    task = classification(tmp_path, "no no yes no", "yes no yes")
    loss = -(log(4 / 6) + 2 * log(2 / 6)) / 3
    expected = {"loss": loss, "accuracy": 1 / 3, "f1": 0.0, "matthews": 0.0}
    assert task.baseline() == pytest.approx(expected)
    task = classification(tmp_path, "1 2 6", "3 5", target="number")
    assert task.baseline() == pytest.approx({"loss": 2.0, "pearson": 0.0, "spearman": 0.0})


@pytest.mark.parametrize(
    ("directions", "counts", "asked"),
    [
        (None, {"a": 4, "b": 2, "c": 3, "d": 2, "end": 6}, ["aa", "c"]),
        (("de-en",), {"a": 4, "b": 2, "end": 3}, ["aa"]),
        (("en-de",), {"c": 3, "d": 2, "end": 3}, ["c"]),
    ],
)
def test_translation(
    directions: tuple | None, counts: dict, asked: list, tmp_path: Path, monkeypatch
) -> None:
    """Trained on aba = cd, ab = dc and a = c; asked for aa = c in both directions or one."""
    monkeypatch.setattr(prepare_module, "SIDES", 2)
    for name, lines in (("train", ["aba|cd", "ab|dc", "a|c"]), ("held", ["aa|c"])):
        for side, language in enumerate(("en", "de")):
            text = "\n".join(line.split("|")[side] for line in lines) + "\n"
            (tmp_path / f"{name}.{language}").write_text(text)
    total = sum(counts.values()) + 260  # one is added to each count
    letters = [letter for word in asked for letter in (*word, "end")]
    loss = -sum(log((counts[letter] + 1) / total) for letter in letters) / len(letters)
    data = ParallelDataConfig(
        source=str(tmp_path / "train"), validation_source=str(tmp_path / "held"),
        tokenizer="bytes", directions=directions, max_length=16,
    )  # fmt: skip
    sizes = {**SIZES, "encoder_layers": 1, "decoder_layers": 1}
    found = Translation(TranslationConfig(**sizes), data, 1).baseline()
    assert found == pytest.approx({"loss": loss, "perplexity": exp(loss)})


def test_image_classification() -> None:
    config = ImageClassifierConfig(
        **SIZES, image_size=8, patch_size=4, channels=1, classes=7, positions="learned"
    )
    task, parts = ImageClassification(config, ImageClassificationDataConfig(), 1), []
    for labels in ([1, 1, 0], [1, 2, 2]):
        image = Pixels(np.zeros((len(labels), 8, 8, 1), np.uint8))
        parts.append(ImageSplit(table_of_columns({"image": image, "label": np.array(labels)})))
    task.splits = ImageSplits(*parts, list("abcdefg"))  # type: ignore[misc]
    expected = {
        "loss": -(log(3 / 10) + 2 * log(1 / 10)) / 3, "accuracy": 1 / 3, "accuracy_top5": 1.0,
        # Always as sure as the commonest class is frequent.
        "calibration_error": 2 / 3 - 1 / 3,
    }  # fmt: skip
    assert task.baseline() == pytest.approx(expected)
    task.evaluation_batch = 2
    first = [labels[row] for row in evaluation_order(3)[:2]]
    loss = -sum(log((3 if label == 1 else 1) / 10) for label in first) / 2
    assert task.baseline(1)["loss"] == pytest.approx(loss)


def test_a_limit_takes_the_batches_that_are_scored(tmp_path: Path) -> None:
    """Only "a" was trained on: the first windows are of a, the later ones of b."""
    data = TextDataConfig(
        tokenizer="bytes", max_length=2, **texts(tmp_path, "a" * 99, "a" * 200 + "b" * 200)
    )
    task = CausalLanguageModeling(LanguageModelConfig(**SIZES), data, 1)
    count = len(task.validation_batches())
    assert count > 2 and task.baseline(1)["loss"] == pytest.approx(-log(100 / 360))
    asked = 199 * log(360 / 100) + 200 * log(360) + log(360 / 2)  # of a, of b, of the end
    assert task.baseline(count) == task.baseline()
    assert task.baseline()["loss"] == pytest.approx(asked / 400)


def test_the_first_batch_of_sorted_texts_has_all_classes(tmp_path: Path) -> None:
    """In the file's order a limited evaluation saw one class, and a constant answer was right."""
    pytest.importorskip("sklearn")
    task = classification(tmp_path, "no yes", "no " * 300 + "yes " * 300)
    first = task.validation_batches()[0]["labels"].float().mean()
    assert 0.2 < first < 0.8
    limited = task.baseline(1)["accuracy"]
    assert limited == pytest.approx(float(1 - first)) and task.baseline()["accuracy"] == 0.5
