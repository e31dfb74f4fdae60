"""`magneto translate`: as many lines come out as go in, in their order, as soon as they can."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

from magneto.cli import main
from magneto.commands.shared import arriving
from magneto.commands.translate import Lines, open_translation, search_of
from magneto.progress import ProgressBars
from magneto.translation.translator import TextTranslator

SMALL = """--model.width 32 --model.encoder_layers 1 --model.decoder_layers 1 --model.heads 4
--model.ffn_width 48 --data.tokenizer bytes --data.max_length 24 --data.max_tokens 256
--data.languages null --training.steps 2 --training.warmup_steps 1
--training.tensorboard false --training.device cpu""".split()  # noqa: SIM905
OPTIONS = {"beams": 2, "length_penalty": 1.0, "longest": 8, "batch_size": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, module_cache: Path) -> Path:
    place = tmp_path_factory.mktemp("translate")
    for language, letters in (("en", "abc"), ("de", "xyz")):
        lines = [" ".join(letters[(i // 3**k) % 3] for k in range(5)) for i in range(243)]
        (place / f"text.{language}").write_text("\n".join(lines) + "\n")
    words = ["train", "translation/tiny", "--data", str(place / "text"), "--out", str(place / "r")]
    assert main([*words, *SMALL]) == 0
    return place / "r"


def translated(run: Path, text: bytes, monkeypatch, capsysbinary, *words: str) -> tuple[bytes, str]:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    small = ["--beams", "2", "--longest", "8", "--batch-size", "4"]
    assert main(["translate", str(run), "--to", "de", *small, *words]) == 0
    captured = capsysbinary.readouterr()
    return captured.out, captured.err.decode()


def test_no_line_is_lost_or_moved(run: Path, monkeypatch, capsysbinary) -> None:
    lines = ["a b c", "", "a", "c c c c c c c", "   ", "b b", "a b c a b c a b c a b c", "c"]
    text = "\r\n".join(lines).encode()  # the last one without an end
    out, err = translated(run, text, monkeypatch, capsysbinary)
    rows = out.decode().split("\n")
    assert rows.pop() == "" and len(rows) == len(lines)
    assert [not row for row in rows] == [not line.strip() for line in lines]
    alone = [
        translated(run, line.encode() + b"\n", monkeypatch, capsysbinary)[0].decode()[:-1]
        for line in lines[:4]
    ]
    assert rows[:4] == alone
    assert "8 lines; 2 empty, left so" in err
    (run.parent / "lines.txt").write_bytes(text)
    for name in ("-", str(run.parent / "lines.txt")):
        assert translated(run, text, monkeypatch, capsysbinary, name)[0] == out


def test_what_is_odd_is_counted(run: Path, monkeypatch, capsysbinary) -> None:
    text = b"a\n" + b"b " * 30 + b"\n\xff\xfe c\n" + b"c" * 22 + b"\n" + b"c" * 23 + b"\n"
    out, err = translated(run, text, monkeypatch, capsysbinary)
    assert out.count(b"\n") == 5
    assert "1 with invalid UTF-8 replaced" in err
    assert "2 longer than 24 tokens, translated up to there (first: line 2)" in err


def test_what_nobody_sees_is_not_translated(run: Path, monkeypatch, capsysbinary) -> None:
    plain = translated(run, b"a b\n\n\nc\n", monkeypatch, capsysbinary)
    odd = "\ufeffa b\n\u200b\n\u2060\x00 \nc\n".encode()
    assert translated(run, odd, monkeypatch, capsysbinary) == plain
    alone, err = translated(run, b"\xef\xbb\xbf", monkeypatch, capsysbinary)
    assert alone == b"\n" and "1 lines; 1 empty, left so" in err


def test_n_best_and_json(run: Path, monkeypatch, capsysbinary) -> None:
    out, _ = translated(run, b"a b\n\nc\n", monkeypatch, capsysbinary, "--n-best", "2")
    rows = [line.split("\t") for line in out.decode().splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "2", "3", "3"]
    assert float(rows[0][1]) >= float(rows[1][1]) and rows[2][1:] == ["0.0000", ""]
    out, _ = translated(run, "ä\n\n".encode(), monkeypatch, capsysbinary, "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["line"] for record in records] == [1, 2]
    assert records[0]["source"] == "ä" and records[0]["translations"][0]["score"] < 0
    assert records[1]["translations"] == [{"text": "", "score": 0.0}]


class Pieces:
    """A pipe into which something comes now and then."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.written: list[bytes] = []
        self.before: list[bytes] = []

    def read1(self, size: int) -> bytes:
        self.before.append(b"".join(self.written))
        return self.pieces.pop(0) if self.pieces else b""

    def write(self, text: bytes) -> None:
        self.written.append(text)

    def flush(self) -> None:
        pass


def lines_of(run: Path, quiet: bool) -> Lines:
    given = SimpleNamespace(to="de", json=False, n_best=None, **OPTIONS)
    opened: Any = open_translation(run, "auto", {"training.device": "cpu"})
    translator = TextTranslator(opened.model, opened.task.vocabulary, 24, search_of(given))
    return Lines(translator, given, ProgressBars(quiet))


def test_lines_are_written_as_they_come(run: Path) -> None:
    pipe = Pieces(b"a b\nb", b" c\n", b"c")
    lines_of(run, quiet=True).run(pipe, pipe)  # type: ignore[arg-type]
    assert [text.count(b"\n") for text in pipe.before] == [0, 1, 2, 2]
    assert b"".join(pipe.written).count(b"\n") == 3


def test_a_closed_pipe_is_passed_on_without_a_word(run: Path, capsys) -> None:
    class Closed(Pieces):
        def write(self, text: bytes) -> None:
            raise BrokenPipeError

    pipe = Closed(b"a b\n")
    with pytest.raises(BrokenPipeError):
        lines_of(run, quiet=False).run(pipe, pipe)  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""


def test_only_line_feeds_end_lines() -> None:
    text = "a\u2028b\x0bc\n\n\nd\r\ne".encode()
    for cut in range(len(text)):
        pieces = [part for part in (text[:cut], text[cut:]) if part]
        found = [line for lines in arriving(Pieces(*pieces)) for line in lines]
        assert found == text.split(b"\n")
    assert list(arriving(Pieces(b"a\n"))) == [[b"a"]]
    assert list(arriving(Pieces())) == []
    endless = Pieces(*[b"x" * 100_000] * 30, b"\nnext\n")
    long, after = (line for lines in arriving(endless) for line in lines)
    assert 1 << 20 <= len(long) < 1_200_000 and after == b"next"


@pytest.mark.parametrize("name", ["stdin", "stdout"])
def test_closed_standard_streams(run: Path, name: str, capsys, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(f"sys.{name}", None)
        assert main(["translate", str(run), "--to", "de"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "standard input and output must be open" in err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--to dd", "no language 'dd' (there is de, en)"),
        ("", "--to de|en"),
        ("--to de --from fr", "no language 'fr'"),
        ("--to de --n-best 6", "1 to --beams (5)"),
        ("--to de --beams 0", "beams must be 1 or more"),
        ("--to de --length-penalty nan", "length_penalty must be a finite number, not nan"),
        ("--to de --length-penalty inf", "length_penalty must be a finite number, not inf"),
        ("--to de --batchsize 2", "did you mean --batch-size?"),
    ],
)
def test_a_mistake_is_one_line(run: Path, words: str, answer: str, capsys) -> None:
    assert main(["translate", str(run), *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and answer in captured.err and captured.err.count("\n") == 1
