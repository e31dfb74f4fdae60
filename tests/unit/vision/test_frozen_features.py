"""Frozen features: layer by layer, by a linear probe and by nearest neighbours."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.cli import main
from magneto.vision.config import ImageClassifierConfig
from magneto.vision.encoder import ImageClassifier
from magneto.vision.frozen_features import (
    NEIGHBOURS,
    layer_features,
    linear_accuracy,
    neighbour_accuracy,
)
from tests.unit.vision.image_files import write_colours
from tests.unit.vision.small import train_classifier

pytest.importorskip("sklearn")


def model(class_token: str = "learned") -> ImageClassifier:
    config = ImageClassifierConfig(
        width=16, layers=2, heads=2, ffn_width=24, image_size=8, patch_size=4, classes=3,
        class_token=class_token, positions="learned", max_length=5,
    )  # fmt: skip
    return ImageClassifier(config).eval()


def test_every_layer_s_features() -> None:
    made, images = model(), torch.randn(3, 3, 8, 8)
    found = layer_features(made, images)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "class_token": (3, 3, 16), "mean": (3, 3, 16),
    }  # fmt: skip
    x = made.class_token(made.embedding(images))
    last = F.layer_norm(made.encoder.features(x, [1])[0], (16,))
    torch.testing.assert_close(found["class_token"][2], last[:, 0])
    torch.testing.assert_close(found["mean"][2], last[:, 1:].mean(1))
    torch.testing.assert_close(found["mean"][0], F.layer_norm(x, (16,))[:, 1:].mean(1))
    assert list(layer_features(model("none"), images)) == ["mean"]


def test_nearer_neighbours_weigh_more() -> None:
    """One equal image outvotes all others, which are of another class and less alike."""
    known = torch.cat((torch.tensor([[1.0, 0]]), torch.tensor([[0.5, 1]]).expand(NEIGHBOURS, 2)))
    labels = torch.tensor([0] + [1] * NEIGHBOURS)
    asked = torch.tensor([[1.0, 0.0]])
    assert neighbour_accuracy(known, labels, asked, torch.tensor([0])) == 1
    assert neighbour_accuracy(known[1:], labels[1:], asked, torch.tensor([0])) == 0


def test_neighbours_are_scikit_learns() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    random = np.random.default_rng(0)
    known, asked = random.normal(size=(60, 5)), random.normal(size=(30, 5))
    labels, wanted = random.integers(0, 3, 60), random.integers(0, 3, 30)
    theirs = KNeighborsClassifier(
        NEIGHBOURS, metric="cosine", weights=lambda d: np.exp((1 - d) / 0.07)
    )
    expected = theirs.fit(known, labels).score(asked, wanted)
    features = [torch.from_numpy(value).float() for value in (known, asked)]
    found = neighbour_accuracy(
        features[0], torch.from_numpy(labels), features[1], torch.from_numpy(wanted)
    )
    assert found == pytest.approx(expected)


def test_one_class_alone() -> None:
    some = torch.randn(4, 3)
    assert linear_accuracy(some, torch.ones(4).long(), some, torch.tensor([1, 1, 0, 1])) == 0.75


def test_the_command_on_any_run_of_images(tmp_path: Path, capsys) -> None:
    steps = ["--training.steps", "2", "--training.warmup_steps", "1"]
    run = train_classifier(tmp_path, "image-classification", *steps)
    capsys.readouterr()
    assert main(["evaluate", str(run), "--features", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["training_images"], found["validation_images"]) == (36, 12)
    assert len(found["scores"]) == 6
    assert max(score["linear"] for score in found["scores"]) > 0.9
    other = write_colours(tmp_path / "other", {"red": "red", "blue": "blue"}, 12)
    assert main(["evaluate", str(run), "--features", "--data", str(other)]) == 0
    head, columns, *lines = capsys.readouterr().out.splitlines()
    assert "images to learn from" in head and columns.split()[:3] == ["layer", "[CLS]", "linear"]
    assert [line.split()[0] for line in lines] == ["embeddings", "1", "2"]
    for path in (other / "red").iterdir():
        path.rename(other / path.name)
    assert main(["evaluate", str(run), "--features", "--data", str(other)]) == 2
    assert "images without a label" in capsys.readouterr().err
