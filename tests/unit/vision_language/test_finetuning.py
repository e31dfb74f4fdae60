"""What holds of every task that begins with an encoder: runs, pieces, broken images, pictures."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from magneto.config import ConfigError
from magneto.data.tokenizer import ByteTokenizer
from magneto.files import read_json
from magneto.recipe import RUN_FILE, load_recipe
from magneto.runs import load_run
from magneto.training.logging import PLATEAU_FILE
from magneto.training.task import figures_of
from magneto.vision.config import AugmentationConfig
from magneto.vision_language.config import VisionLanguageConfig
from magneto.vision_language.finetuning import held_config, load_pretrained, pretrained_inputs
from magneto.weights import StoredTensor, open_tensors
from tests.evaluating import measured
from tests.problems import listed
from tests.recorded_progress import RecordedProgress
from tests.unit.vision_language.small_tasks import (
    SMALL,
    TASKS,
    question_task,
    run,
    statement_task,
    train_model,
)

every_task = pytest.mark.parametrize("name", TASKS)
# Of captions, few words are written; of statements, few are drawn.
SHORT: dict[str, Any] = {"image-captioning": {"max_length": 8},
                         "visual-reasoning": {"max_length": 8}}  # fmt: skip


@every_task
def test_broken_images_are_replaced_or_marked(name: str, tmp_path: Path) -> None:
    """One to train on can't be decoded; of those to validate on one can't, and one is not there.

    Where none is left, no picture is drawn.
    """
    task = TASKS[name](tmp_path, SHORT.get(name))
    splits = task.splits
    broken, lost = (Path(splits.validation.name(row).split(", ")[0]) for row in (0, -1))
    first = Path(splits.train.name(0).split(", ")[0])
    for path in (first, broken):
        path.write_bytes(b"no image")
    lost.unlink()
    task = TASKS[name](tmp_path, SHORT.get(name))
    count = task.train_stream(4, 1).examples
    (batch,) = task.train_stream(count, 1).batch(0)
    assert batch["broken"].sum() > 0 and len(batch["images"]) % count == 0
    assert measured(task, task.build_model())["broken"] >= 2
    task.problems.write_to(tmp_path)
    names = {Path(path).name for _, given, _ in listed(tmp_path) for path in given.split(", ")}
    assert {first.name, broken.name, lost.name} <= names
    held = splits.validation
    for path in ", ".join(map(held.name, range(len(held)))).split(", "):
        Path(path).write_bytes(b"no image")
    assert figures_of(task, task.build_model().eval()) == []


@every_task
def test_training_images_alone_are_augmented(name: str, tmp_path: Path) -> None:
    task = TASKS[name](tmp_path, augmentation=AugmentationConfig(erasing=1.0))
    for batch, noisy in ((task.train_stream(4, 1).batch(0)[0], True),
                         (task.validation_batches()[0], False)):  # fmt: skip
        # Images have one colour each.
        assert ((batch["images"].flatten(2).std(2) > 0.1).any(1) == noisy).all()


@every_task
def test_a_dummy_batch_has_images_and_the_longest_texts(name: str) -> None:
    """It needs no data."""
    fields = {"answers": 7} if name == "visual-question-answering" else {}
    batch = TASKS[name](Path("none"), fields, source="none").dummy_batch(3)
    together = 2 if name == "visual-reasoning" else 1
    assert batch["images"].shape == (3 * together, 3, 8, 8)
    assert len(batch["samples"].token_ids) == 3 * together * 24


def test_another_run_begins_with_its_encoder_and_tokenizer(tmp_path: Path) -> None:
    run(statement_task(tmp_path / "data", tokenizer="bpe", vocab_size=270), tmp_path / "first")
    model = {"pretrained": str(tmp_path / "first")}
    task = statement_task(tmp_path / "data", model, tokenizer="auto")
    task.prepare()
    assert task.tokenizer.vocab_size == 270
    with pytest.raises(ValueError, match=r"give --data\.normalisation half"):
        statement_task(tmp_path, model, source="missing", normalisation="imagenet").prepare()
    run(task, tmp_path / "second")
    (tmp_path / "first").rename(tmp_path / "gone")
    opened = load_run(tmp_path / "second", "final", {})
    assert opened.evaluate().metrics["accuracy"] in [n / 12 for n in range(13)]


def test_a_run_keeps_a_derived_length(tmp_path: Path) -> None:
    """Questions have at most 18 bytes. Longer statements begin with their run."""
    progress, data = RecordedProgress(), tmp_path / "data"
    for folder in (data, tmp_path / "statements"):
        folder.mkdir()
    recipe = {"max_length": None, "pooling": "mask_token"}
    task = question_task(data, recipe)
    task.prepare(progress)
    assert "max_length 24, enough for 100.0% of 20 training texts" in progress.lines
    longer = question_task(data, recipe)
    longer.training_texts = lambda: ["x" * 22]  # with <s>, <mask> and </s> 25 tokens
    longer.prepare()
    assert longer.build_model().config.max_length == 32
    made = tmp_path / "run"
    run(question_task(data, recipe), made, steps=1)
    run(question_task(data, recipe), made, steps=2, resume=True)
    (data / "vqa").rename(tmp_path / "gone")
    opened: Any = load_run(made, "final", {})
    assert opened.recipe.model.max_length == opened.model.config.max_length == 24
    for begun, length in (({}, 32), ({"pretrained": str(made)}, 24)):
        statements = statement_task(tmp_path / "statements", {**recipe, **begun})
        statements.prepare()
        assert statements.build_model().config.max_length == length


def test_a_mask_stands_behind_the_words(tmp_path: Path) -> None:
    task = question_task(tmp_path, {"pooling": "mask_token", "max_length": 8})
    tokenizer = ByteTokenizer()
    begin, mask, end = tokenizer.begin, tokenizer.mask, tokenizer.end
    task._progress = RecordedProgress()
    framed = task.framed("training", ["", "abcde", "abcdef"])
    assert task._progress.lines[0].startswith("training: 1 ")
    assert [row.tolist() for row in framed] == [
        [begin, mask, end], [begin, *b"abcde", mask, end], [begin, *b"abcde", mask, end]
    ]  # fmt: skip
    assert task.framed_whole("abcde").tolist() == framed[1].tolist()
    with pytest.raises(ConfigError, match="max_length must be at least 4, not 3"):
        question_task(tmp_path, {"pooling": "mask_token", "max_length": 3})
    with pytest.raises(
        ValueError, match="the question has 6 tokens, more than the model's maximum of 5"
    ):
        task.framed_whole("abcdef")
    task = question_task(tmp_path, {"pooling": "mask_token"})
    task.tokenizer.mask = None
    with pytest.raises(ValueError, match=r"mask_token', but the tokenizer has no mask"):
        task.framed("training", ["a"])


@pytest.fixture(scope="module")
def pretrained(
    tmp_path_factory: pytest.TempPathFactory, module_cache: Path, few_pairs: None
) -> Path:
    """A run of masked data modelling, of one step."""
    pytest.importorskip("tokenizers")
    place = tmp_path_factory.mktemp("pretrained") / "sub"
    train_model(place, training__steps=1)
    return place


def begun(folder: Path, run: Path, **changes: Any) -> Any:
    """A task on questions that begins with the run."""
    shape = {key.removeprefix("model."): value for key, value in SMALL.items()
             if key.startswith("model.") and key != "model.codes"}  # fmt: skip
    return question_task(folder, {**shape, "pretrained": str(run), **changes}, tokenizer="auto")


def test_what_is_taken_of_a_pretrained_run(pretrained: Path, tmp_path: Path) -> None:
    """Weights and tokenizer, at its own size and another; it keeps what frequencies score."""
    task, progress = begun(tmp_path, pretrained), RecordedProgress()
    task.prepare(progress)
    model, stored = task.build_model(), open_tensors(pretrained / "final")
    weights = task.initial_weights()
    assert {*weights} == {n for n in model.state_dict() if n.startswith("encoder.")}
    for name, tensor in weights.items():
        given = tensor.read() if isinstance(tensor, StoredTensor) else tensor
        assert torch.equal(given, stored[name].read()), name
    (line,) = [line for line in progress.lines if "initialised randomly: pooler" in line]
    assert "unused: encoder.transformer.final_norm" in line and "patch_head" in line
    assert task.tokenizer.decode(task.tokenizer.encode(["a red circle"])[0]) == "a red circle"
    assert read_json(pretrained / PLATEAU_FILE)["loss"] > 1
    placed = pretrained.parent / "{placement}"
    other = begun(tmp_path, placed, image_size=40, max_length=20)
    weights = other.initial_weights()
    shapes = {name: tensor.shape for name, tensor in other.build_model().state_dict().items()}
    assert all(tensor.shape == shapes[name] for name, tensor in weights.items())
    assert sum(isinstance(tensor, torch.Tensor) for tensor in weights.values()) == 2  # were read
    assert weights["encoder.vision_embedding.positions.weight"].shape == (26, 16)
    name = "encoder.text_embedding.positions.weight"
    assert torch.equal(weights[name], stored[name].read()[:20])


def test_an_exported_model_is_read_with_all_its_fields(tmp_path: Path) -> None:
    """Also with those that are false or null where the default is not."""
    shape: dict[str, Any] = {"width": 16, "heads": 2, "max_length": 9, "vocab_size": 20}
    config = VisionLanguageConfig(**shape, bias=False, channels=None, experts="shared_attention")
    (tmp_path / "config.json").write_text(json.dumps({"core": {**asdict(config), "codes": 8}}))
    assert held_config(tmp_path) == config


def test_what_does_not_fit_a_pretrained_run(pretrained: Path, tmp_path: Path) -> None:
    for changes, words in (
        ({"layers": 3, "placement": "pre"}, r"set --model.layers 1 --model.placement sub"),
        ({"max_length": 41}, r"--model.max_length 40 or less"),
        ({"vocab_size": 600}, r"words.table.weight is \(\d+, 16\) in the run"),
    ):
        with pytest.raises(ValueError, match=words):
            begun(tmp_path, pretrained, **changes).prepare()
    with pytest.raises(FileNotFoundError, match=r"no run in .*; did you mean .*sub\?"):
        begun(tmp_path, Path(f"{pretrained}b")).prepare()
    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "config.json").write_text("{}")
    for _ in range(2):  # without a tokenizer, then with one alone
        with pytest.raises(FileNotFoundError, match=r"preprocessor_config.json: export"):
            pretrained_inputs(begun(tmp_path, exported).model_config)
        ByteTokenizer().save(exported)
    held = held_config(pretrained)
    (exported / "config.json").write_text(json.dumps({"core": asdict(held)}))
    save_file({"adapter.weight": torch.ones(2)}, exported / "model.safetensors")
    model = begun(tmp_path, pretrained).build_model()
    with pytest.raises(ValueError, match=r"exported has no tensors encoder\.\*: "):
        load_pretrained(model, replace(model.config, pretrained=str(exported)))
    load_recipe("masked-lm/tiny").save(tmp_path / RUN_FILE)
    with pytest.raises(ValueError, match="not a vision-language run"):
        begun(tmp_path, tmp_path).prepare()
