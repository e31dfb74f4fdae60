"""From rows to inputs: what GLUE sets, labels, pairs, truncation."""

import numpy as np
import pytest

from magneto.config import ConfigError, build
from magneto.data.table import table_of
from magneto.data.tokenizer import ByteTokenizer
from magneto.language.classification_inputs import (
    assemble,
    encode,
    make_tokenizer,
)
from magneto.language.config import ClassificationDataConfig
from magneto.language.labelled_texts import TextPair
from magneto.progress import SILENT


def test_wrong_fields_are_answered() -> None:
    with pytest.raises(ConfigError) as caught:
        build(
            ClassificationDataConfig,
            {"glue": "colla", "max_length": 3, "labels": ["a", "a"], "vocab_size": 5},
            "data",
        )
    text = "\n".join(caught.value.lines)
    for part in ("did you mean cola", "length must be", "different ones", "vocab_size must be"):
        assert part in text
    with pytest.raises(ValueError, match="not for a number"):
        ClassificationDataConfig(glue="stsb", metric="f1")
    with pytest.raises(ValueError, match="builtin:word-order"):
        ClassificationDataConfig(source="builtin:word")


def test_glue_sets_columns_metric_and_kind() -> None:
    found = {
        name: (made.number, made.primary_metric)
        for name in ("cola", "stsb", "mnli", "none")
        for made in [ClassificationDataConfig(glue=name)]
    }
    assert found == {
        "cola": (False, "matthews"), "stsb": (True, "pearson"), "mnli": (False, "accuracy"),
        "none": (False, "accuracy"),
    }  # fmt: skip
    assert ClassificationDataConfig(target="number", metric="spearman").primary_metric == "spearman"


def test_inputs_of_single_texts_and_pairs() -> None:
    words = ByteTokenizer()
    s, e = words.begin, words.end
    one = ClassificationDataConfig(max_length=8)
    assert assemble([1, 2], None, words, one) == ([s, 1, 2, e], 4, False)
    assert assemble([1, 2], [3], words, one) == ([s, 1, 2, e, e, 3, e], 5, False)
    single = ClassificationDataConfig(max_length=8, separator="single")
    assert assemble([1, 2], [3], words, single) == ([s, 1, 2, e, 3, e], 4, False)
    assert assemble([1] * 9, None, words, one) == ([s, *[1] * 6, e], 8, True)
    assert assemble([1] * 9, [3], words, one) == ([s, 1, 1, 1, e, e, 3, e], 6, True)
    assert assemble([1], [3] * 9, words, one) == ([s, 1, e, e, 3, 3, 3, e], 4, True)
    assert assemble([1] * 9, [3] * 9, words, one) == ([s, 1, 1, e, e, 3, 3, e], 5, True)


def test_encoding_keeps_order_and_labels() -> None:
    rows = table_of([
        {"text": "ab", "pair": "c", "label": "no"},
        {"text": "a" * 30, "pair": "c", "label": "yes"},
    ])  # fmt: skip
    made = encode(
        rows,
        ("no", "yes"),
        ByteTokenizer(),
        ClassificationDataConfig(max_length=20),
        SILENT,
    )
    assert made.labels.tolist() == [0, 1] and made.truncated == 1
    assert made.lengths.tolist() == [7, 20] and made.second.tolist() == [5, 18]
    numbers = ClassificationDataConfig(target="number")
    made = encode(table_of([{"text": "a", "label": "2.5"}]), (), ByteTokenizer(), numbers, SILENT)
    assert made.labels.dtype == np.float32 and made.labels.tolist() == [2.5]


def test_a_tokenizer_is_trained_once_on_both_texts() -> None:
    pytest.importorskip("tokenizers")
    rows = [TextPair("hello world " * 5, "goodbye moon " * 5)] * 20
    made = make_tokenizer(ClassificationDataConfig(vocab_size=300), rows)
    assert made.path == make_tokenizer(ClassificationDataConfig(vocab_size=300), rows).path
    assert all(len(tokens) < 20 for tokens in made.encode([rows[0].text, rows[0].pair or ""]))
    assert len({made.begin, made.end, made.pad, made.mask}) == 4
