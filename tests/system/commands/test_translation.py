"""`magneto translate`, and `magneto evaluate` of translation runs."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.commands.shared import arriving
from magneto.commands.translate import parser, search_of
from magneto.config import ConfigError
from magneto.data.problems import INVALID_UTF8, Counts
from magneto.hf import BeamSearch
from magneto.translation.prepare import CacheWriter
from magneto.translation.text import ReferenceTexts, select_directions
from tests.commands import Pieces, answer, outcome, refused

pytest.importorskip("transformers")
sacrebleu = pytest.importorskip("sacrebleu")

SMALL = """--model.width 32 --model.encoder_layers 1 --model.decoder_layers 1 --model.heads 4
--model.ffn_width 48 --data.tokenizer bytes --data.max_length 24 --data.max_tokens 256
--data.languages null --data.validation_fraction 0.1 --data.validation_limit null
--training.steps 2 --training.warmup_steps 1
--training.tensorboard false --training.device cpu""".split()  # noqa: SIM905
SEARCH = ["--beams", "2", "--longest", "8"]


def write(stem: Path, languages: dict[str, str], count: int) -> None:
    for language, letters in languages.items():
        lines = [" ".join(letters[(i // 3**k) % 3] for k in range(5)) for i in range(count)]
        stem.with_name(f"{stem.name}.{language}").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, module_cache: Path) -> Path:
    place = tmp_path_factory.mktemp("translate")
    write(place / "text", {"en": "abc", "de": "xyz", "fr": "uvw"}, 243)
    write(place / "test", {"en": "abc", "de": "xyz", "it": "rst"}, 7)
    (place / "test.en").open("a").write("\n")  # a test set is left as it is
    (place / "test.de").open("a").write("z\n")
    (place / "test.it").open("a").write("t\n")
    words = ["train", "translation/tiny", "--data", str(place / "text"), "--out", str(place / "r")]
    assert main([*words, *SMALL]) == 0
    return place / "r"


@pytest.fixture
def translated(run: Path, monkeypatch, capsysbinary) -> Callable[..., tuple[bytes, str]]:
    """Return a function that translates standard input, and returns what the command said."""

    def translate(text: bytes | Pieces, *words: str) -> tuple[bytes, str]:
        monkeypatch.setattr("sys.stdin", Pieces(text) if isinstance(text, bytes) else text)
        small = ["--to", "de", *SEARCH, "--batch-size", "4"]
        assert main(["translate", str(run), *small, *words]) == 0
        captured = capsysbinary.readouterr()
        return captured.out, captured.err.decode()

    return translate


def test_no_line_is_lost_or_moved(translated: Callable, tmp_path: Path, monkeypatch) -> None:
    lines = ["a b c", "", "a", "c c c c c c c", "   ", "b b", "a b c a b c a b c a b c", "c"]
    text = "\r\n".join(lines).encode()  # the last one without an end
    out, err = translated(text)
    rows = out.decode().split("\n")
    assert rows.pop() == "" and len(rows) == len(lines)
    assert [not row for row in rows] == [not line.strip() for line in lines]
    for line, row in zip(lines[:4], rows, strict=False):
        alone, _ = translated(line.encode() + b"\n")
        assert alone.decode()[:-1] == row
    assert "8 lines (2 empty" in err
    (tmp_path / "lines.txt").write_bytes(text)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("-", str(tmp_path / "lines.txt"), "~/lines.txt"):
        assert translated(text, name)[0] == out


def test_what_is_odd_is_counted(translated: Callable) -> None:
    """Invisible lines are not translated."""
    text = b"a\n" + b"b " * 30 + b"\n\xff\xfe c\n" + b"c" * 22 + b"\n" + b"c" * 23 + b"\n"
    out, err = translated(text)
    assert out.count(b"\n") == 5
    assert "with invalid UTF-8 replaced" in err
    assert "2 truncated to 24 tokens [line 2" in err
    odd = "\ufeffa b\n\u200b\n\u2060\x00 \nc\n".encode()
    assert translated(odd) == translated(b"a b\n\n\nc\n")


def test_n_best_and_json(translated: Callable) -> None:
    out, _ = translated(b"a b\n\nc\n", "--n-best", "2")
    rows = [line.split("\t") for line in out.decode().splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "2", "3", "3"]
    assert float(rows[0][1]) >= float(rows[1][1]) and rows[2][1:] == ["0.0000", ""]
    out, _ = translated("ä\n\n".encode(), "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["line"] for record in records] == [1, 2]
    assert records[0]["source"] == "ä" and records[0]["translations"][0]["score"] < 0
    assert records[1]["translations"] == [{"text": "", "score": 0.0}]


def test_lines_are_written_as_they_come_and_a_closed_pipe_ends_it(
    translated: Callable, monkeypatch, capsysbinary
) -> None:
    """Without a word."""
    pipe = Pieces(b"a b\nb", b" c\n", b"c", printed=lambda: capsysbinary.readouterr().out)
    out, _ = translated(pipe)
    assert [text.count(b"\n") for text in (*pipe.before, out)] == [0, 1, 1, 0, 1]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        assert translated(b"a b\n") == (b"", "")


def test_only_line_feeds_end_lines() -> None:
    counts = Counts()

    def read(*pieces: bytes) -> list[list[str]]:
        return list(arriving(Pieces(*pieces), counts, 2))

    text = "\ufeffa\u2028b\x0bc\n\n\nd\re\n\ufefff".encode()
    for cut in range(3, len(text)):
        found = [line for lines in read(text[:cut], text[cut:]) for line in lines]
        assert found == text.decode("utf-8-sig").split("\n")
    assert not counts and read(b"a\r\n\xffb\nc") == [["a", "\ufffdb"], ["c"]]
    assert counts[INVALID_UTF8] == 1 and read() == []
    [[long, after]] = read(*[b"x" * 100_000] * 30, b"\nnext\n")
    assert 1 << 20 <= len(long) < 1_200_000 and after == "next"


def test_mistakes_are_one_line(run: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(run.parent)
    translate, evaluate = f"translate {run}", f"evaluate {run}"
    for words, message in (
        (f"{translate} --to dee", "no language 'dee'; did you mean de? (the model has de, en, fr)"),
        (translate, "--to de|en|fr"),
        (f"{translate} --to de tests.en", "no file or folder tests.en; did you mean test.en?"),
        (f"{evaluate} --directions en-it", "--directions en-it: not among the 4 directions"),
        (f"{evaluate} --data test --directions en-it", "no test text for en-it. Language pairs"),
        (f"{evaluate} --data nothing", "no parallel text at nothing"),
        (f"{evaluate} --data nothing --write test.en", "test.en is a file; name a folder"),
    ):
        assert message in refused(capsys, *words.split()), words
    for name in ("stdin", "stdout"):
        with monkeypatch.context() as patch:
            patch.setattr(f"sys.{name}", None)
            line = refused(capsys, "translate", run, "--to", "de")
        assert f"standard {name.removeprefix('std')}put is closed" in line


def test_validation_sentences_have_loss_and_scores_of_the_directions_asked_for(
    run: Path, capsys, monkeypatch
) -> None:
    """The text is not tokenised again."""
    monkeypatch.setattr(CacheWriter, "write", lambda *_: pytest.fail("tokenised again"))
    words = ["evaluate", run, *SEARCH]
    found = answer(capsys, *words)
    assert list(found["bleu"]) == ["en-de", "en-fr", "de-en", "fr-en"]
    trained = json.loads((run / "result.json").read_text())
    assert found["loss"] == pytest.approx(trained["best"]["value"], rel=1e-5)
    out = (found["chrf"]["en-de"] + found["chrf"]["en-fr"]) / 2
    into = (found["chrf"]["de-en"] + found["chrf"]["fr-en"]) / 2
    both = {"out": out, "into": into, "both": (out + into) / 2}
    assert found["chrf_average"] == pytest.approx(both)
    assert found["split"] == "validation" and 5 < found["sentences"]["en-de"] < 60
    bleu, chrf = (set(found["signatures"][name].split("|")) for name in ("bleu", "chrf"))
    assert {"nrefs:1", "case:mixed", "tok:13a", "smooth:exp"} <= bleu
    assert {"nrefs:1", "nc:6", "nw:0"} <= chrf
    less = answer(capsys, *words, "--limit", "3", "--directions", "fr-en", "--keep", "less")
    kept = json.loads((run / "scores" / "less.json").read_text())
    assert kept["metrics"] == pytest.approx({
        **{name: less[name] for name in ("loss", "perplexity")},
        **{name: less[f"{name}_average"]["both"] for name in ("bleu", "chrf")},
    })  # fmt: skip
    assert (kept["limit"], kept["overrides"]["data.directions"]) == (3, "fr>en")
    assert less["sentences"] == {"fr-en": 3} and less["bleu_average"]["out"] is None
    # All lines are equal, so sentences have equally many tokens.
    one, other, whole = (
        answer(capsys, *words, "--directions", names) for names in ("en-de", "fr>en", "en-de,fr-en")
    )
    assert one["loss"] != pytest.approx(other["loss"], rel=1e-4)
    assert list(one["bleu"]) == ["en-de"]
    counts = [sum(part["sentences"].values()) for part in (one, other)]
    mean = (counts[0] * one["loss"] + counts[1] * other["loss"]) / sum(counts)
    assert whole["loss"] == pytest.approx(mean, rel=1e-5)


def test_a_test_set_is_scored_as_it_is(run: Path, capsys, tmp_path: Path) -> None:
    source = str(run.parent / "test")
    words = ["evaluate", run, *SEARCH, "--data", source]
    code, out, err = outcome(capsys, *words, "--write", tmp_path / "out", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["sentences"] == {"en-de": 8, "de-en": 8} and found["split"] == "test"
    assert "left out because the model lacks them: it" in err
    both = ["--data.source", source, "--data.validation_source", source]
    own = answer(capsys, *words[:-2], *both, "--data.directions", "en-de,de-en")
    assert found["loss"] == own["loss"] != answer(capsys, *words[:-2])["loss"]
    for direction in ("en-de", "de-en"):
        written = (tmp_path / "out" / f"{direction}.txt").read_text().split("\n")
        assert written.pop() == "" and len(written) == 8
        references = Path(f"{source}.{direction[3:]}").read_text().split("\n")[:8]
        assert found["bleu"][direction] == sacrebleu.corpus_bleu(written, [references]).score
        assert found["chrf"][direction] == sacrebleu.corpus_chrf(written, [references]).score
        if direction == "en-de":
            assert written[7] == ""
    other = answer(capsys, *words, "--directions", "de-en")
    assert other["bleu"] == {"de-en": found["bleu"]["de-en"]}


def test_options_of_the_search() -> None:
    words = "run --beams 3 --length-penalty 0.5 --longest 9 --batch-size 7"
    found = search_of(parser().parse(words.split()), 2)
    assert found == BeamSearch(beams=3, length_penalty=0.5, count=2, longest=9, batch_size=7)


def test_codes_with_dashes() -> None:
    texts = ReferenceTexts("test", {("en", "zh-CN"): [], ("zh-CN", "en"): []}, [], Counts())
    for name in ("en>zh-CN", "en-zh-CN", "en > zh-CN"):
        assert list(select_directions(texts, [name]).texts) == [("en", "zh-CN")]
    with pytest.raises(ConfigError, match="zh-CM>en: not among the 2 directions; the nearest are"):
        select_directions(texts, ["zh-CM>en"])
