"""Translation learns, uses its source, and loses nothing by padding, cutting or resuming."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from magneto.data.tokenizer import ByteTokenizer
from magneto.progress import SILENT, ProgressBars
from magneto.recipe import load_recipe
from magneto.training.logging import read_metrics
from magneto.training.loop import train
from magneto.translation.config import ParallelDataConfig, TranslationConfig
from magneto.translation.prepare import TranslationVocabulary
from magneto.translation.task import (
    TextTranslator,
    Translation,
    TranslationResult,
    TranslationScores,
    describe_scores,
    score_directions,
    score_lines,
)
from magneto.translation.text import read_validation_texts
from tests.commands import refused
from tests.evaluating import measured, taught
from tests.ranks import run_ranks

SIZES = {
    "width": 48, "encoder_layers": 1, "decoder_layers": 1, "heads": 4, "ffn_width": 96,
    "positions": "sinusoidal", "activation": "relu",
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits spelt in two made-up languages: a word a digit, one of them backwards."""
    random, place = np.random.default_rng(0), tmp_path_factory.mktemp("text")
    rows = [random.integers(0, 10, random.integers(1, 4)) for _ in range(400)]
    for name, letters, step in (
        ("en", "abcdefghij", 1),
        ("xx", "qrstuvwxyz", -1),
        ("yy", "0123456789", 1),
    ):
        lines = ("".join(letters[digit] for digit in row[::step]) for row in rows)
        (place / f"text.{name}").write_text("\n".join(lines) + "\n")
    return place / "text"


def translation(text: Path, model: dict | None = None, **data) -> Translation:
    values = {"tokenizer": "bytes", "max_length": 40, "max_tokens": 512, **data}
    config = ParallelDataConfig(source=str(text), **values)
    return Translation(TranslationConfig(**{**SIZES, **(model or {})}), config, 1)


def test_it_learns_and_uses_its_source_and_its_tag(text: Path) -> None:
    task = translation(text, {"width": 96, "ffn_width": 192}, temperature=1.0, max_tokens=256)
    model = taught(task, 90, batch_size=1, rate=4e-3)
    with torch.no_grad():
        metrics = measured(task, model)
        assert metrics["loss"] < task.baseline()["loss"] / 3  # measured: a tenth
        assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]), rel=1e-4)
        group = task.train_stream(2, 1).batch(150)[0][0]
        right = task.loss(model, [group]).total
        rolled = {name: group[name].roll(1, 0) for name in ("source", "source_mask")}
        assert task.loss(model, [group | rolled]).total > 1.5 * right
        en, xx = map(task.vocabulary.tag, ("en", "xx"))
        swapped = group["source"].clone()
        swapped[:, 0] = torch.where(swapped[:, 0] == en, xx, en)
        assert task.loss(model, [group | {"source": swapped}]).total > 1.5 * right


def test_a_dummy_batch_is_as_full_as_a_group_may_be() -> None:
    """Of the longest sentences, however few fit."""
    for most, count in ((512, 12), (40, 1)):
        one, two = translation(Path("none"), max_tokens=most).dummy_batch(2)
        for name in ("source", "source_mask", "target", "targets"):
            assert one[name].shape == two[name].shape == (count, 40), name
        assert one["predicted"] == count * 40 and one["real"] == one["cells"] == count * 80


def test_label_smoothing_is_torchs_and_off_in_evaluation(text: Path) -> None:
    """Groups add up, and padding changes nothing."""
    task = translation(text, model={"label_smoothing": 0.1, "loss_chunk": 7})
    model = task.build_model()
    [[group]] = task.train_stream(1, 1).batch(0)
    logits = model(group["source"], group["target"], group["source_mask"]).flatten(0, 1)
    smoothed, plain = (
        torch.nn.functional.cross_entropy(
            logits, group["targets"].flatten(), reduction="sum", label_smoothing=share
        ).item()
        for share in (0.1, 0.0)
    )
    loss = task.loss(model, [group])
    assert loss.total.item() == pytest.approx(smoothed, rel=1e-5)
    assert loss.logs["nll"].item() == pytest.approx(plain, rel=1e-5)
    assert loss.count == loss.units == (group["targets"] != -100).sum()
    padding = 1 - group["real"] / group["cells"]
    assert (loss.logs["padding"] / loss.count).item() == pytest.approx(padding, rel=1e-4)
    model.eval()
    wide = dict(group)
    for name, filler in (("source", 65), ("source_mask", False), ("target", 65), ("targets", -100)):
        wide[name] = torch.nn.functional.pad(group[name], (0, 5), value=filler)
    for batch, count in (([group], 1), ([wide], 1), ([group, wide], 2)):
        assert task.loss(model, batch).total.item() == pytest.approx(count * plain, rel=1e-5)


def test_evaluation_sees_every_sentence_in_every_direction(text: Path, tmp_path: Path) -> None:
    task = translation(text, validation_fraction=0.1, max_tokens=64)
    groups = task.validation_groups
    sizes = [stop - start for start, stop in task.text.validation.ranges.values()]
    assert sum(len(numbers) for _, numbers in groups) == 2 * sum(sizes)
    assert len({(d, n) for ds, ns in groups for d, n in zip(ds, ns, strict=True)}) == 2 * sum(sizes)
    ByteTokenizer().save(tmp_path)  # without languages: they are those of the text
    again = translation(text, validation_fraction=0.1, max_tokens=64, tokenizer=str(tmp_path))
    assert again.vocabulary.languages == ("en", "xx", "yy")
    assert all((a[1] == b[1]).all() for a, b in zip(groups, again.validation_groups, strict=True))
    shapes = [(len(each["source"]), max(each[side].shape[1] for side in ("source", "target")))
              for each in task.validation_batches()]  # fmt: skip
    widths = [width for _, width in shapes]
    assert all(rows * width <= 64 for rows, width in shapes)
    assert widths != sorted(widths), "the first batches are like all"
    only = translation(text, validation_fraction=0.1)
    only.directions = [("xx", "en")]
    rows = torch.cat([each["source"][:, 0] for each in only.validation_batches()])
    assert rows.tolist() == [only.vocabulary.tag("en")] * sizes[0]


def test_mistakes_are_answered(text: Path) -> None:
    with pytest.raises(ValueError, match="label_smoothing must be in"):
        TranslationConfig(**SIZES, label_smoothing=1.0)
    with pytest.raises(ValueError, match="'mup' does not support translation"):
        TranslationConfig(**SIZES, parametrization="mup")
    for changes, words in (({"max_tokens": 9}, "at least max_length"),
                           ({"directions": ("en-en",)}, "must be two languages such as"),
                           ({"languages": ("en", "en")}, "at least two languages")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            ParallelDataConfig(**changes)
    with pytest.raises(ValueError, match=r"needs model\.encoder_layers"):
        translation(text, model={"encoder_layers": None, "decoder_layers": None})
    with pytest.raises(ValueError, match=r"vocab_size \(262\) is too small for the 263 tokens"):
        translation(text, model={"vocab_size": 262}).prepare()


def run(text: Path, out: Path, **changes) -> list[dict]:
    values = {
        "data.source": str(text), "data.languages": None, "data.tokenizer": "bytes",
        "data.max_length": 40, "data.max_tokens": 256, "training.steps": 12,
        "training.batch_size": 4, "training.warmup_steps": 4, "training.log_every": 1,
        "training.evaluate_every": 6, "training.save_every": 6, "training.tensorboard": False,
        "training.schedule": "constant", "training.device": "cpu", "training.evaluate_limit": 2,
        **{f"model.{key}": value for key, value in SIZES.items()}, **changes,
    }  # fmt: skip
    recipe = load_recipe("translation/tiny", values)
    out.mkdir(exist_ok=True)
    recipe.save(out / "recipe.yaml")
    train(recipe.build_task(), recipe.training, out, seed=1, report=ProgressBars(quiet=True))
    return read_metrics(out)


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_equal_one_process(text: Path, tmp_path: Path, cache: Path, kind: str) -> None:
    """Ranks tokenise once, cut one batch between them, and sum over all of its tokens."""
    changes = {"data.tokenizer": "bpe", "data.vocab_size": 300}
    changes |= {"training.gradient_accumulation_steps": 2}
    one = run(text, tmp_path / "one", **changes)
    values = yaml.safe_load((tmp_path / "one" / "recipe.yaml").read_text())
    values["training"] |= {"gradient_accumulation_steps": 1, "distributed": kind}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(values))
    shutil.rmtree(cache)
    run_ranks(2, "-m", "magneto", "train", f"{tmp_path}/two.yaml", "--out", f"{tmp_path}/two")
    for mine, theirs in zip(one, read_metrics(tmp_path / "two"), strict=True):
        for key in {"loss", "nll", "padding", "validation_loss"} & mine.keys():
            assert theirs[key] == pytest.approx(mine[key], rel=1e-5)


def test_bleu_may_choose_the_best_checkpoint(text: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("sacrebleu")
    data = {"data.max_length": 12, "data.validation_fraction": 0.1}
    changes = {"data.select_by": "bleu", "data.bleu_sentences": 2}
    rows = run(text, tmp_path / "bleu", **data, **changes)
    found = [row["validation_bleu"] for row in rows if "validation_bleu" in row]
    assert len(found) == 2 and all(0 <= value <= 100 for value in found)
    best = json.loads((tmp_path / "bleu" / "best" / "state.json").read_text())
    assert best["metrics"]["bleu"] == max(found)
    assert translation(text, select_by="bleu").higher_is_better  # both may be 0
    # To translate between steps changes no step.
    plain = run(text, tmp_path / "plain", **data)
    assert [row["loss"] for row in rows if "loss" in row] == [
        row["loss"] for row in plain if "loss" in row
    ]


def test_validation_texts_are_translated_into_their_target(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")

    def translate(_: TextTranslator, texts: list[str], language: str) -> list[TranslationResult]:
        return [TranslationResult([f"{text} in {language}", "worse"], []) for text in texts]

    monkeypatch.setattr(TextTranslator, "translate", translate)
    task = translation(text, select_by="bleu", bleu_sentences=3, validation_fraction=0.1)
    model, found = task.build_model(), dict[tuple[str, str], list[tuple[str, str]]]()
    for batch in task.validation_batches():
        for direction, pairs in task.score(model, batch).predictions or ():
            found.setdefault(direction, []).extend(pairs)
    expected = read_validation_texts(task.data_config, 3).texts
    assert found.keys() == expected.keys() and len(found) == 4
    for direction, pairs in expected.items():
        made = [(f"{source} in {direction[1]}", target) for source, target in pairs]
        assert sorted(found[direction]) == sorted(made)


def test_bleu_and_shares_of_a_model_are_refused_before_any_work(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("MAGNETO_CACHE", str(tmp_path / "cache"))
    words = f"--data {text} --data.languages null --data.select_by bleu --distributed fsdp".split()
    line = refused(capsys, "train", "translation/tiny", "--out", tmp_path / "run", *words)
    assert "data.select_by 'bleu'" in line and "use 'ddp'" in line
    assert not (tmp_path / "run").exists() and not (tmp_path / "cache").exists()


def test_long_sources_are_cut_and_empty_ones_are_not_translated() -> None:
    vocabulary, asked = TranslationVocabulary(ByteTokenizer(), ["de"]), []
    translator = TextTranslator.__new__(TextTranslator)
    translator.vocabulary, translator.max_length, translator.count = vocabulary, 6, 2
    translator.translator = SimpleNamespace(
        search=lambda sources, _: asked.extend(sources) or [[list(b"x"), list(b"y")]] * 2,
        score=lambda sources, found: [[-1.0, -2.0], [-3.0, -4.0]],
    )
    found = translator.translate(["abcd", " \u200b\x07", "abcdef"], "de", scored=True)
    assert asked == [[vocabulary.tag("de"), *b"abcd", vocabulary.end]] * 2
    assert found == [
        TranslationResult(["x", "y"], [-1.0, -2.0]), TranslationResult(["", ""], [0.0, 0.0]),
        TranslationResult(["x", "y"], [-3.0, -4.0], truncated=True),
    ]  # fmt: skip
    assert translator.translate([" "], "de")[0].scores == []


def test_learned_positions_are_the_longest_of_both_sides(text: Path) -> None:
    hf = pytest.importorskip("magneto.hf")
    task = translation(text, {"positions": "learned", "max_length": 9})
    search = hf.BeamSearch(beams=1, longest=40)
    translator = TextTranslator(task.build_model().eval(), task.vocabulary, 40, search)
    assert [each.truncated for each in translator.translate(["a" * 30, "a"], "xx")] == [True, False]


def test_each_direction_is_translated_and_scored_whole(text: Path) -> None:
    """BLEU of a direction is of its sentences in all batches."""
    pytest.importorskip("sacrebleu")

    def translate(texts: list[str], language: str, progress) -> list[TranslationResult]:
        return [TranslationResult([f"{language} {text}"], []) for text in texts]

    pairs, translator = (
        [("a b c d", "de a b c d"), ("x", "y")],
        SimpleNamespace(translate=translate),
    )
    scores, written = score_directions(translator, {("en", "de"): pairs}, SILENT)
    assert written == {("en", "de"): ["de a b c d", "de x"]}
    parts = [[(("en", "de"), [(each, other)])]
             for each, (_, other) in zip(written["en", "de"], pairs, strict=True)]  # fmt: skip
    found = translation(text, select_by="bleu").summarise({"loss": 1.0, "count": 1}, parts)
    assert found["bleu"] == scores["en", "de"].bleu < 100


def test_printed_scores_have_the_means_out_of_and_into_the_pivot() -> None:
    pytest.importorskip("sacrebleu")
    scores = {("en", "de"): TranslationScores(30.0, 50.0, 7),
              ("de", "en"): TranslationScores(20.0, 44.0, 8)}  # fmt: skip
    result = {"weights": "best", "data": "text", **describe_scores("test", scores, "en")}
    assert [" ".join(line.split()) for line in score_lines(result, scores)[2:7]] == [
        "en-de 7 30.00 50.00", "de-en 8 20.00 44.00", "mean en->X 30.00 50.00",
        "mean X->en 20.00 44.00", "mean average 25.00 47.00",
    ]  # fmt: skip
