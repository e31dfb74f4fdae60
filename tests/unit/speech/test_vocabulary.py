"""0 is blank with any tokenizer; what is learnt from transcripts is learnt once."""

from pathlib import Path

import pytest

from magneto.speech.config import SpeechDataConfig
from magneto.speech.vocabulary import SpeechVocabulary, make_vocabulary

pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")

TEXTS = [f"number {n} of {n * 7} it's said" for n in range(300)]
SIZES = {"characters": 0, "bpe": 300, "sentencepiece": 330, "bytes": 0}


def made(tokenizer: str, texts: list[str] = TEXTS) -> SpeechVocabulary:
    size = SIZES.get(tokenizer) or 5000
    return make_vocabulary(SpeechDataConfig(tokenizer=tokenizer, vocab_size=size), texts)


@pytest.mark.parametrize("tokenizer", SIZES)
def test_texts_come_back(tmp_path: Path, tokenizer: str) -> None:
    vocabulary = made(tokenizer)
    labels = vocabulary.encode(TEXTS)
    assert min(each.min() for each in labels) > 0
    assert max(each.max() for each in labels) < vocabulary.size == len(vocabulary.pieces())
    assert [vocabulary.decode(each.tolist()) for each in labels] == TEXTS
    with_blanks = [label for pair in zip(labels[5], [0] * 99, strict=False) for label in pair]
    assert vocabulary.decode(with_blanks) == TEXTS[5]
    vocabulary.save(tmp_path)
    again = make_vocabulary(SpeechDataConfig(tokenizer=str(tmp_path)), [])
    assert again.encode(TEXTS[:9])[8].tolist() == labels[8].tolist()
    assert [len(each) > 0 for each in vocabulary.encode(["", "a"])] == [False, True]


def test_characters() -> None:
    vocabulary = made("characters", ["ba", "a c"])
    assert vocabulary.pieces()[3:] == [" ", "a", "b", "c"]
    assert vocabulary.decode(vocabulary.encode(["abXc\n"])[0].tolist()) == "abc"
    assert len(vocabulary.encode(["abXc\n"])[0]) == 5


def test_learnt_once(cache: Path) -> None:
    made("characters")
    held = sorted(cache.iterdir())
    made("characters")
    assert sorted(cache.iterdir()) == held and len(held) == 1
    made("characters", ["other"])
    assert len(list(cache.iterdir())) == 2


def test_what_is_no_tokenizer() -> None:
    with pytest.raises(FileNotFoundError, match="no tokenizer wordpiece"):
        made("wordpiece")
