"""A tokenizer that is not there yet has the size that it would have."""

import pytest

from magneto.data.assumed_tokenizer import assume_tokenizer
from magneto.data.tokenizer import ByteTokenizer


def test_what_is_learnt_has_the_size_that_is_asked_for() -> None:
    made = assume_tokenizer("bpe", ("bpe",), 5000, None)
    assert made.vocab_size == len(made.pieces()) == 5000
    assert len({made.end, made.begin, made.pad, made.mask}) == 4
    assert assume_tokenizer("bpe", ("bpe",), 5000, 3000).vocab_size == 3000


def test_what_is_there_is_used() -> None:
    assert isinstance(assume_tokenizer("bytes", ("bpe",), 5000, None), ByteTokenizer)


def test_a_missing_file_is_as_large_as_the_model_says() -> None:
    assert assume_tokenizer("no/such.json", ("bpe",), 5000, 50257).vocab_size == 50257
    with pytest.raises(FileNotFoundError, match=r"no tokenizer no/such\.json"):
        assume_tokenizer("no/such.json", ("bpe",), 5000, None)


def test_it_reads_and_writes_nothing() -> None:
    made = assume_tokenizer("bpe", ("bpe",), 5000, None)
    for use in (lambda: made.encode(["a"]), lambda: made.decode([1])):
        with pytest.raises(ValueError, match="was assumed"):
            use()
