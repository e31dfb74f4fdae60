"""Image classification: scores, mixing, names of classes, objectives."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from magneto.training.task import figures_of
from magneto.vision import figures as drawing
from magneto.vision.classification import (
    BINS,
    MISTAKES,
    ImageClassification,
    answer_sums,
    classification_scores,
    draw_mixing,
    mixed,
)
from magneto.vision.config import ImageClassificationDataConfig, ImageClassifierConfig, given_names
from tests.unit.vision.image_files import write_colours
from tests.unit.vision.small import CLASSIFIER, COLOURS, small_task

LOGITS = torch.tensor([[4.0, 0, 0, 0, 0, 0, 0], [0, 1.0, 2, 3, 4, 5, 6], [0, 9.0, 0, 0, 0, 0, 0]])


def sums(labels: list[int], broken: list[bool]) -> dict:
    found = answer_sums(LOGITS, torch.tensor(labels), torch.tensor(broken))
    return {name: value.tolist() for name, value in found.items()} | {"loss": 6.0}


def test_scores_of_right_and_broken_answers() -> None:
    found = classification_scores(sums([0, 2, 3], [False] * 3), 7)
    assert found["loss"] == 2.0
    assert found["accuracy"] == pytest.approx(1 / 3)
    # In the third row five of six equal classes are among the best: which, nobody says.
    assert found["accuracy_top5"] in (pytest.approx(2 / 3), 1.0)
    by_bin: dict[int, list[float]] = {}
    for sure, hit in zip(LOGITS.softmax(1).amax(1).tolist(), [1.0, 0.0, 0.0], strict=True):
        by_bin.setdefault(math.ceil(sure * BINS), []).append(sure - hit)
    expected = sum(abs(sum(gaps)) for gaps in by_bin.values()) / 3
    assert found["calibration_error"] == pytest.approx(expected, abs=1e-6)
    assert "broken" not in found
    found = classification_scores(sums([0, 6, 1], [True, False, False]), 7)
    assert found["accuracy"] == pytest.approx(2 / 3) and found["broken"] == 1


def test_neighbours_are_mixed_by_their_shares() -> None:
    images = torch.arange(5.0)[:, None, None, None].expand(5, 1, 4, 4)
    targets = torch.eye(5)
    how = [(0.75, None), (0.875, (slice(0, 2), slice(1, 2)))]
    found, shares = mixed(images, targets, how)
    assert torch.equal(found[0], torch.full((1, 4, 4), 0.25)) and found[1].unique() == 0.75
    assert shares[1].tolist() == [0.25, 0.75, 0, 0, 0]
    assert (found[2] == 3).sum() == 2 and found[2, 0, :2, 1].tolist() == [3, 3]
    assert found[3, 0, :2, 1].tolist() == [2, 2] and shares[2].tolist() == [0, 0, 0.875, 0.125, 0]
    assert torch.equal(found[4], images[4]) and torch.equal(shares[4], targets[4])
    assert images[0].unique() == 0  # what was given is as it was


def test_shares_of_labels_are_shares_of_pixels() -> None:
    random = np.random.default_rng(1)
    kinds = set()
    for _ in range(200):
        share, box = draw_mixing(random, 0.8, 1.0, 16, 24)
        kinds.add(box is None)
        assert 0 <= share <= 1
        if box is not None:
            pair = torch.stack([torch.zeros(1, 16, 24), torch.ones(1, 16, 24)])
            found, _ = mixed(pair, torch.eye(2), [(share, box)])
            assert float(1 - found[0].mean()) == pytest.approx(share, abs=1e-6)
    assert kinds == {True, False}
    assert draw_mixing(random, 0, 0, 16, 24) == (1.0, None)
    # As a Beta distribution's.
    shares = [draw_mixing(random, 0.8, 0, 8, 8)[0] for _ in range(4000)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.02)
    assert np.var(shares) == pytest.approx(1 / (4 * (2 * 0.8 + 1)), abs=0.01)
    # A Beta distribution of CutMix alone near 0.5: no box is larger than half of the image.
    found = [draw_mixing(random, 0.1, 1e5, 100, 100) for _ in range(200)]
    largest = max(1 - share for share, box in found if box is not None)
    assert 0.45 < largest <= 0.51


def task_of(source: Path, **data: Any) -> ImageClassification:
    config = ImageClassifierConfig(**{**CLASSIFIER, "classes": 6})
    data_config = ImageClassificationDataConfig(source=str(source), **data)
    return ImageClassification(config, data_config, seed=1)


def test_classes_are_named_by_a_file(tmp_path: Path) -> None:
    lines = tmp_path / "wnids.txt"
    lines.write_text("\ufeff" + "\n".join([*COLOURS, ""]))  # as some editors save it
    folder = write_colours(tmp_path / "wnids", dict(list(COLOURS.items())[2:4]), 2)
    words = ("red", "green", "blue", "white", "black", "yellow")
    given = {"classes": words, "class_names": str(lines)}
    task = task_of(folder, **given, validation_source=str(folder))
    assert task.names == list(COLOURS)
    assert sorted(set(task.splits.validation.labels_of().tolist())) == [2, 3]
    one = write_colours(tmp_path / "one", dict(list(COLOURS.items())[3:4]), 2)
    present = task_of(folder, **given, validation_source=str(one), candidates="present")
    assert present.candidates.isfinite().nonzero().tolist() == [[3]]
    assert given_names(ImageClassificationDataConfig(classes=words)) == words
    with pytest.raises(ValueError, match="classes has the name 'a' 2 times"):
        ImageClassificationDataConfig(classes=("b", "a", "a"))
    lines.write_text("a\nb\na\n")
    with pytest.raises(ValueError, match="has a class name twice"):
        task_of(folder, **given).prepare()


def test_the_objectives() -> None:
    pytest.importorskip("sklearn")
    batch = {
        "images": torch.randn(3, 1, 8, 8), "labels": torch.tensor([0, 1, 5]),
        "targets": torch.rand(3, 10), "broken": torch.tensor([False, True, True]),
    }  # fmt: skip
    crossed, binary = (small_task("image-classification", model__objective=name)
                       for name in ("cross_entropy", "binary_cross_entropy"))  # fmt: skip
    model, t = crossed.build_model(), batch["targets"]
    logits = model(batch["images"])
    batch["labels"][0] = logits[0].argmax()
    expected, right = -(t * logits.log_softmax(1)).sum(), logits.argmax(1) == batch["labels"]
    found = crossed.loss(model, batch)
    torch.testing.assert_close(found.total, expected)
    assert found.logs["accuracy"] == right.sum() > 0
    shares = logits.sigmoid()
    expected = -(t * shares.log() + (1 - t) * (1 - shares).log()).sum()
    found = binary.loss(model, batch)
    torch.testing.assert_close(found.total, expected)
    assert (int(found.count), int(found.logs["broken"])) == (3, 2)


def test_targets_are_smoothed() -> None:
    pytest.importorskip("sklearn")
    changes = {"model__label_smoothing": 0.2, "data__mixup": 0.0, "data__cutmix": 0.0}
    task = small_task("image-classification", **changes)
    batch = task.train_stream(4, 1).batch(0)[0]
    wanted = torch.full((4, 10), 0.02)
    wanted[torch.arange(4), batch["labels"]] = 0.82
    torch.testing.assert_close(batch["targets"], wanted)


def test_mixup_or_cutmix_alone_mixes_and_otherwise_the_next_time() -> None:
    pytest.importorskip("sklearn")
    batch = {"images": torch.rand(4, 1, 8, 8), "labels": torch.arange(4)}
    for mixup, cutmix in ((0.0, 0.0), (0.8, 0.0), (0.0, 1.0)):
        task = small_task("image-classification", data__mixup=mixup, data__cutmix=cutmix)
        mix = task.finish(1)
        first, second = (mix(batch, np.arange(4), np.full(4, draw)) for draw in (0, 1))
        for key, plain in (("images", batch["images"]), ("targets", torch.eye(4, 10))):
            same = [torch.equal(first[key], plain), torch.equal(first[key], second[key])]
            assert same == [not (mixup or cutmix)] * 2, (mixup, cutmix, key)
        other = task.finish(2)(batch, np.arange(4), np.zeros(4, int))["targets"]
        if mixup:
            shares = [float(mix[0, 0]) for mix in (first["targets"], other)]
            assert len({*shares, float(first["targets"][2, 2])}) == 3, "pairs and seeds differ"


def test_figures_count_answers_and_show_the_surest_mistakes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("sklearn")
    task = small_task("image-classification")
    torch.manual_seed(0)
    model = task.build_model().eval()
    model.head.weight.data.mul_(1000)
    drawn: dict[str, Any] = {}
    for name in ("confusion", "mistakes", "attention"):
        monkeypatch.setattr(
            drawing, f"{name}_figure", lambda *given, name=name: drawn.setdefault(name, given)
        )
    figures_of(task, model)
    counts, wrong = np.zeros((10, 10), int), []
    for batch in task.validation_batches():
        chances = model(batch["images"]).detach().softmax(1)
        for image, label, row in zip(
            batch["images"], batch["labels"].tolist(), chances, strict=True
        ):
            answer = int(row.argmax())
            counts[label, answer] += 1
            if answer != label:
                wrong.append((-float(row[answer]), f"label {label}\nmodel {answer}, ", image))
    assert np.array_equal(drawn["confusion"][0], counts) and len(wrong) > MISTAKES
    surest = sorted(wrong, key=lambda one: one[:2])[:MISTAKES]
    for image, said, (_, words, seen) in zip(*drawn["mistakes"][:2], surest, strict=True):
        assert said.startswith(words) and torch.equal(image, seen)
    torch.testing.assert_close(*drawn["attention"][1:3], atol=0.01, rtol=0)  # pixels in [-1, 1]


def test_validation_images_without_a_label_are_refused(tmp_path: Path) -> None:
    write_colours(tmp_path, {"red": "red", "blue": "blue"}, 1)
    for split, last in (("train", "blue"), ("val", "")):
        rows = [f"{name}/ILSVRC2012_val_00000001.png" for name in ("red", "blue")]
        (tmp_path / f"{split}.csv").write_text(f"image,label\n{rows[0]},red\n{rows[1]},{last}\n")
    config = ImageClassificationDataConfig(source=str(tmp_path))
    with pytest.raises(ValueError, match="1 images without a label"):
        ImageClassification(ImageClassifierConfig(image_size=8, patch_size=4), config, 1).check()


def test_one_class_is_refused(tmp_path: Path) -> None:
    write_colours(tmp_path / "images", {"red": "red", "blue": "blue"})  # as in Food-101
    config = ImageClassificationDataConfig(source=str(tmp_path))
    with pytest.raises(ValueError, match=r"only one class, images: set data\.source"):
        ImageClassification(ImageClassifierConfig(image_size=8, patch_size=4), config, 1).check()
