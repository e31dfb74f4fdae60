"""Visual reasoning: statements of every kind of source, sums, scores, baseline."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from magneto.data.problems import EMPTY, MALFORMED, DataProblems
from magneto.vision.images import WITHOUT_IMAGE, ImageSplit, ImageSplits
from magneto.vision_language.config import StatementDataConfig
from magneto.vision_language.reasoning import (
    DUPLICATES,
    UNLABELLED,
    VisualReasoning,
    consistency,
    groups_of,
    load_statements,
    statement_files,
)
from magneto.vision_language.tables import LOST, MISSING, missing_images
from tests.evaluating import measured, taught
from tests.shards import write_lines
from tests.unit.vision.image_files import write
from tests.unit.vision_language.folders import grey, nlvr2_record, write_nlvr2
from tests.unit.vision_language.small_tasks import statement_task


def load(source: Path | str, problems: DataProblems | None = None, **options: Any) -> ImageSplits:
    config = StatementDataConfig(source=str(source), **options)
    return load_statements(config, problems or DataProblems())


def names(found: ImageSplits) -> tuple[str, str]:
    train, held = ({key.split("-")[0] for key in rows.values("sentence_key")}
                   for rows in (found.train, found.validation))  # fmt: skip
    return "+".join(train), "+".join(held)


def test_splits_of_nlvr2(tmp_path: Path) -> None:
    """Each statement meets its images; a file that is named is read, too."""
    write_nlvr2(tmp_path, ("train", "dev", "test1", "test2"))
    found = load(tmp_path)
    for rows in (found.train, found.validation):
        assert len(rows) == 12 and not missing_images(rows).any()
        for index, truth in enumerate(rows.values("truth")):
            left, right = (picture.pixels()[0, 0, 0] for picture in rows.open_all(index))
            assert (left < right) == truth
    data = tmp_path / "nlvr" / "nlvr2" / "data"
    other = {"image_folder": str(tmp_path), "validation_source": str(data / "dev.json")}
    for where, options, expected in (
        (tmp_path, {}, "dev"), (tmp_path, {"validation_split": "test"}, "test1"),
        (tmp_path, {"validation_split": "hidden"}, "test2"), (data / "train.json", other, "dev"),
        (tmp_path, {"validation_source": str(tmp_path)}, "dev"),
    ):  # fmt: skip
        assert names(load(where, **options)) == ("train", expected)  # type: ignore[arg-type]


def test_a_set_of_images_is_held_out_whole(tmp_path: Path) -> None:
    """A set is the second part of an identifier; a sentence has no pair in its name."""
    write_nlvr2(tmp_path, ["dev"], groups=40)
    found = load(tmp_path, validation_fraction=0.3)
    train, held = ({*rows.values("group")} for rows in (found.train, found.validation))
    assert train | held == {f"dev-{n}" for n in range(40)}
    assert not train & held and 4 < len(held) < 20
    assert {*found.validation.values("sentence_key")} == {f"{group}-0" for group in held}
    digest = found.validation.digest
    assert load(tmp_path, validation_fraction=0.3).validation.digest == digest
    assert load(tmp_path, validation_fraction=0.5).validation.digest != digest


def test_a_statement_that_lacks_one_of_its_images_is_not_trained_on(tmp_path: Path) -> None:
    write_nlvr2(tmp_path)
    for name in ("train-0-0-img1", "train-2-1-img0", "dev-0-1-img0"):
        next(tmp_path.rglob(f"{name}.png")).unlink()
    found = load(tmp_path)
    assert (len(found.train), len(found.validation)) == (10, 12)
    assert not missing_images(found.train).any()
    assert (found.counts[MISSING], found.counts[LOST]) == (2, 1)


def test_the_authors_repository_has_another_set_too(tmp_path: Path) -> None:
    write_nlvr2(tmp_path, ["dev"])
    write_lines(tmp_path / "nlvr" / "nlvr" / "dev" / "dev.json", [])
    assert "nlvr2" in str(statement_files(str(tmp_path))["validation"])
    write_lines(tmp_path / "nlvr2" / "dev.json", [])
    with pytest.raises(ValueError, match="two files of dev statements"):
        statement_files(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no images below .*unpack archives"):
        load(tmp_path / "nlvr", image_folder=str(tmp_path / "empty"))


def test_odd_records_are_counted(tmp_path: Path) -> None:
    write_nlvr2(tmp_path, ["dev"], groups=2)
    good = nlvr2_record("dev", 0, 0, 0, "True")
    odd = [
        {**good, "identifier": "dev-0-0-1", "label": "maybe"},
        {**good, "identifier": "dev-0-0-4", "label": None},
        {**good, "identifier": "dev-0-0-2", "sentence": " "},
        {**good, "identifier": "dev-0-0-3", "sentence": 7},
        {**good, "identifier": "dev-1"},
        {"sentence": "no name", "label": "True"},
        good,
    ]
    path = tmp_path / "dev.json"
    write_lines(path, [good, nlvr2_record("dev", 1, 0, 0, "False"), *odd, "{broken"])
    found = load(path, validation_source=str(path))
    assert found.train.values("truth") == [1, 0]
    expected = {UNLABELLED: 2, EMPTY: 1, MALFORMED: 2, WITHOUT_IMAGE: 2, DUPLICATES: 1}
    assert {kind: found.counts[kind] for kind in expected} == expected


def test_a_plain_table(tmp_path: Path) -> None:
    """Statements that share an image, also over a third one, are held out together."""
    rows = []
    for number in range(24):
        write(tmp_path / "pictures" / f"{number}.png", grey(10 * number))
        others = (number + 1) % 4 + number // 4 * 4
        truth = ("yes", "True", 1, "false", "no", 0)[number % 6]
        rows.append([f"pictures/{number}.png", f"pictures/{others}.png", f"it is {number}", truth])
    words = ("image1", "image2", "sentence", "label")
    lines = [dict(zip(words, row, strict=True)) for row in rows]
    lines = [{**line, "identifier": str(number)} for number, line in enumerate(lines)]
    found = load(write_lines(tmp_path / "all.jsonl", lines))
    parts = (found.train, found.validation)
    assert sum(map(len, parts)) == 24 and all(len(rows) % 4 == 0 for rows in parts)
    for rows_of in parts:
        for index, statement in enumerate(rows_of.values("statement")):
            left = rows_of.open(index).pixels()[0, 0, 0]
            assert statement == f"it is {left // 10}"
            assert rows_of.values("truth")[index] == (left // 10 % 6 < 3)
    assert parts[0].values("sentence_key") == parts[0].values("statement")


@pytest.mark.parametrize(("given", "right"), [("statement", 0.5), ("images", 1.0)])
def test_it_learns_what_it_is_shown(given: str, right: float, tmp_path: Path) -> None:
    """Statements are true where the left image is darker: the images alone decide."""
    task = statement_task(tmp_path, input=given)
    assert measured(task, taught(task, 12, 12, 1e-2))["accuracy"] == right


def test_scores_are_of_all_statements(tmp_path: Path) -> None:
    """A statement whose image is missing is wrong, and makes its sentence inconsistent."""
    task = statement_task(tmp_path)
    least = task.baseline()
    assert least == pytest.approx({"loss": np.log(2), "accuracy": 0.5, "consistency": 0.0})
    (tmp_path / "dev" / "dev-0-0-img0.png").unlink()
    task = statement_task(tmp_path)
    model = task.build_model()
    with torch.no_grad():
        last: Any = model.head[-1]
        last.weight.zero_()
        last.bias.copy_(torch.tensor([0.0, 1.0]))
    scaled = statement_task(tmp_path, {"head_scale": 0.01}).build_model().head[1].weight
    assert scaled.std().item() == pytest.approx(0.01 * 0.02, rel=0.1)
    found = measured(task, model)
    # It always says true: of twelve, six are, one of which can't be seen. All sentences have both.
    assert found["accuracy"] == pytest.approx(5 / 12) and found["consistency"] == 0.0
    assert found["broken"] == 1
    assert found["loss"] == pytest.approx(np.log1p(np.exp([-1.0, 1.0])).mean())
    keys = ["a", "b", "a", "c", "b", "d"]
    assert consistency(keys, np.array([1, 1, 1, 0, 0, 1], bool)) == pytest.approx(2 / 4)


@pytest.mark.parametrize("label", [0, 1])
def test_the_baseline_gives_the_commoner_label(label: int, tmp_path: Path) -> None:
    task = statement_task(tmp_path)

    def mostly(rows: ImageSplit, others: int) -> ImageSplit:
        other = np.array(rows.values("truth")) != label
        return rows.take(~other | (other.cumsum() <= others))

    task.splits = ImageSplits(mostly(task.splits.train, 1), mostly(task.splits.validation, 3))
    loss = -(6 * np.log(7 / 9) + 3 * np.log(2 / 9)) / 9
    assert task.baseline() == pytest.approx({"loss": loss, "accuracy": 2 / 3, "consistency": 0.5})


def texts_of(task: VisualReasoning, batch: dict[str, Any]) -> list[str]:
    """Return the text beside each image."""
    samples = batch["samples"]
    ends = [*samples.text_starts.tolist()[1:], len(samples.token_ids)]
    return [task.tokenizer.decode(samples.token_ids[start:end].tolist())
            for start, end in zip(samples.text_starts.tolist(), ends, strict=True)]  # fmt: skip


def test_texts_and_labels_stand_beside_their_images(tmp_path: Path) -> None:
    """Those of what stands in the place of a broken image, too."""
    write_nlvr2(tmp_path)
    sorted(tmp_path.glob("images/train/**/*.png"))[0].write_bytes(b"no image")
    task = statement_task(tmp_path, {"max_length": 40})
    splits = task.splits
    parts = ((splits.train, task.train_stream(12, 1).batch(0, 2, [0, 1])),
             (splits.validation, task.validation_batches()))  # fmt: skip
    for rows, batches in parts:
        for batch in batches:
            statements, truths = rows.values("statement"), rows.values("truth")
            expected = [statements[row] for row in batch["rows"].tolist() for _ in range(2)]
            assert texts_of(task, batch) == expected
            assert batch["targets"].tolist() == [truths[row] for row in batch["rows"]]
            left, right = batch["images"][:, 0, 0, 0].unflatten(0, (-1, 2)).unbind(1)
            assert ((left < right) == (batch["targets"] == 1)).all()
    (batch,) = task.train_stream(12, 1).batch(0)
    assert batch["broken"].sum() == 1
    model = task.build_model()
    loss, logits = task.loss(model, batch), model(batch["images"], batch["samples"])
    torch.testing.assert_close(loss.total / loss.count, cross_entropy(logits, batch["targets"]))


def test_a_missing_image_connects_no_groups() -> None:
    class Keys(list):
        key = list.__getitem__

    columns: Any = Keys(["b", "c", "", "d"]), Keys(["c", "a", "d", "e"])
    assert groups_of(columns) == ["a", "a", "", "d"]
