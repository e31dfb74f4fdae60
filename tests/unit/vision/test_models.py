"""Models of images: stems, segmenters and their windows, weights that they begin with."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.embedding import ConvolutionalStem, PatchEmbedding
from magneto.nn.position import resize_positions
from magneto.recipe import RUN_FILE, load_recipe
from magneto.training.distributed import single_process
from magneto.training.logging import PLATEAU_FILE
from magneto.training.model import initial_model
from magneto.vision import models
from magneto.vision.classification import ImageClassification
from magneto.vision.config import ImageClassifierConfig, SegmentationDataConfig
from magneto.vision.frozen_features import (
    NEIGHBOURS,
    Features,
    layer_features,
    linear_accuracy,
    neighbour_accuracy,
    score_features,
)
from magneto.vision.image_task import encoder_weights, layer_decay_multipliers
from magneto.vision.segmentation import Segmentation
from magneto.weights import StoredTensor, open_tensors
from tests.recorded_progress import RecordedProgress
from tests.unit.vision.image_files import write_colours, write_pairs
from tests.unit.vision.small import CLASSIFIER, small_config, small_model, train_small


@pytest.mark.parametrize("patch", [1, 3, 4, 16])
def test_a_convolutional_stem_has_a_vector_for_each_patch(patch: int) -> None:
    images = torch.randn(2, 2, 5 * patch, 5 * patch)
    stem = ConvolutionalStem(2, patch, 32)
    assert stem(images).shape == PatchEmbedding(2, patch, 32)(images).shape
    convolutions = [layer for layer in stem.layers if isinstance(layer, nn.Conv2d)]
    assert math.prod(each.stride[0] for each in convolutions) == patch
    assert convolutions[1].stride == (1, 1) and stem.layers[-1] is convolutions[-1]
    between = [nn.Conv2d, nn.GroupNorm, nn.GELU] * (len(convolutions) - 1)
    assert [type(layer) for layer in stem.layers[:-1]] == between
    # A vector stands where its patch does: no far pixel moves it as much.
    pixels = images.clone().requires_grad_()
    stem(pixels)[:, 0].square().sum().backward()
    assert pixels.grad is not None
    seen = pixels.grad.abs().mean((0, 1))
    assert seen[:patch, :patch].mean() > 3 * seen[-patch:, -patch:].mean()


class Brightness(nn.Module):
    """Answers each pixel by itself, at the window's size: what windows give must be the same."""

    def __init__(self, **changes) -> None:
        super().__init__()
        self.config = small_config(**changes)
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> models.SegmentationLogits:
        self.seen += list(images)
        return models.SegmentationLogits(
            images[:, :1] * torch.arange(1.0, 6)[:, None, None], images
        )


def test_windows_of_ade20k() -> None:
    """512 pixels, 341 apart; the last one ends at the edge (mmsegmentation's slide_inference)."""
    known = {512: [0], 513: [0, 1], 683: [0, 171], 853: [0, 341], 854: [0, 341, 342]}
    for length, expected in known.items():
        places = models.window_places((length, 512), (512, 512), 341)
        assert [rows.start for rows, _ in places] == expected


def test_overlapping_windows_are_averaged() -> None:
    model = Brightness(stride=5)
    images = [torch.randn(3, 21, 33), torch.randn(3, 16, 40), torch.randn(3, 9, 7)]
    every = models.sliding_logits(model, images)  # type: ignore
    for image, logits in zip(images, every, strict=True):
        assert logits.shape == (5, *image.shape[1:])
        expected = image[:1] * torch.arange(1.0, 6)[:, None, None]
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert all(window.shape == (3, 16, 16) for window in model.seen)
    assert not model.seen[-1][:, 9:].any() and not model.seen[-1][:, :, 7:].any()


def test_mean_weighs_every_window_alike() -> None:
    """Three windows over one row of 20: what each says of its own pixels is averaged."""

    class Numbered(Brightness):
        def forward(self, images: Tensor) -> models.SegmentationLogits:
            numbers = torch.arange(1.0, len(images) + 1)[:, None, None, None]
            return models.SegmentationLogits(numbers.expand(-1, 5, 16, 16), images)

    (logits,) = models.sliding_logits(Numbered(stride=2), [torch.zeros(3, 16, 20)])  # type: ignore
    expected = torch.tensor([1, 1, 1.5, 1.5] + [2] * 12 + [2.5, 2.5, 3, 3])
    torch.testing.assert_close(logits[0, 0], expected)


def test_a_whole_image_of_another_size_has_interpolated_positions() -> None:
    """14 x 14 patches were trained on, 32 x 32 are seen: as `resize_positions` does it."""
    model = small_model(image_size=56, max_length=197, inference="whole", stride=56)
    wide = models.for_grid(model, 32, 32)
    square = small_config(image_size=128, max_length=1025)
    expected = resize_positions(model.state_dict(), model.config, square)
    table = "encoder.position_embedding.table.weight"
    assert wide.state_dict()[table].shape == (1025, 16)
    torch.testing.assert_close(wide.state_dict()[table], expected[table])
    shared = "head.fuse.0.weight"
    assert wide.get_parameter(shared).data_ptr() == model.get_parameter(shared).data_ptr()
    (logits,) = models.pixel_logits(model, [torch.randn(3, 61, 30)])
    assert logits.shape == (5, 61, 30) and logits.isfinite().all()


def test_one_window_and_a_whole_image_are_the_model_s_own_answer() -> None:
    model, image = small_model(), torch.randn(3, 16, 16)
    answer, size = model(image[None]).main, (16, 16)
    expected = F.interpolate(answer, size=size, mode="bilinear", align_corners=False)[0]
    torch.testing.assert_close(next(iter(models.pixel_logits(model, [image]))), expected)
    torch.testing.assert_close(models.whole_logits(model, image), expected)
    padded = models.whole_logits(model, F.pad(image[:, 1:, 3:], (0, 3, 0, 1)))
    torch.testing.assert_close(models.whole_logits(model, image[:, 1:, 3:]), padded[:, :15, :13])
    for level, side in enumerate((16, 8, 4, 2)):
        assert small_model(auxiliary_level=level)(image[None]).auxiliary.shape[2:] == (side, side)


# Of the run to begin with: segmentation's encoder on another grid.
MODEL: dict[str, Any] = {**CLASSIFIER, "layers": 4, "classes": 2, "pooling": "first"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step of image classification of two classes that look alike."""
    place = tmp_path_factory.mktemp("runs")
    folder, out = place / "images", place / "pictures-sub"
    write_colours(folder, {"one": "red", "two": "red"}, 4)
    model = {f"model__{name}": value for name, value in MODEL.items()}
    train_small(
        "image-classification", out, kept=True, **model, model__channels=3, training__steps=1,
        data__source=str(folder), data__validation_source=str(folder), training__batch_size=2,
        training__learning_rate=1e-6, seed=1,
    )  # fmt: skip
    return out


def test_encoder_and_positions_are_the_run_s(run: Path) -> None:
    stored = {name: tensor.read() for name, tensor in open_tensors(run / "final").items()}
    config = small_config(pretrained=str(run.with_name("pictures-{placement}")))
    found = encoder_weights(small_model(), config)
    names = {n for n, _ in small_model().named_parameters() if n.startswith(("e", "class_token"))}
    assert found.keys() == names and "encoder.final_norm.weight" in stored.keys() - names
    table = "encoder.position_embedding.table.weight"
    for name in names - {table}:
        tensor = found[name]
        assert isinstance(tensor, StoredTensor), "each rank reads the rows that it needs"
        assert torch.equal(tensor.read(), stored[name]), name
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
        progress = RecordedProgress()
        each.prepare(progress)
        each.prepare(progress)
        assert sum("unigram baseline" in line for line in progress.lines) == 1, progress.lines
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
    config, data = small_config(pretrained=str(run)), replace(data, normalisation="imagenet")
    with pytest.raises(ValueError, match=r"give --data\.normalisation half"):
        Segmentation(config, data, 1).prepare()


def test_groups_are_beit_s() -> None:
    """12 layers have 14 groups: embeddings 0, layer l group l + 1, heads 13."""
    sizes: dict[str, Any] = {"layers": 12, "feature_layers": (3, 5, 7, 11)}
    model, config = small_model(**sizes), small_config(**sizes, layer_decay=0.75)
    found = Segmentation(config, SegmentationDataConfig(), 1).rate_multipliers(model)
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


def test_every_layer_s_features() -> None:
    model = models.ImageClassifier(ImageClassifierConfig(**CLASSIFIER)).eval()
    images = torch.randn(3, 3, 8, 8)
    found, x = layer_features(model, images), model.embed(images)
    assert [tuple(found[name].shape) for name in ("class_token", "mean")] == [(3, 3, 16)] * 2
    last = F.layer_norm(model.encoder.features(x, [1])[0], (16,))
    torch.testing.assert_close(found["class_token"][2], last[:, 0])
    torch.testing.assert_close(found["mean"][2], last[:, 1:].mean(1))
    torch.testing.assert_close(found["mean"][0], F.layer_norm(x, (16,))[:, 1:].mean(1))
    pooled = model.pooled_norm(model.encoder(x)[:, 1:].mean(1))
    torch.testing.assert_close(model(images), model.head(pooled))


def test_one_equal_image_outvotes_all_others_which_are_less_alike() -> None:
    pytest.importorskip("sklearn")
    known = torch.cat((torch.tensor([[1.0, 0]]), torch.tensor([[0.5, 1]]).expand(NEIGHBOURS, 2)))
    labels, asked = torch.tensor([0] + [1] * NEIGHBOURS), torch.tensor([[1.0, 0.0]])
    assert neighbour_accuracy(known, labels, asked, torch.tensor([0])) == 1
    assert neighbour_accuracy(known[1:], labels[1:], asked, torch.tensor([0])) == 0


def test_frozen_features_are_scored_on_the_images_that_are_held_out() -> None:
    """The second layer's are turned round there, and a fourth of the labels differs."""
    pytest.importorskip("sklearn")
    x, labels = torch.tensor([[-1.0], [1.0]] * 4), torch.tensor([0, 1] * 4)
    train = Features({"mean": torch.stack((x, x))}, labels, 0)
    asked, wanted = x[:4], torch.tensor([0, 1, 0, 0])
    held = Features({"mean": torch.stack((asked, -asked))}, wanted, 0)
    scores = [(row["linear"], row["neighbours"]) for row in score_features(train, held)]
    assert scores == [(0.75, 0.75), (0.25, 0.25)]


def test_groups_and_initial_weights() -> None:
    assert [models.GroupNorm(n).num_groups for n in (8, 16, 64, 512, 768)] == [1, 1, 4, 32, 32]
    torch.manual_seed(0)
    classifier = models.ImageClassifier(ImageClassifierConfig(**{**CLASSIFIER, "classes": 500}))
    for module, std in ((models.Convolution(8, 64, 3), (2 / (64 * 9)) ** 0.5),
                        (models.PixelClassifier(64, 100), 0.01),
                        (classifier.head, 0.001)):  # fmt: skip
        assert module.weight.std().item() == pytest.approx(std, rel=0.05)


def test_features_are_the_layers_own_places() -> None:
    """Without the class token, row by row, before any norm on top of the stack."""
    for prefix, token in enumerate(("none", "learned")):
        model, images = small_model(class_token=token, placement="pre"), torch.randn(2, 3, 16, 16)
        states = model.encoder.features(model.embed(images), range(4))
        for found, state in zip(model.features(images), states, strict=True):
            assert found.shape == (2, 16, 4, 4)
            assert torch.equal(found[:, :, 1, 2], state[:, prefix + 4 + 2])


def test_features_far_from_zero_are_standardised_alike() -> None:
    pytest.importorskip("sklearn")
    features, labels = 100 + torch.arange(20.0)[:, None] % 2, torch.arange(20) % 2
    for some in (slice(0, None, 2), slice(1, None, 2)):
        assert linear_accuracy(features, labels, features[some], labels[some]) == 1
    assert linear_accuracy(features, torch.zeros(20), features[:4], torch.arange(4)) == 0.25
