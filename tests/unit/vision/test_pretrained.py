"""Models that begin with another run's encoder, at another size."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from magneto.nn.position import resize_positions
from magneto.progress import ProgressBars
from magneto.recipe import RUN_FILE, load_recipe
from magneto.training.distributed import single_process
from magneto.training.logging import PLATEAU_FILE
from magneto.training.loop import train
from magneto.training.model import initial_model
from magneto.vision.classification import ImageClassification
from magneto.vision.config import SegmentationDataConfig
from magneto.vision.image_task import encoder_weights, layer_decay_multipliers
from magneto.vision.segmentation import Segmentation
from magneto.weights import open_tensors
from tests.said import Said
from tests.unit.vision.image_files import write_colours, write_pairs
from tests.unit.vision.small import (
    CLASSIFIER,
    small_config,
    small_model,
    small_recipe,
)

# Of the run to begin with: segmentation's encoder on another grid.
MODEL: dict[str, Any] = {**CLASSIFIER, "layers": 4, "classes": 2, "pooling": "first"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step of image classification of two classes that look alike."""
    place = tmp_path_factory.mktemp("runs")
    folder, out = place / "images", place / "pictures-sub"
    write_colours(folder, {"one": "red", "two": "red"}, 4)
    model = {f"model__{name}": value for name, value in MODEL.items()}
    recipe = small_recipe(
        "image-classification", **model, model__channels=3, training__steps=1, seed=1,
        data__source=str(folder), data__validation_source=str(folder), training__batch_size=2,
        training__learning_rate=1e-6,
    )  # fmt: skip
    train(
        recipe.build_task(), recipe.training, out, seed=1, report=ProgressBars(quiet=True),
        recipe=recipe.to_mapping(), save_recipe=lambda: recipe.save(out / RUN_FILE),
    )  # fmt: skip
    return out


def test_encoder_and_positions_are_the_run_s(run: Path) -> None:
    stored = {name: tensor.read() for name, tensor in open_tensors(run / "final").items()}
    config = small_config(pretrained=str(run.with_name("pictures-{placement}")))
    found = {n: t.read() for n, t in encoder_weights(small_model(), config).items()}
    names = {n for n, _ in small_model().named_parameters() if n.startswith(("e", "class_token"))}
    assert found.keys() == names and "encoder.final_norm.weight" in stored.keys() - names
    table = "encoder.position_embedding.table.weight"
    for name in names - {table}:
        assert torch.equal(found[name], stored[name]), name
    old = small_config(**{key: MODEL[key] for key in ("image_size", "max_length")}, stride=8)
    expected = resize_positions({table: stored[table]}, old, config)[table]
    assert torch.equal(found[table], expected) and found[table].shape == (17, 16)


def test_a_run_begins_with_it_and_says_once_that_it_learnt_nothing(
    run: Path, tmp_path: Path
) -> None:
    plateau = json.loads((run / PLATEAU_FILE).read_text())
    assert plateau["loss"] == pytest.approx(math.log(2), abs=1e-4) and plateau["accuracy"] == 0.5
    write_pairs(tmp_path, sizes=[(20, 30), (16, 16)])
    data = SegmentationDataConfig(source=str(tmp_path), validation_source=str(tmp_path))
    recipe = load_recipe(str(run / RUN_FILE))
    task = Segmentation(small_config(pretrained=str(run)), data, 1)
    again = ImageClassification(replace(recipe.model, pretrained=str(run)), recipe.data, 1)
    for each in (task, again):
        said = Said()
        each.prepare(said)
        each.prepare(said)
        assert sum("unigram baseline" in line for line in said.lines) == 1, said.lines
    model = initial_model(task, 1, single_process(torch.device("cpu")))
    weight = "encoder.layers.2.feed_forward.mlp.fc1.weight"
    stored = open_tensors(run / "final")[weight].read()
    assert torch.equal(model.get_parameter(weight), stored)
    assert "encoder.final_norm.weight" not in model.state_dict()


def test_another_encoder_is_refused_before_data_is_read(run: Path) -> None:
    data = SegmentationDataConfig(source="missing", validation_source="missing")
    others = {"width": 32, "placement": "pre", "class_token": "none"}
    for (name, value), wanted in zip(others.items(), (16, "sub", "learned"), strict=True):
        config = small_config(**{name: value}, pretrained=str(run))
        with pytest.raises(ValueError, match=f"set --model.{name} {wanted}"):
            Segmentation(config, data, 1).prepare()


def test_groups_are_beit_s() -> None:
    """12 layers have 14 groups: embeddings 0, layer l group l + 1, heads 13."""
    model = small_model(layers=12, feature_layers=(3, 5, 7, 11))
    found = layer_decay_multipliers(model, 12, 0.75)
    assert found.keys() == dict(model.named_parameters()).keys()
    expected = {
        "embedding.proj.weight": 13, "class_token.vector": 13,
        "encoder.position_embedding.table.weight": 13,
        "encoder.layers.0.feed_forward.mlp.fc1.weight": 12,
        "encoder.layers.11.self_attention.before.weight": 1,
        "encoder.layers.10.self_attention.before.weight": 2,
        "pyramid.levels.1.weight": 0, "head.classifier.bias": 0,
    }  # fmt: skip
    for name, power in expected.items():
        assert found[name] == pytest.approx(0.75**power), name
    assert layer_decay_multipliers(model, 12, 1.0) == {}
