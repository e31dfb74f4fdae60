"""`magneto tokenizer train`: lossless tokenizers with special tokens, and mistakes."""

import json
from pathlib import Path

import pytest

from magneto.commands.tokenizer import KINDS, train_tokenizer
from magneto.data.tokenizer import load_tokenizer
from magneto.progress import SILENT
from tests.commands import outcome, refused

LOSSLESS = [
    "Hello, world!\n\ttabs and  two  spaces ", " leads", "naïve café 東京 🙂", "", "\r\n", "ﬁ Å ①",
    "<s> </s> <pad> <mask> are text here",
]  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    lines = (f"The quick brown fox number {i}\njumps over the lazy dog." for i in range(200))
    path.write_text("\n".join(json.dumps({"body": line}) for line in lines))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_text_comes_back_and_special_tokens_are_there(kind, corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    made = train_tokenizer(str(corpus), "body", kind, 310, tmp_path / "out", 200, SILENT)
    assert made.path is not None and made.path.parent == tmp_path / "out"
    assert [p.name for p in (tmp_path / "out").iterdir()] == [made.path.name]
    loaded = load_tokenizer(tmp_path / "out")
    assert loaded.vocab_size == 310
    special = {loaded.end, loaded.begin, loaded.pad, loaded.mask}
    assert len(special) == 4 and None not in special
    for text, tokens in zip(LOSSLESS, loaded.encode(LOSSLESS), strict=True):
        assert loaded.decode(tokens) == text
        assert not special & set(tokens)
    assert loaded.decode([loaded.begin, *loaded.encode(["fox"])[0], loaded.end]) == "fox"


def test_the_command_and_its_mistakes(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("sentencepiece")
    common = ("train", "--data", corpus, "--text-field", "body")
    out, other = tmp_path / "fox.model", tmp_path / "new.model"
    words = [*common, "--kind", "unigram", "--vocab-size", 300, "--out", out]
    with corpus.open("a") as file:
        file.write('\n{"other": 1}\n')
    code, made, err = outcome(capsys, "tokenizer", *words, "--json")
    assert (code, json.loads(made)) == (0, {"tokenizer": str(out), "vocab_size": 300})
    learning, read = err.splitlines()
    assert learning == "training a tokenizer on 400 lines; this can take minutes"
    assert read.startswith(f"{corpus}: 200 documents (1 malformed record")
    assert f"[{corpus}, line 201: no text in field 'body']" in read
    unigram = (*common, "--kind", "unigram", "--out", other)
    for given, message in (
        (words, "already exists"),
        ((*unigram, "--vocab-size", 5000), "SentencePiece: Vocabulary size too high (5000)"),
        ((*common, "--out", tmp_path / "x.json", "--vocab-size", 9), "--vocab-size 260 or more"),
        ((*common, "--out", other), "a byte-bpe tokenizer needs a .json file"),
        ((*common[:3], "--out", tmp_path / "y.json"), f"[{corpus}, line 1: "),
        ((*common, "--out", tmp_path / "z.json", "--sample", 500), "--sample has no effect with"),
    ):
        assert message in refused(capsys, "tokenizer", *given)
    assert not other.exists() and not list(tmp_path.glob(".*"))
