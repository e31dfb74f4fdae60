"""Every kind of tokenizer gives a text back, ends documents, is saved, and says what is wrong."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from magneto.data.tokenizer import load_tokenizer, train_bpe

TEXTS = ["Hello, world!\n\ttabs and  spaces", "naïve café 東京 🙂", "", "</s> is not an end here?"]


@pytest.fixture(params=["bytes", "bpe"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "bytes":
        return load_tokenizer("bytes")
    corpus = [f"The quick brown fox number {i} jumps over the lazy dog." for i in range(200)]
    train_bpe(corpus, 400, tmp_path / "tokenizer.json")
    return load_tokenizer(tmp_path / "tokenizer.json")


def test_text_comes_back_also_when_it_is_saved_and_loaded(tokenizer, tmp_path: Path) -> None:
    for text, tokens in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert tokenizer.decode(tokens) == text
        assert all(0 <= token < tokenizer.vocab_size for token in tokens)
        assert tokenizer.end not in tokens and 0 <= tokenizer.end < tokenizer.vocab_size
    (tmp_path / "saved").mkdir()
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again.encode(TEXTS) == tokenizer.encode(TEXTS)
    assert (again.end, again.vocab_size) == (tokenizer.end, tokenizer.vocab_size)


def test_pieces_of_wordpiece_are_as_they_are_read(tmp_path: Path) -> None:
    vocabulary = {"[PAD]": 0, "[SEP]": 1, "play": 2, "##ing": 3}
    made = Tokenizer(WordPiece(vocabulary, unk_token="[PAD]"))
    made.add_special_tokens(["[PAD]", "[SEP]"])
    made.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path / "tokenizer.json").pieces() == ["", "", " play", "ing"]


def test_wrong_names_and_files(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    for name in ("tokenizer.json", "tokenizer.model"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(ValueError, match=f"{name} is not a tokenizer"):
            load_tokenizer(tmp_path / name)
    (tmp_path / "empty").mkdir()
    for name, message in (("tokeniser.json", r"did you mean .*tokenizer\.json"),
                       ("empty", r"no tokenizer\.json")):  # fmt: skip
        with pytest.raises(FileNotFoundError, match=message):
            load_tokenizer(tmp_path / name)
