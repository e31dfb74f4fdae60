"""Segmentation that begins with another run's encoder, at another size."""

from pathlib import Path
from typing import Any

import pytest
import torch

from magneto.nn.resize import resize_positions
from magneto.progress import ProgressBars
from magneto.recipe import build_recipe
from magneto.training.loop import train
from magneto.vision.pretrained import encoder_weights
from magneto.vision.segmentation.config import SegmentationDataConfig
from magneto.vision.segmentation.task import Segmentation
from magneto.weights import open_tensors
from tests.vision.segmentation.folders import write_pairs
from tests.vision.segmentation.small import small_config, small_model

MODEL: dict[str, Any] = {
    "width": 16, "layers": 4, "heads": 2, "ffn_width": 24, "positions": "learned", "max_length": 5,
    "image_size": 8, "patch_size": 4, "channels": 3, "classes": 2, "class_token": "learned",
    "pooling": "first",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step of image classification of two colours."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("images")
    for number in range(8):
        place = folder / ("red" if number % 2 else "blue")
        place.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), place.name).save(place / f"{number}.png")
    training = {"steps": 1, "batch_size": 2, "learning_rate": 1e-3, "tensorboard": False}
    recipe = build_recipe("test", {
        "task": "image-classification", "seed": 1, "model": MODEL,
        "data": {"source": str(folder), "validation_source": str(folder)},
        "training": {**training, "device": "cpu"},
    })  # fmt: skip
    out = tmp_path_factory.mktemp("runs") / "pictures-sub"
    train(
        recipe.build_task(), recipe.training, out, seed=1, report=ProgressBars(quiet=True),
        recipe=recipe.to_mapping(), keep_recipe=lambda: recipe.save(out / "recipe.yaml"),
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


def test_a_run_begins_with_it(run: Path, tmp_path: Path) -> None:
    from magneto.training.distributed import one_process
    from magneto.training.initial import initial_model

    write_pairs(tmp_path, sizes=[(20, 30), (16, 16)])
    data = SegmentationDataConfig(source=str(tmp_path), validation_source=str(tmp_path))
    task = Segmentation(small_config(pretrained=str(run)), data, 1)
    task.prepare()
    model = initial_model(task, 1, one_process(torch.device("cpu")))
    stored = open_tensors(run / "final")
    weight = "encoder.layers.2.feed_forward.mlp.fc1.weight"
    assert torch.equal(model.get_parameter(weight), stored[weight].read())
    assert "encoder.final_norm.weight" not in model.state_dict()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 32}, "give --model.width 16"),
        ({"placement": "pre"}, "give --model.placement sub"),
        ({"class_token": "none"}, "give --model.class_token learned"),
    ],
)
def test_another_encoder_is_refused(run: Path, changes: dict[str, Any], words: str) -> None:
    config = small_config(**changes, pretrained=str(run))
    with pytest.raises(ValueError, match=words):
        encoder_weights(small_model(**changes), config)


def test_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run in"):
        encoder_weights(small_model(), small_config(pretrained=str(tmp_path / "none")))
