"""Visual reasoning as a task: sums, scores, baseline, runs that begin with another, errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.cli import main
from magneto.vision_language.reasoning import VisualReasoning, consistency
from tests.evaluating import measured
from tests.unit.vision_language.small_tasks import run, statement_task


def test_loss_is_a_sum_over_statements(tmp_path: Path) -> None:
    task = statement_task(tmp_path)
    model = task.build_model()
    (batch,) = task.train_stream(4, 1).batch(0)
    loss = task.loss(model, batch)
    logits = model(batch["images"], batch["samples"])
    torch.testing.assert_close(loss.total, 4 * F.cross_entropy(logits, batch["labels"]))
    assert loss.count == 4 and loss.logs["broken"] == 0 and loss.units == 4


def test_scores_are_of_all_statements(tmp_path: Path) -> None:
    """A statement whose image is missing is wrong, and makes its sentence inconsistent."""
    task = statement_task(tmp_path)
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


def test_baseline_is_the_commoner_label(tmp_path: Path) -> None:
    found = statement_task(tmp_path).baseline()
    assert found == pytest.approx({"loss": np.log(2), "accuracy": 0.5, "consistency": 0.0})


@pytest.mark.parametrize(("given", "right"), [("both", 1.0), ("statement", 0.5), ("images", 1.0)])
def test_it_learns_what_it_is_shown(given: str, right: float, tmp_path: Path) -> None:
    """Statements are true where the left image is darker: the images alone decide."""
    task = statement_task(tmp_path, input=given)
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of NLVR2, and a run on it."""
    folder = tmp_path_factory.mktemp("trained")
    run(statement_task(folder), folder / "run")
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


def texts_of(task: VisualReasoning, batch: dict[str, Any]) -> list[str]:
    """Return the text beside each image."""
    samples = batch["samples"]
    ends = [*samples.text_starts.tolist()[1:], len(samples.token_ids)]
    return [task.tokenizer.decode(samples.token_ids[start:end].tolist())
            for start, end in zip(samples.text_starts.tolist(), ends, strict=True)]  # fmt: skip


def test_texts_stand_beside_their_images(tmp_path: Path) -> None:
    task = statement_task(tmp_path, {"max_length": 40})
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
    task = statement_task(tmp_path, {"max_length": 40})
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


def test_a_sentence_is_consistent_where_all_of_its_uses_are_right() -> None:
    said = ["a", "b", "a", "c", "b", "d"]
    assert consistency(said, np.array([1, 1, 1, 0, 0, 1], bool)) == pytest.approx(2 / 4)
    assert consistency(said, np.ones(6, bool)) == 1.0
    assert consistency(said, np.zeros(6, bool)) == 0.0
