"""What holds of every task that begins with an encoder: runs, pieces, broken images, pictures."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from magneto.config import ConfigError
from magneto.data.tokenizer import ByteTokenizer
from magneto.recipe import load_recipe
from magneto.runs import load_run
from magneto.training.task import figures_of
from magneto.vision.config import AugmentationConfig
from tests.evaluating import measured, reads_while_scoring
from tests.problems import listed
from tests.said import Said
from tests.unit.vision_language.small_tasks import TASKS, question_task, run, statement_task

every_task = pytest.mark.parametrize("name", TASKS)
# Of captions, few words are written.
SHORT: dict[str, Any] = {"image-captioning": {"max_length": 8}}


@every_task
def test_a_run_is_the_same_however_it_is_made(name: str, tmp_path: Path) -> None:
    """Bit for bit on one process, resumed, with a worker; micro-batches to rounding."""
    (tmp_path / "data").mkdir()

    def made(out: str, **changes: Any) -> dict[str, torch.Tensor]:
        augmented = AugmentationConfig(crop="random_resized", flip=0.5)
        task = TASKS[name](tmp_path / "data", SHORT.get(name), augmentation=augmented)
        return run(task, tmp_path / out, **changes)

    whole = made("whole", num_workers=1)
    made("resumed", steps=2, save_every=2)
    resumed = made("resumed", resume=True)
    assert all(torch.equal(resumed[key], tensor) for key, tensor in whole.items())
    for key, tensor in made("cut", gradient_accumulation_steps=2).items():
        torch.testing.assert_close(tensor, whole[key], rtol=1e-4, atol=1e-5)


@every_task
def test_pieces_of_a_batch_add_up(name: str, tmp_path: Path) -> None:
    """Ranks wait for every gradient, also of what the top layer makes of what is not read."""
    task = TASKS[name](tmp_path)
    model = task.build_model()
    (batch,) = task.train_stream(4, 1).batch(0)
    loss = task.loss(model, batch)
    halves = [task.loss(model, half) for half in task.train_stream(4, 1).batch(0, 2, [0, 1])]
    torch.testing.assert_close(halves[0].total + halves[1].total, loss.total)
    assert loss.logs["broken"] == 0 and halves[0].count + halves[1].count == loss.count
    loss.total.backward()
    assert all(weight.grad is not None for weight in model.parameters())


@every_task
def test_nothing_waits_for_the_device(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reads_while_scoring(TASKS[name](tmp_path, SHORT.get(name)), monkeypatch) == []


@every_task
def test_broken_images_are_replaced_or_marked(name: str, tmp_path: Path) -> None:
    """One to train on can't be decoded; of those to validate on one can't, and one is not there."""
    task = TASKS[name](tmp_path, SHORT.get(name))
    splits = task.splits
    broken, lost = (Path(splits.validation.images[0].name(row)) for row in (0, -1))
    first = Path(splits.train.images[0].name(0))
    for path in (first, broken):
        path.write_bytes(b"no image")
    lost.unlink()
    task = TASKS[name](tmp_path, SHORT.get(name))
    count = task.train_stream(4, 1).examples
    (batch,) = task.train_stream(count, 1).batch(0)
    assert batch["broken"].sum() > 0 and len(batch["images"]) % count == 0
    assert measured(task, task.build_model())["broken"] >= 2
    task.problems.keep_in(tmp_path)
    names = {Path(path).name for _, given, _ in listed(tmp_path) for path in given.split(", ")}
    assert {first.name, broken.name, lost.name} <= names


@every_task
def test_pictures_for_a_report(name: str, tmp_path: Path) -> None:
    """Broken images are not drawn."""
    from PIL import Image

    task = TASKS[name](tmp_path, SHORT.get(name))
    model = task.build_model().eval()
    (figure,) = figures_of(task, model)
    picture = np.asarray(Image.open(io.BytesIO(figure.image)))  # type: ignore[arg-type]
    assert picture.std() > 10 and min(picture.shape[:2]) > 150
    for rows in task.splits.validation.images:
        for index in range(len(rows)):
            Path(rows.name(index)).write_bytes(b"no image")
    assert figures_of(task, model) == []


@pytest.mark.parametrize("make", [question_task, statement_task])
def test_where_words_look_without_words(make: Any, tmp_path: Path) -> None:
    task = make(tmp_path)
    (figure,) = figures_of(task, task.build_model().eval())
    assert "layer 1 of" in figure.caption
    alone = make(tmp_path, input={question_task: "image", statement_task: "images"}[make])
    assert figures_of(alone, alone.build_model().eval()) == []


def test_another_run_begins_with_its_encoder_and_tokenizer(tmp_path: Path) -> None:
    first = run(statement_task(tmp_path / "data", tokenizer="bpe", vocab_size=270),
                tmp_path / "first")  # fmt: skip
    model = {"pretrained": str(tmp_path / "first")}
    task = statement_task(tmp_path / "data", model, tokenizer="auto")
    task.prepare()
    weights = task.initial_weights()
    assert weights and all(name.startswith("encoder.") for name in weights)
    assert all(torch.equal(tensor.read(), first[name]) for name, tensor in weights.items())
    assert task.tokenizer.vocab_size == 270
    run(task, tmp_path / "second")
    opened = load_run(tmp_path / "second", "final", {})
    assert opened.evaluate().metrics["accuracy"] in [n / 12 for n in range(13)]
    with pytest.raises(ValueError, match=r"give --data\.normalisation half"):
        statement_task(tmp_path / "data", model, normalisation="imagenet").prepare()
    with pytest.raises(ValueError, match=r"give --model\.width 16"):
        statement_task(tmp_path / "data", {**model, "width": 32}).prepare()


def test_texts_that_are_cut_are_counted(tmp_path: Path) -> None:
    said, task = Said(), statement_task(tmp_path)
    task.prepare(said)
    assert task.train_tokens and task.validation_tokens
    assert said.lines[-2:] == [f"{split}: 12 statements cut to model.max_length (24)"
                               for split in ("training", "validation")]  # fmt: skip


def test_a_mask_stands_behind_the_words() -> None:
    changes = {"model.pooling": "mask_token", "model.max_length": 8, "data.tokenizer": "bytes"}
    task: Any = load_recipe("visual-question-answering/tiny", changes).build_task()
    tokenizer = ByteTokenizer()
    begin, mask, end = tokenizer.begin, tokenizer.mask, tokenizer.end
    framed = task.framed("training", ["", "abcde", "abcdef"])
    assert [row.tolist() for row in framed] == [
        [begin, mask, end], [begin, *b"abcde", mask, end], [begin, *b"abcde", mask, end]
    ]  # fmt: skip
    assert task.framed_whole("abcde", "question").tolist() == framed[1].tolist()
    with pytest.raises(ValueError, match="the question has 6 tokens, the model reads 5"):
        task.framed_whole("abcdef", "question")


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    recipe = load_recipe("visual-reasoning/tiny", {"model.pooling": "mask_token"})
    task: Any = recipe.build_task()
    task.tokenizer = ByteTokenizer()
    task.tokenizer.mask = None
    with pytest.raises(ValueError, match=r"model\.pooling mask_token: the tokenizer has no mask"):
        task.framed("training", ["a"])


@pytest.mark.parametrize(
    ("recipe", "changes", "words"),
    [
        ("image-text-retrieval/tiny", {"model.pooling": "mask_token"}, "model.pooling.*mask_token"),
        ("visual-reasoning/tiny", {"model.pooling": "mean"}, "model.pooling.*mean"),
        ("image-captioning/tiny", {"model.pooling": "mean"}, "pooling"),
        ("visual-reasoning/tiny", {"model.pooling": "mask_token", "model.max_length": 3},
         "max_length must be 4 or more, not 3"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(recipe: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_recipe(recipe, changes)
    assert len(str(caught.value).splitlines()) == 1
