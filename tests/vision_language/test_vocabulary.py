"""A tokenizer that is given, or learnt from a task's own texts."""

from pathlib import Path

import pytest

from magneto.vision_language import samples
from magneto.vision_language.samples import limited, text_tokenizer


def test_it_is_learnt_once(cache: Path) -> None:
    pytest.importorskip("tokenizers")
    texts = ["a red circle", "a blue square", "a red square"] * 20
    one = text_tokenizer("bpe", 300, texts)
    assert one.mask is not None and len({one.begin, one.end, one.pad, one.mask}) == 4
    assert len(one.encode(["a red circle"])[0]) == 3
    assert len(list(cache.iterdir())) == 1
    assert text_tokenizer("bpe", 300, iter(texts)).path == one.path
    assert text_tokenizer("bpe", 290, texts).path != one.path
    assert text_tokenizer("bpe", 300, texts[1:]).path != one.path


def test_a_given_one_reads_no_texts() -> None:
    def never():
        raise AssertionError
        yield ""

    assert text_tokenizer("bytes", 300, never()).vocab_size == 260
    with pytest.raises(FileNotFoundError, match="no tokenizer nowhere"):
        text_tokenizer("nowhere.json", 300, never())


def test_not_more_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "BPE_CHARACTERS", 5)
    assert list(limited(["abc", "abc", "abc"])) == ["abc", "abc"]
