"""From rows to inputs: what GLUE sets, labels, pairs, truncation."""

import numpy as np
import pytest

from magneto.config import ConfigError, build
from magneto.data.table import table_of
from magneto.data.tokenizer import ByteTokenizer
from magneto.language.config import ClassificationDataConfig
from magneto.language.labelled_texts import TextPair, assemble, encode, label_values
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
    rows = [TextPair("ab", "c"), TextPair("a" * 30, "c")]
    config = ClassificationDataConfig(max_length=20)
    made = encode(rows, ByteTokenizer(), config, SILENT)
    assert made.cut == [False, True]
    assert made.lengths.tolist() == [7, 20] and made.second.tolist() == [5, 18]
    table = table_of([{"label": "yes"}, {"label": "no"}])
    assert label_values(table, ("no", "yes")).tolist() == [1, 0]
    numbers = label_values(table_of([{"label": "2.5"}]), ())
    assert numbers.dtype == np.float32 and numbers.tolist() == [2.5]
