"""Text classification learns, begins with other runs, and is measured on other data."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from magneto.data.stream import evaluation_order
from magneto.data.tokenizer import ByteTokenizer, train_bpe
from magneto.fields import field_types, free_fields
from magneto.files import MANIFEST, fingerprint, write_json
from magneto.language.classification import (
    TextClassification,
    check_pretrained,
    class_scores,
    constant_prediction,
    imbalance_warning,
    number_scores,
    pretrained_weights,
    score_warnings,
)
from magneto.language.config import (
    GLUE,
    ClassificationDataConfig,
    MaskedLanguageModelConfig,
    MaskedTextDataConfig,
    TextClassifierConfig,
    TextDataConfig,
    TextEncoderConfig,
)
from magneto.language.labelled_texts import EncodedTexts, TextPair, build_input, label_values
from magneto.language.models import MaskedLanguageModel, TextClassifier
from magneto.progress import ProgressBars
from magneto.recipe import RUN_FILE, load_recipe
from magneto.runs import load_run, pretrained_run
from magneto.training.checkpoint import load_pieces, model_pieces
from magneto.training.loop import train
from magneto.training.task import install_assets, staged_assets
from tests.evaluating import measured, taught
from tests.recorded_progress import RecordedProgress

SIZES = {
    "width": 32, "layers": 2, "heads": 4, "ffn_width": 64, "positions": "rotary",
    "embedding_scale": "none", "head_dropout": 0.0,
}  # fmt: skip


def write_pairs(path: Path, count: int = 600, seed: int = 0) -> Path:
    """Pairs of words of a or b alone: the same letter? And how many has the first?"""
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        first, second = ("ab"[i] for i in random.integers(0, 2, 2))
        length = int(random.integers(1, 6))
        same = "same" if first == second else "other"
        lines.append(f"{first * length}\t{second * int(random.integers(1, 6))}\t{same}\t{length}")
    path.write_text("one\ttwo\tanswer\tletters\n" + "\n".join(lines) + "\n")
    return path


def pairs(path: Path, model: dict | None = None, **data) -> TextClassification:
    values = {
        "text_column": "one", "pair_column": "two", "label_column": "answer", "tokenizer": "bytes",
        "max_length": 24, **data,
    }  # fmt: skip
    config = ClassificationDataConfig(source=str(path), **values)
    return TextClassification(TextClassifierConfig(**{**SIZES, **(model or {})}), config, 1)


def test_a_run_keeps_a_derived_length(tmp_path: Path) -> None:
    """Two of 200 pairs are longer; a resumed run and an opened one have the run's length."""
    rows = [("a" * (20 + number % 2), "b" * (1 + number % 7)) for number in range(198)]
    rows += [("a" * 300, "b")] * 2
    lines = (f"{one}\t{two}\t{'xy'[len(one) % 2]}" for one, two in rows)
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("one\ttwo\tanswer\n" + "\n".join(lines) + "\n")
        lines = ["a\tb\tx", "aa\tb\ty"]
    recipe = load_recipe("text-classification/tiny", {
        "data.source": str(tmp_path), "data.text_column": "one", "data.pair_column": "two",
        "data.label_column": "answer", "data.tokenizer": "bytes", "data.max_length": None,
        "model.layers": 1, "training.tensorboard": False, "training.device": "cpu",
    })  # fmt: skip
    run, progress = tmp_path / "run", RecordedProgress()
    recipe.build_task().prepare(progress)
    assert "max_length 32, enough for 99.0% of 200 training texts" in progress.lines
    for steps in (1, 2):
        training = replace(recipe.training, steps=steps)
        train(
            recipe.build_task(), training, run, seed=1, resume=steps == 2,
            report=ProgressBars(quiet=True), save_recipe=lambda: recipe.save(run / RUN_FILE),
        )  # fmt: skip
    (tmp_path / "train.tsv").unlink()
    opened = load_run(run, "auto", {})
    assert opened.recipe.data.max_length == 32
    asked = [TextPair(" ", "b"), TextPair("a" * 31, None), TextPair("a" * 20, "b" * 8)]
    found = opened.task.predict(opened.model, asked)
    assert [each.truncated for each in found] == [False, True, False] and not found[0].label


def test_a_tokenizer_is_trained_on_training_texts_alone(tmp_path: Path) -> None:
    for name, letter in (("train", "a"), ("dev", "z")):
        rows = [f"{letter * 4}\t{letter * 4}\t{label}" for label in ("x", "y") * 9]
        (tmp_path / f"{name}.tsv").write_text("one\ttwo\tanswer\n" + "\n".join(rows) + "\n")
    pieces = pairs(tmp_path, tokenizer="bpe", vocab_size=262).tokenizer.pieces()
    assert "aa" in pieces and "zz" not in pieces


def test_numbers_are_learnt(tmp_path: Path) -> None:
    write_pairs(tmp_path / "train.tsv")
    write_pairs(tmp_path / "dev.tsv", 100, seed=1)
    task = pairs(tmp_path, {"token_types": 2}, label_column="letters", target="number")
    assert task.primary_metric == "pearson"
    model = taught(task, 100, rate=5e-3)
    metrics, batch = measured(task, model), task.validation_batches()[0]
    assert metrics["pearson"] > 0.9 and metrics["spearman"] > 0.9 and metrics["loss"] < 0.4
    assert task.loss(model, batch).count == len(batch["labels"])
    other = {**batch, "token_types": 1 - batch["token_types"]}
    assert not torch.allclose(task.outputs(model, other), task.outputs(model, batch))
    asked = [TextPair(letter * n, "bb") for n in (5, 1, 3) for letter in "ab"]
    answers = [float(each.label) for each in task.predict(model, [TextPair("", "b"), *asked])[1:]]
    assert np.corrcoef(answers, [5, 5, 1, 1, 3, 3])[0, 1] > 0.9
    assert task.dummy_batch(2)["labels"].dtype == batch["labels"].dtype == torch.float32


def test_hidden_tokens_are_others_each_time_and_never_what_frames_a_text(tmp_path: Path) -> None:
    source = write_pairs(tmp_path / "rows.tsv")
    whole, some = (pairs(source, token_dropout=share) for share in (0.0, 0.3))
    count = len(some.train.lengths)  # so that a batch is an epoch
    masks = []
    for epoch, seed in ((0, 1), (1, 1), (0, 2)):
        shown, hidden = (task.train_stream(count, seed) for task in (whole, some))
        [before], [after] = shown.batch(epoch), hidden.batch(epoch)
        changed = before["tokens"] != after["tokens"]
        assert (after["tokens"][changed] == some.tokenizer.mask).all()
        framing = [whole.tokenizer.begin, whole.tokenizer.end, whole.tokenizer.pad]
        inner = ~torch.isin(before["tokens"], torch.tensor(framing))
        assert not (changed & ~inner).any()
        assert changed.sum() / inner.sum() == pytest.approx(0.3, abs=0.03)
        masks.append(changed[np.argsort(hidden.plan(epoch)[:, 1])])
    assert masks[0].shape == masks[1].shape and not torch.equal(*masks[:2])
    assert not torch.equal(masks[0], masks[2])
    orders = [some.train_stream(count, seed).plan(0)[:, 1] for seed in (1, 2)]
    assert not np.array_equal(*orders)
    assert len(masks[0].unique(dim=0)) > 100  # of two texts of 1 to 5 letters there are 25
    assert torch.equal(some.validation.batch(np.arange(9), 0)["tokens"],
                       whole.validation.batch(np.arange(9), 0)["tokens"])  # fmt: skip


def test_the_second_validation_set_has_its_name(tmp_path: Path) -> None:
    for name in ("train", "dev_matched", "dev_mismatched"):
        write_pairs(tmp_path / f"{name}.tsv", 20)
    write_pairs(tmp_path / "dev_mismatched.tsv", 70, seed=1)
    task = pairs(tmp_path)
    model = task.build_model().eval()
    metrics, limited = measured(task, model), measured(task, model, limit=1)
    assert {"accuracy", "accuracy_mismatched", "loss_mismatched"} <= set(metrics)
    # Each set is scored as if it were alone; a limit takes as many batches of each.
    labels = np.concatenate([label_values(t, task.labels) for t in task.texts.validation.values()])
    # 20 of the first set are before.
    parts = np.arange(70), np.flatnonzero(evaluation_order(70) < 64)
    with torch.no_grad():
        whole, first = (
            task.loss(model, task._batch(task.validation, labels, 20 + part)) for part in parts
        )
    assert metrics["loss_mismatched"] == pytest.approx(whole.total.item() / 70, rel=1e-5)
    assert limited["loss_mismatched"] == pytest.approx(first.total.item() / 64, rel=1e-5)
    assert metrics["accuracy_mismatched"] == whole.logs["accuracy"].item() / 70
    assert limited["loss"] == pytest.approx(metrics["loss"], rel=1e-6)  # 20 texts: one batch
    common = np.bincount(label_values(task.texts.train, task.labels)).argmax()
    assert task.baseline()["accuracy_mismatched"] == np.mean(labels[20:] == common)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "rows.tsv")
    with pytest.raises(ValueError, match=r"model\.classes is 3, but .* needs 2"):
        pairs(path, {"classes": 3}).prepare()
    with pytest.raises(ValueError, match=r"data\.max_length \(24\) is above"):
        pairs(path, {"positions": "learned", "max_length": 8}).prepare()
    train_bpe(["of no matter"] * 9, 270, tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match=r"data\.token_dropout needs a tokenizer with a mask"):
        pairs(path, tokenizer=str(tmp_path / "tokenizer.json"), token_dropout=0.1).prepare()


def test_a_baseline_needs_no_length(tmp_path: Path) -> None:
    """A comparison asks tasks that are not prepared, so an open length is not derived yet."""
    path = write_pairs(tmp_path / "rows.tsv")
    task, known = (pairs(path, max_length=most, validation_fraction=0.5) for most in (None, 24))
    labels = torch.cat([batch["labels"] for batch in known.validation_batches()[:2]]).tolist()
    assert len(labels) == 128
    assert task.baseline(2)["accuracy"] in (sum(labels) / 128, 1 - sum(labels) / 128)


def test_recipes_have_the_shape_of_what_they_begin_with() -> None:
    names = field_types(TextEncoderConfig).keys() - free_fields(TextEncoderConfig)
    for name in ("small", *GLUE):
        origin = load_recipe("masked-lm/small" if name == "small" else "masked-lm/base").model
        mine = load_recipe(f"text-classification/{name}").model
        assert {n: getattr(mine, n) for n in names} == {n: getattr(origin, n) for n in names}, name


def test_a_run_is_not_resumed_on_other_validation_texts(tmp_path: Path) -> None:
    """The best checkpoint was chosen across two validation sets."""
    for name in ("train", "dev"):
        write_pairs(tmp_path / f"{name}.tsv", 20)
    with staged_assets(pairs(tmp_path), tmp_path / "run") as made:
        install_assets(made)
    with staged_assets(pairs(tmp_path), tmp_path / "run"):
        pass
    write_pairs(tmp_path / "dev.tsv", 20, seed=1)
    refused = pytest.raises(ValueError, match=r"validation\.digest does not match")
    with refused, staged_assets(pairs(tmp_path), tmp_path / "run"):
        pass


SHAPE = {
    "width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "vocab_size": 50, "positions": "rotary",
}  # fmt: skip


def save(run: Path, tensors: dict[str, torch.Tensor]) -> None:
    file = run / "final" / "model.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, file)
    write_json(file.parent / MANIFEST, {file.name: fingerprint(file)})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A masked language model's run, as far as its weights go."""
    torch.manual_seed(1)
    model = MaskedLanguageModel(MaskedLanguageModelConfig(**SHAPE))
    run = tmp_path / "mlm-sub"
    save(run, {k: v for k, v in model.state_dict().items() if k != "head.vocabulary.weight"})
    shape = {**SHAPE, "placement": "sub", "dropout": 0.3, "tie_embeddings": True}
    recipe = load_recipe("masked-lm/tiny").to_mapping()
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"model": shape}))
    return run


def test_an_encoder_is_taken_over_whole(run: Path) -> None:
    config = TextClassifierConfig(
        **SHAPE, classes=3, pretrained=str(run.parent / "mlm-{placement}")
    )
    assert pretrained_run(config) == run
    check_pretrained(config)  # another dropout is no other shape
    model = TextClassifier(config)
    before = model.text_encoder.embedding.table.weight.clone()
    given = pretrained_weights(model.text_encoder, run)
    pieces = model_pieces(model)
    load_pieces({name: pieces[name] for name in given}, given, run)
    torch.manual_seed(1)
    origin = MaskedLanguageModel(MaskedLanguageModelConfig(**SHAPE)).text_encoder
    for name, tensor in origin.state_dict().items():
        assert torch.equal(model.text_encoder.state_dict()[name], tensor), name
    assert not torch.equal(before, model.text_encoder.embedding.table.weight)


def test_runs_with_another_encoder_or_none(run: Path) -> None:
    wrong = {**SHAPE, "layers": 3, "positions": "learned"}
    config = TextClassifierConfig(**wrong, placement="pre", pretrained=str(run))
    fitting = r"set --model\.layers 2 --model\.placement sub --model\.p"
    with pytest.raises(ValueError, match=fitting):
        check_pretrained(config)
    with pytest.raises(FileNotFoundError, match=r"did you mean .*mlm-sub"):
        check_pretrained(replace(config, pretrained=str(run.parent / "mlm-sib")))
    encoder = TextClassifier(TextClassifierConfig(**wrong, classes=2)).text_encoder
    with pytest.raises(ValueError, match=r"no weights text_encoder\.encoder\.layers\.2"):
        pretrained_weights(encoder, run)
    for changed in ({"vocab_size": 51}, {"layers": 1}):  # as with other tokens
        model = TextClassifier(TextClassifierConfig(**{**SHAPE, **changed}, classes=2))
        given, pieces = pretrained_weights(model.text_encoder, run), model_pieces(model)
        with pytest.raises(ValueError, match="weights of another model"):
            load_pieces({k: v for k, v in pieces.items() if k in given}, given, run)
    save(run, {"head.weight": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"no weights text_encoder\..* Give a masked-lm run"):
        pretrained_weights(encoder, run)


def test_wrong_fields_are_answered() -> None:
    with pytest.raises(ValueError, match="did you mean cola"):
        ClassificationDataConfig(glue="colla")  # type: ignore[arg-type]
    for labels in (("a",), ("a", "b", "a")):
        with pytest.raises(ValueError, match="labels must be"):
            ClassificationDataConfig(labels=labels)
    for config, name, least in (
        (TextDataConfig, "vocab_size", 257), (ClassificationDataConfig, "vocab_size", 260),
        (MaskedTextDataConfig, "vocab_size", 260), (MaskedTextDataConfig, "max_length", 2),
    ):  # fmt: skip
        assert getattr(config(**{name: least}), name) == least
        with pytest.raises(ValueError, match=f"{name} must be {least} "):
            config(**{name: least - 1})
    assert ClassificationDataConfig(glue="mrpc", metric="f1").primary_metric == "f1"
    metrics = {name: ClassificationDataConfig(glue=name).primary_metric for name in GLUE}
    others = {"cola": "matthews", "stsb": "pearson"}
    assert metrics == {**dict.fromkeys(GLUE, "accuracy"), **others}
    with pytest.raises(ValueError, match="'f1' does not apply to target 'number'"):
        ClassificationDataConfig(glue="stsb", metric="f1")
    with pytest.raises(ValueError, match="builtin:word-order"):
        ClassificationDataConfig(source="builtin:word")


def test_inputs_of_single_texts_and_pairs() -> None:
    words = ByteTokenizer()
    s, e = words.begin, words.end
    one = ClassificationDataConfig(max_length=8)
    assert build_input([1, 2], None, words, one) == ([s, 1, 2, e], 4, False)
    assert build_input([1, 2], [3], words, one) == ([s, 1, 2, e, e, 3, e], 5, False)
    single = ClassificationDataConfig(max_length=8, separator="single")
    assert build_input([1, 2], [3], words, single) == ([s, 1, 2, e, 3, e], 4, False)
    assert build_input([1, 2], [3, 4], words, one) == ([s, 1, 2, e, e, 3, 4, e], 5, False)
    assert build_input([1] * 6, None, words, one) == ([s, *[1] * 6, e], 8, False)
    assert build_input([1] * 9, None, words, one) == ([s, *[1] * 6, e], 8, True)
    assert build_input([1] * 9, [3], words, one) == ([s, 1, 1, 1, e, e, 3, e], 6, True)
    assert build_input([1], [3] * 9, words, one) == ([s, 1, e, e, 3, 3, 3, e], 4, True)
    assert build_input([1] * 9, [3] * 9, words, one) == ([s, 1, 1, e, e, 3, 3, e], 5, True)
    rows = [np.array([s, 1, e, 3, e]), np.array([s, e])]
    batch = EncodedTexts(rows, np.array([3, 2]), []).batch([1, 0], pad=7)
    assert batch["tokens"].tolist() == [[s, e, 7, 7, 7], [s, 1, e, 3, e]]
    assert batch["token_types"].tolist() == [[0] * 5, [0, 0, 0, 1, 1]]
    largest = pairs(Path("none"), max_length=8).dummy_batch(3)
    assert largest["mask"].shape == largest["tokens"].shape == (3, 8) and largest["mask"].all()


def test_scores() -> None:
    """The second of two classes is the positive one; of more, F1 is the mean."""
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 0])
    answers = np.array([1, 1, 0, 1, 0, 0, 0, 0])  # 2 right, 1 missed, 1 too many, 4 rejected
    matthews = (2 * 4 - 1 * 1) / math.sqrt(3 * 3 * 5 * 5)
    expected = {"accuracy": 6 / 8, "f1": 2 * 2 / (2 * 2 + 1 + 1), "matthews": matthews}
    assert class_scores(answers, labels, 2) == pytest.approx(expected)
    three = class_scores(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 2]), 4)["f1"]
    assert three == pytest.approx((2 / 3 + 2 / 4 + 0 + 0) / 4)  # a class is unused
    same = class_scores(np.zeros(4, int), np.array([0, 0, 0, 1]), 2)
    assert same == {"accuracy": 0.75, "f1": 0.0, "matthews": 0.0}
    numbers = np.array([1.0, 2.0, 3.0])
    for one, other in ((np.full(3, 2.0), numbers), (numbers, np.full(3, 2.0))):
        assert set(number_scores(one, other).values()) == {0.0}
    constant, loss = constant_prediction(np.array([1.0, 2.0, 6.0]), np.array([1.0, 4.0]), 0)
    assert constant.tolist() == [3.0, 3.0] and loss == 2**2 + 1**2
    rising = number_scores(np.array([1.0, 2.0, 9.0]), numbers)
    assert rising == pytest.approx({"pearson": 8 / math.sqrt(2 * 38), "spearman": 1.0})
    none = number_scores(np.array([math.nan, 1.0, 2.0]), numbers)
    assert all(math.isnan(value) for value in none.values())


def test_classes_of_unequal_size_and_scores_of_0_are_remarked_on(tmp_path: Path) -> None:
    line = imbalance_warning(np.array([0] * 90 + [1] * 10), ("no", "yes"))
    assert "'no' has 90.0%" in line and "'yes' has 10.0%" in line and "--data.metric f1" in line
    assert imbalance_warning(np.array([0] * 70 + [1] * 30), ("no", "yes")) == ""
    for few in (3, 4):  # of a hundred; a tenth of an equal share is 3.3
        values = np.array([0] * 60 + [1] * (40 - few) + [2] * few)
        assert (imbalance_warning(values, "abc") == "") == (few == 4)
    rows = write_pairs(tmp_path / "rows.tsv", 40)
    rows.write_text(rows.read_text().replace("other", "same") + "a\tb\tother\t1\n" * 5)
    pairs(rows).prepare(progress := RecordedProgress())
    assert any("Imbalanced classes: 'same'" in line for line in progress.lines)
    table = write_pairs(tmp_path / "one.tsv", 1)
    task = pairs(table, validation_source=str(table), labels=("same", "other"))
    task.prepare(progress := RecordedProgress())
    assert len(progress.lines) == 1  # nothing of training texts
    with pytest.raises(ValueError, match="omit the validation source"):
        task.train_stream(1, 1)
    zero = {"accuracy": 0.9, "f1": 0.0, "matthews": 0.0}
    (line,) = score_warnings(zero, ("no", "yes"))
    assert "f1 is 0" in line and "'yes'" in line and "data.labels (no, yes)" in line
    assert score_warnings({"f1": 0.5, "matthews": 0.2}, ("no", "yes")) == []
    assert score_warnings({"f1": 0.0, "matthews": 0.2}, "abc") == []
