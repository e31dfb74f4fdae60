"""`magneto evaluate` of a translation run: which sentences, which directions, which numbers."""

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sacrebleu = pytest.importorskip("sacrebleu")

from magneto.cli import main  # noqa: E402
from magneto.config import ConfigError  # noqa: E402
from magneto.data.counts import Counts  # noqa: E402
from magneto.translation.references import ReferenceTexts, chosen  # noqa: E402

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
    place = tmp_path_factory.mktemp("scores")
    write(place / "text", {"en": "abc", "de": "xyz", "fr": "uvw"}, 243)
    write(place / "test", {"en": "abc", "de": "xyz", "it": "rst"}, 7)
    (place / "test.en").open("a").write("\n")  # a test set is left as it is
    (place / "test.de").open("a").write("z\n")
    (place / "test.it").open("a").write("t\n")
    words = ["train", "translation/tiny", "--data", str(place / "text"), "--out", str(place / "r")]
    assert main([*words, *SMALL]) == 0
    return place / "r"


def evaluated(run: Path, capsys: pytest.CaptureFixture, *words: str) -> tuple[dict, str]:
    assert main(["evaluate", str(run), *SEARCH, "--json", *words]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def test_validation_sentences_have_loss_and_scores(run: Path, capsys) -> None:
    found, _ = evaluated(run, capsys)
    assert list(found["bleu"]) == ["en-de", "en-fr", "de-en", "fr-en"]
    trained = json.loads((run / "result.json").read_text())
    assert found["loss"] == pytest.approx(trained["best"]["value"], rel=1e-5)
    out = (found["chrf"]["en-de"] + found["chrf"]["en-fr"]) / 2
    into = (found["chrf"]["de-en"] + found["chrf"]["fr-en"]) / 2
    both = {"out": out, "into": into, "both": (out + into) / 2}
    assert found["chrf_average"] == pytest.approx(both)
    assert found["split"] == "validation" and 5 < found["sentences"]["en-de"] < 60
    assert "tok:13a" in found["signatures"]["bleu"]
    less, _ = evaluated(run, capsys, "--limit", "3", "--directions", "fr-en")
    assert less["sentences"] == {"fr-en": 3} and less["bleu_average"]["out"] is None


def test_the_loss_is_of_the_directions_asked_for(run: Path, capsys) -> None:
    names = ["en-de", "en-fr", "de-en", "fr-en"]
    parts = {name: evaluated(run, capsys, "--directions", name)[0] for name in names}
    one, other = parts["en-de"], parts["fr-en"]
    assert one["loss"] != pytest.approx(other["loss"], rel=1e-4)
    assert list(one["bleu"]) == ["en-de"]
    whole, _ = evaluated(run, capsys)
    losses = [
        part["loss"] for part in parts.values()
    ]  # of equally many tokens: all lines are alike
    counts = [sum(part["sentences"].values()) for part in parts.values()]
    mean = sum(n * loss for n, loss in zip(counts, losses, strict=True)) / sum(counts)
    assert whole["loss"] == pytest.approx(mean, rel=1e-5)
    same, _ = evaluated(run, capsys, "--directions", "fr>en")
    assert (same["loss"], same["bleu"]) == (other["loss"], other["bleu"])


def test_codes_with_dashes() -> None:
    texts = ReferenceTexts("test", {("en", "zh-CN"): [], ("zh-CN", "en"): []}, [], Counts())
    for name in ("en>zh-CN", "en-zh-CN", "en > zh-CN"):
        assert list(chosen(texts, [name]).texts) == [("en", "zh-CN")]
    assert list(chosen(texts, ["zh-CN>en"]).texts) == [("zh-CN", "en")]
    with pytest.raises(ConfigError, match="zh-CM>en: not among the 2; nearest: zh-CN-en"):
        chosen(texts, ["zh-CM>en"])


def test_a_test_set_is_scored_as_it_is(run: Path, capsys, tmp_path: Path) -> None:
    source = str(run.parent / "test")
    found, err = evaluated(run, capsys, "--data", source, "--write", str(tmp_path / "out"))
    assert found["sentences"] == {"en-de": 8, "de-en": 8} and found["split"] == "test"
    assert found["loss"] > 0 and "left out: it" in err
    for direction in ("en-de", "de-en"):
        written = (tmp_path / "out" / f"{direction}.txt").read_text().split("\n")
        assert written.pop() == "" and len(written) == 8
        references = Path(f"{source}.{direction[3:]}").read_text().split("\n")[:8]
        assert found["bleu"][direction] == sacrebleu.corpus_bleu(written, [references]).score
        assert found["chrf"][direction] == sacrebleu.corpus_chrf(written, [references]).score
        if direction == "en-de":
            assert written[7] == ""
    other, _ = evaluated(run, capsys, "--data", source, "--directions", "de-en")
    assert other["bleu"] == {"de-en": found["bleu"]["de-en"]}


def test_the_table_has_directions_averages_and_signatures(run: Path, capsys) -> None:
    assert main(["evaluate", str(run), *SEARCH, "--limit", "3"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    starts = [" ".join(row[: 2 if row[0] == "mean" else 1]) for row in rows]
    assert starts[1:8] == ["loss", "perplexity", "direction", "en-de", "en-fr", "de-en", "fr-en"]
    assert starts[8:] == ["mean en->X", "mean X->en", "mean average", "bleu:", "chrf:"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--directions en-it", "--directions en-it: not among the 4; nearest: "),
        ("--data test --directions en-it", "no test text for en-it: it has de-en, de-it, en-it"),
        ("--data nothing", "no parallel text nothing"),
        ("--beams 0", "beams must be 1 or more"),
    ],
)
def test_a_mistake_is_one_line(run: Path, words: str, answer: str, capsys, monkeypatch) -> None:
    monkeypatch.chdir(run.parent)
    assert main(["evaluate", str(run), *words.split()]) == 2
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("magneto:")]
    assert len(lines) == 1 and answer in lines[0]
