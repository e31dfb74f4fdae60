"""Every kind of tokenizer gives a text back, ends documents, is saved, and says what is wrong."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel, WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import BertProcessing

from magneto.data import tokenizer as module
from magneto.data.tokenizer import check_vocabulary, load_tokenizer, train_bpe, train_sentencepiece

TEXTS = ["Hello, world!\n\ttabs and  spaces", "naïve café 東京 🙂", "", "</s> is not an end here?"]


@pytest.fixture(params=["bytes", "bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "bytes":
        return load_tokenizer("bytes")
    corpus = [f"The quick brown fox number {i} jumps over the lazy dog." for i in range(200)]
    if request.param == "unigram":
        pytest.importorskip("sentencepiece")
        (tmp_path / "a.model").write_bytes(train_sentencepiece(corpus, "unigram", 312, 200))
        return load_tokenizer(tmp_path / "a.model")
    train_bpe(corpus, 400, tmp_path / "tokenizer.json")
    return load_tokenizer(tmp_path / "tokenizer.json")


def test_text_comes_back_also_when_it_is_saved_and_loaded(tokenizer, tmp_path: Path) -> None:
    for text, tokens in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert tokenizer.decode(tokens) == tokenizer.decode([*tokens, tokenizer.end]) == text
        assert all(0 <= token < tokenizer.vocab_size for token in tokens)
        assert tokenizer.end not in tokens and 0 <= tokenizer.end < tokenizer.vocab_size
    special = [tokenizer.begin, tokenizer.pad, tokenizer.end, tokenizer.mask]
    assert special in ([257, 258, 256, 259], [0, 0, 0, None], [0, 1, 2, 4])
    pieces, (quick,) = tokenizer.pieces(), tokenizer.encode(["The quick fox"])
    assert "".join(pieces[token] for token in quick).strip() == "The quick fox"
    assert (len(pieces), pieces[tokenizer.end]) == (tokenizer.vocab_size, "")
    (tmp_path / "saved").mkdir()
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again.encode(TEXTS) == tokenizer.encode(TEXTS)
    assert (again.end, again.vocab_size) == (tokenizer.end, tokenizer.vocab_size)


def test_pieces_of_wordpiece_are_as_they_are_read(tmp_path: Path) -> None:
    vocabulary = {"[PAD]": 0, "[SEP]": 1, "play": 2, "##ing": 4, "[UNK]": 5}
    made = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    made.add_special_tokens(["[PAD]", "[SEP]", "[UNK]"])
    made.post_processor = BertProcessing(("[SEP]", 1), ("[PAD]", 0))
    made.enable_truncation(1)
    made.enable_padding(length=5)
    made.save(str(tmp_path / "tokenizer.json"))
    found = load_tokenizer(tmp_path / "tokenizer.json")
    assert found.pieces() == ["", "", " play", "", "ing", ""]
    assert found.encode(["playing"]) == [[2, 4]]
    assert (found.end, found.begin, found.pad, found.mask) == (1, 1, 0, None)
    check_vocabulary(6, found.vocab_size)


def test_names_of_special_tokens_are_text_also_if_they_are_words(tmp_path: Path) -> None:
    words = {"</s>": 0, "<s>": 1, "<pad>": 2, "<mask>": 3, "[UNK]": 4, "a": 5, "<": 6, ">": 7}
    for model, unknown in ((WordLevel(words, "[UNK]"), [4]), (WordLevel(words), [])):
        made = Tokenizer(model)
        made.pre_tokenizer = WhitespaceSplit()
        made.save(str(tmp_path / "tokenizer.json"))
        found = load_tokenizer(tmp_path / "tokenizer.json")
        spelled = [6, *unknown, 5, *unknown, *unknown, 7]
        assert found.encode(["a <mask> a", "<s>"]) == [[5, *spelled, 5], [6, *unknown, 7]]


def test_training_reads_a_limited_text_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BPE_CHARACTERS", 10)
    monkeypatch.setattr(module, "LINE_CHARACTERS", 3)
    assert [*module.limited(["12345", "67890", "1", "2"])] == ["12345", "67890", "1"]
    assert [*module._lines(["abcdefg\nh", "", "ij"])] == ["abc", "def", "g", "h", "ij"]


def test_sentencepiece_learns_from_lines_of_all_languages(tmp_path: Path) -> None:
    """Text comes language by language, and a sample is not its beginning. Others lack pieces."""
    library = pytest.importorskip("sentencepiece")
    lines = [f"{word} {number}" for word in ("hello", "äöüßñ") for number in range(1000)]
    (tmp_path / "a.model").write_bytes(train_sentencepiece(lines, "unigram", 300, 200))
    pieces = "".join(load_tokenizer(tmp_path / "a.model").pieces())
    assert {*"heloäöüßñ"} <= {*pieces}
    library.SentencePieceTrainer.train(sentence_iterator=iter(lines), minloglevel=2, bos_id=-1,
                                       model_prefix=f"{tmp_path}/b", vocab_size=60)  # fmt: skip
    found = load_tokenizer(tmp_path / "b.model")
    assert (found.end, found.begin, found.pad, found.mask) == (2, 2, 2, None)


def test_wrong_names_and_files(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    for name in ("tokenizer.json", "tokenizer.model"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(ValueError, match=f"{name} is not a tokenizer"):
            load_tokenizer(tmp_path / name)
    (tmp_path / "empty").mkdir()
    for name, message in (("tokeniser.json", r"did you mean .*tokenizer\.json"),
                       ("empty", r"empty has no tokenizer \(tokenizer\.bytes, ")):  # fmt: skip
        with pytest.raises(FileNotFoundError, match=message):
            load_tokenizer(tmp_path / name)
