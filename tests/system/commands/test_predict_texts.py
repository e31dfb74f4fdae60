"""`magneto predict` on texts: lines, tables, quoted texts, and probabilities."""

import json
from pathlib import Path

import pytest

from magneto.cli import main
from tests.commands import Pieces, outcome, printed, refused

MODEL = ["--model.width", "32", "--model.layers", "1", "--model.heads", "2",
         "--data.tokenizer", "bytes", "--training.tensorboard", "false"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that separates texts of a from texts of b."""
    folder = tmp_path_factory.mktemp("texts")
    lines = (f"{'ab'[i % 2]},{'ab'[i % 2] * (1 + i % 7)} {i}\n" for i in range(200))
    (folder / "rows.csv").write_text("kind,words\n" + "".join(lines))
    words = ["train", "text-classification/tiny", "--data", str(folder / "rows.csv"), *MODEL,
             "--data.text_column", "words", "--data.label_column", "kind",
             "--out", str(folder / "run"), "--training.steps", "60",
             "--training.log_every", "60"]  # fmt: skip
    assert main(words) == 0
    (folder / "rows.csv").unlink()  # predicting needs no training data
    return folder / "run"


def test_texts_in_quotes_and_files(run: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("magneto.language.classification.EVALUATION_BATCH", 4)
    monkeypatch.setattr("magneto.commands.predict.SORTED", 6)
    (tmp_path / "lines.txt").write_text("aaaa 1\n\nbb 2\n")
    (tmp_path / "rows.csv").write_text('words,n\n"bbb 7",1\naa 3,2\n')
    (tmp_path / "rows.jsonl").write_text('{"words": "aaa 3"}\n')
    names = [tmp_path / name for name in ("lines.txt", "rows.csv", "rows.jsonl")]
    code, out, err = outcome(capsys, "predict", run, "bbbb 5", *names)
    rows = [tuple(line.split("\t")) for line in out.splitlines()]
    assert rows == [("b", "bbbb 5"), ("a", "aaaa 1"), ("", ""), ("b", "bb 2"), ("b", "bbb 7"),
                    ("a", "aa 3"), ("a", "aaa 3")]  # fmt: skip
    assert code == 0 and "7 rows" in err


def test_probabilities_of_lines_from_standard_input(run: Path, capsys, monkeypatch) -> None:
    for words in ([], ["-"]):
        monkeypatch.setattr("sys.stdin", Pieces(b"aaa 1\nbbb 2\n"))
        out = printed(capsys, "predict", run, *words, "--probabilities")
        first, second = (line.split("\t") for line in out.splitlines())
        assert [first[0], first[2], second[0]] == ["a", "aaa 1", "b"]
        shares = dict(part.split("=") for part in first[1].split(" "))
        assert list(shares) == ["a", "b"] and float(shares["a"]) > 0.5
        assert sum(map(float, shares.values())) == pytest.approx(1, abs=1e-3)


def test_each_line_that_is_typed_is_answered(run: Path, capsys, monkeypatch) -> None:
    """Lines are answered at once, without waiting for more, and without a byte-order mark."""
    capsys.readouterr()
    lines = (b"\xef\xbb\xbfaaa 1\r\n", b"bbb 2\n")
    typed = Pieces(*lines, printed=lambda: capsys.readouterr().out)
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", typed)
    assert main(["predict", str(run)]) == 0
    assert typed.before == ["", "a\taaa 1\n", "b\tbbb 2\n"]


def test_one_json_object_and_mistakes(run: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("magneto.commands.predict.SORTED", 1)
    words = ["predict", run, "bb " * 300, "aaa 1", "--json", "--probabilities"]
    code, out, err = outcome(capsys, *words)
    found = json.loads(out)["texts"]
    assert [each["label"] for each in found] == ["b", "a"] and set(found[0]["probabilities"]) == {
        "a",
        "b",
    }
    assert code == 0 and "1 of 2 texts were truncated to" in err
    (tmp_path / "empty.txt").write_text("")
    monkeypatch.setattr("sys.stdin", None)
    for words, message in (
        (["lines.txt"], "no file or folder lines.txt"),
        ([tmp_path], "is a folder"),
        ([tmp_path / "empty.txt"], "no text in"),
        ([], "standard input is closed"),
        (["aaa 1", "--top=3"], "--top has no effect with text-classification runs; omit it"),
    ):
        assert message in refused(capsys, "predict", run, *words)
