"""Visual reasoning as a task: sums, scores, baseline, runs that begin with another, errors."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.cli import main
from magneto.progress import Progress, ProgressBars
from magneto.recipe import Recipe
from magneto.runs import load_run
from magneto.training.config import TrainingConfig
from magneto.training.loop import train
from magneto.training.task import figures_of
from magneto.vision_language import figures
from magneto.vision_language.config import StatementDataConfig, VisualReasonerConfig
from magneto.vision_language.reasoning import VisualReasoning, consistency
from magneto.weights import open_tensors
from tests.evaluating import measured, reads_while_scoring
from tests.problems import listed
from tests.vision_language.nlvr2_folders import write_nlvr2

SIZES: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 32, "image_size": 8,
                         "patch_size": 4, "max_length": 24}  # fmt: skip


def task_of(folder: Path, model: dict[str, Any] | None = None, **data: Any) -> VisualReasoning:
    if not (folder / "dev").is_dir():
        write_nlvr2(folder)
    values = {"source": str(folder), "tokenizer": "bytes", **data}
    return VisualReasoning(
        VisualReasonerConfig(**{**SIZES, **(model or {})}), StatementDataConfig(**values), 1
    )


def run(task: VisualReasoning, out: Path, **changes: Any) -> dict[str, torch.Tensor]:
    values = {"steps": 4, "batch_size": 4, "learning_rate": 1e-3, "device": "cpu",
              "tensorboard": False, "schedule": "constant"}  # fmt: skip
    resume = changes.pop("resume", False)
    config = TrainingConfig(**{**values, **changes})
    recipe = Recipe("test", "visual-reasoning", 1, task.model_config, task.data_config, config)
    train(task, config, out, seed=1, resume=resume, report=ProgressBars(quiet=True),
          keep_recipe=lambda: recipe.save(out / "recipe.yaml"))  # fmt: skip
    return {name: tensor.read() for name, tensor in open_tensors(out / "final").items()}


def test_loss_is_a_sum_over_statements(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    model = task.build_model()
    (batch,) = task.train_stream(4, 1).batch(0)
    loss = task.loss(model, batch)
    logits = model(batch["images"], batch["samples"])
    torch.testing.assert_close(loss.total, 4 * F.cross_entropy(logits, batch["labels"]))
    assert loss.count == 4 and loss.logs["broken"] == 0 and loss.units == 4
    halves = [task.loss(model, half) for half in task.train_stream(4, 1).batch(0, 2, [0, 1])]
    torch.testing.assert_close(halves[0].total + halves[1].total, loss.total)


def test_scores_are_of_all_statements(tmp_path: Path) -> None:
    """A statement whose image is missing is wrong, and makes its sentence inconsistent."""
    task = task_of(tmp_path)
    (tmp_path / "dev" / "dev-0-0-img0.png").unlink()
    task.prepare()
    model = task.build_model()
    with torch.no_grad():
        last: Any = model.head[-1]
        last.weight.zero_()
        last.bias.copy_(torch.tensor([0.0, 1.0]))
    found = measured(task, model)
    # It always says true: of twelve, six are, one of which can't be seen. All sentences have both.
    assert found["accuracy"] == pytest.approx(5 / 12) and found["consistency"] == 0.0
    assert found["broken"] == 1
    assert found["loss"] == pytest.approx(np.log1p(np.exp([-1.0, 1.0])).mean())


def test_nothing_waits_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reads_while_scoring(task_of(tmp_path), monkeypatch) == []


def test_baseline_is_the_commoner_label(tmp_path: Path) -> None:
    found = task_of(tmp_path).baseline()
    assert found == pytest.approx({"loss": np.log(2), "accuracy": 0.5, "consistency": 0.0})


@pytest.mark.parametrize(("given", "right"), [("both", 1.0), ("statement", 0.5), ("images", 1.0)])
def test_it_learns_what_it_is_shown(given: str, right: float, tmp_path: Path) -> None:
    """Statements are true where the left image is darker: the images alone decide."""
    task = task_of(tmp_path, input=given)
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    stream = task.train_stream(12, 1).batches()
    for _ in range(25):
        loss = task.loss(model, next(stream)[0])
        loss.total.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert measured(task, model)["accuracy"] == right


def test_a_run_is_the_same_however_it_is_made(tmp_path: Path) -> None:
    """Bit for bit on one process, resumed, with a worker; micro-batches to rounding."""
    whole = run(task_of(tmp_path), tmp_path / "whole", num_workers=1)
    run(task_of(tmp_path), tmp_path / "resumed", steps=2, save_every=2)
    resumed = run(task_of(tmp_path), tmp_path / "resumed", resume=True)
    assert all(torch.equal(resumed[key], tensor) for key, tensor in whole.items())
    cut = run(task_of(tmp_path), tmp_path / "cut", gradient_accumulation_steps=2)
    for key, tensor in cut.items():
        torch.testing.assert_close(tensor, whole[key], rtol=1e-4, atol=1e-5)


def test_another_run_begins_with_its_encoder_and_tokenizer(tmp_path: Path) -> None:
    first = run(task_of(tmp_path / "data", tokenizer="bpe", vocab_size=270), tmp_path / "first")
    model = {"pretrained": str(tmp_path / "first")}
    task = task_of(tmp_path / "data", model, tokenizer="auto")
    task.prepare()
    weights = task.initial_weights()
    assert weights and all(name.startswith("encoder.") for name in weights)
    assert all(torch.equal(tensor.read(), first[name]) for name, tensor in weights.items())
    assert task.tokenizer.vocab_size == 270
    run(task, tmp_path / "second")
    opened = load_run(tmp_path / "second", "final", {})
    assert opened.evaluate().metrics["accuracy"] in [n / 12 for n in range(13)]
    with pytest.raises(ValueError, match=r"give --data\.normalisation half"):
        task_of(tmp_path / "data", model, normalisation="imagenet").prepare()
    with pytest.raises(ValueError, match=r"give --model\.width 16"):
        task_of(tmp_path / "data", {**model, "width": 32}).prepare()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of NLVR2, and a run on it."""
    folder = tmp_path_factory.mktemp("trained")
    run(task_of(folder), folder / "run")
    return folder


def test_predict_judges_a_statement_about_two_images(trained: Path, capsys) -> None:
    images = [str(trained / "dev" / f"dev-0-0-img{side}.png") for side in (0, 1)]
    capsys.readouterr()
    said = "the left one is darker"
    assert main(["predict", str(trained / "run"), *images, said, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["images"]
    assert found[0]["labels"] == found[1]["labels"]
    assert {one["label"] for one in found[0]["labels"]} == {"True", "False"}
    assert sum(one["share"] for one in found[0]["labels"]) == pytest.approx(1.0)
    for words, answer in (
        ([images[0], said], "about 2 images, and there are 1"),
        ([*images, ""], 'img0.png "..."'),
        ([*images, "other.png"], "takes a statement after the images"),
        ([said, *images], 'img0.png "..."'),
        ([*images, "word " * 30], "the statement has 149 tokens, the model reads 22"),
    ):
        assert main(["predict", str(trained / "run"), *words]) == 2
        assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", ["answers", "write", "directions", "splits", "normaliser", "include"]
)
def test_an_option_of_other_runs_is_refused(
    option: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["evaluate", str(trained / "run"), f"--{option}", "x"]) == 2
    said = capsys.readouterr().err
    assert f"--{option} has no effect on" in said and "run of visual-reasoning" in said
    assert said.count("\n") == 1


def judged(image: dict[str, Any]) -> tuple[str, dict[str, float]]:
    """Return the path of what was predicted, and the share of each label."""
    return image["path"], {label["label"]: label["share"] for label in image["labels"]}


def test_predict_pairs_no_image_with_that_of_another_statement(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where one of two images is broken, the other waits for none of the next two."""
    images = []
    for name in ("0-0-img0", "0-0-img1", "0-1-img0", "0-1-img1", "1-0-img0", "1-0-img1"):
        images.append(tmp_path / f"{name}.png")
        images[-1].write_bytes((trained / "dev" / f"dev-{name}.png").read_bytes())
    said = [str(trained / "run"), *map(str, images), "the left one is darker", "--json"]
    capsys.readouterr()
    assert main(["predict", *said]) == 0
    whole = json.loads(capsys.readouterr().out)["images"]
    for place in (1, 2):
        images[place].write_bytes(b"no image")
    assert main(["predict", *said]) == 0
    found = json.loads(capsys.readouterr().out)
    # A batch of another size is multiplied in another order on some processors.
    for image, other in zip(found["images"], whole[4:], strict=True):
        (path, shares), (same, expected) = judged(image), judged(other)
        assert path == same and shares == pytest.approx(expected, rel=1e-5)
    why = {row["path"]: row["why"] for row in found["broken"]}
    assert why[str(images[0])] == f"belongs to {images[1]}" and len(why) == 4


def test_statements_that_are_cut_are_counted(tmp_path: Path) -> None:
    said: list[str] = []

    class Told(Progress):
        def say(self, line: str) -> None:
            said.append(line)

    task = task_of(tmp_path)
    task.prepare(Told())
    assert task.train_tokens and task.validation_tokens
    assert said[-2:] == ["training: 12 statements cut to model.max_length (24)",
                         "validation: 12 statements cut to model.max_length (24)"]  # fmt: skip


def test_missing_and_broken_images_are_listed(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    first, second = sorted(tmp_path.glob("images/train/**/*.png"))[:3:2]
    first.unlink()
    second.write_bytes(b"no image")
    run(task, tmp_path / "run", steps=8)
    rows = listed(tmp_path / "run")
    assert rows[0] == ["missing image", str(tmp_path / first.name), "no such file"]
    kind, names, why = rows[1]
    assert kind == "broken image" and str(second) in names.split(", ") and "no image file" in why
    assert len(rows) == 2


def texts_of(task: VisualReasoning, batch: dict[str, Any]) -> list[str]:
    """Return the text beside each image."""
    samples = batch["samples"]
    ends = [*samples.text_starts.tolist()[1:], len(samples.token_ids)]
    return [task.tokenizer.decode(samples.token_ids[start:end].tolist())
            for start, end in zip(samples.text_starts.tolist(), ends, strict=True)]  # fmt: skip


def test_texts_stand_beside_their_images(tmp_path: Path) -> None:
    task = task_of(tmp_path, {"max_length": 40})
    splits = task.splits
    parts = ((splits.train, task.train_stream(4, 1).batch(0, 2, [0, 1])),
             (splits.validation, task.validation_batches()))  # fmt: skip
    for rows, batches in parts:
        for batch in batches:
            said = rows.values("statement")
            expected = [said[row] for row in batch["rows"].tolist() for _ in range(2)]
            assert texts_of(task, batch) == expected
            left, right = batch["images"][:, 0, 0, 0].unflatten(0, (-1, 2)).unbind(1)
            assert ((left < right) == (batch["labels"] == 1)).all()
            assert not batch["broken"].any() and len(batch["images"]) == len(expected)
    every = torch.cat([batch["rows"] for batch in task.validation_batches()])
    assert sorted(every.tolist()) == list(range(12))


def test_what_is_broken_is_replaced_or_marked(tmp_path: Path) -> None:
    """In training by a statement with its own text and label, whoever makes the batch."""
    task = task_of(tmp_path, {"max_length": 40})
    (tmp_path / "dev" / "dev-0-0-img0.png").unlink()
    (tmp_path / "dev" / "dev-1-0-img1.png").write_bytes(b"no image")
    sorted(tmp_path.glob("images/train/**/*.png"))[0].write_bytes(b"no image")
    (batch,) = task.validation_batches()
    assert sorted(batch["rows"][batch["broken"]].tolist()) == [0, 2]
    images = batch["images"].unflatten(0, (-1, 2))
    assert (images[batch["broken"]] == 0).all() and (images[~batch["broken"]] != 0).all()
    (batch,) = task.train_stream(12, 1).batch(0)
    assert batch["broken"].sum() == 1
    rows = task.splits.train
    assert texts_of(task, batch)[::2] == [rows.values("statement")[r] for r in batch["rows"]]
    assert batch["labels"].tolist() == [rows.values("truth")[row] for row in batch["rows"]]
    halves = task.train_stream(12, 1).batch(0, 2, [0, 1])
    assert torch.cat([half["rows"] for half in halves]).tolist() == batch["rows"].tolist()


@pytest.mark.parametrize("given", ["both", "images"])
def test_where_words_look(given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows for each statement; none without words, and none of broken images."""
    from PIL import Image

    monkeypatch.setattr(figures, "TEXTS", 2)
    task = task_of(tmp_path, input=given)
    model = task.build_model().eval()
    drawn = figures_of(task, model)
    if given == "images":
        assert drawn == []
        return
    (figure,) = drawn
    picture = np.asarray(Image.open(io.BytesIO(figure.image)))  # type: ignore[arg-type]
    assert picture.shape[0] > 2 * 2 * 100 and picture.std() > 10
    assert "layer 1 of 1" in figure.caption
    texts = task.splits.validation.values("statement")
    rows = figures.some_rows(texts, task.validation_tokens)
    assert len({texts[row] for row in rows}) == 2
    for path in tmp_path.glob("dev/*.png"):
        path.write_bytes(b"no image")
    assert figures_of(task, model) == []


def test_a_sentence_is_consistent_where_all_of_its_uses_are_right() -> None:
    said = ["a", "b", "a", "c", "b", "d"]
    assert consistency(said, np.array([1, 1, 1, 0, 0, 1], bool)) == pytest.approx(2 / 4)
    assert consistency(said, np.ones(6, bool)) == 1.0
    assert consistency(said, np.zeros(6, bool)) == 0.0
