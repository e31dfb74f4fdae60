"""Tasks over images: sizes, batches, what does not fit, runs that outlive their beginnings."""

import shutil
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from magneto.data.stream import named_tensors
from magneto.data.workers import BatchPrefetcher
from magneto.files import read_json
from magneto.lab.sweep import check_weights_first
from magneto.recipe import load_recipe
from magneto.runs import load_run, open_run
from magneto.training.logging import RESULT_FILE
from magneto.vision import images
from magneto.vision.batches import image_stream, read_or_replace
from magneto.vision.classification import ImageClassification
from magneto.vision.config import (
    AugmentationConfig,
    ImageClassifierConfig,
    ImageDataConfig,
    ImageModelConfig,
    ImageModellingDataConfig,
    ImageTokenizerConfig,
    PairedAugmentationConfig,
    SegmenterConfig,
    derive_sizes,
)
from magneto.vision.decoding import BrokenImage
from magneto.vision.frozen_features import collect_features
from magneto.vision.images import BROKEN, BY_PILLOW
from magneto.vision.targets import weights_digest
from magneto.weights import open_tensors
from tests.problems import listed
from tests.recorded_progress import RecordedProgress
from tests.unit.vision import small
from tests.unit.vision.image_files import (
    class_folders,
    encoded,
    photo,
    write,
    write_pairs,
    write_photos,
)
from tests.unit.vision.small import SEGMENTER, SHAPE, small_recipe, small_task, train_small

pytest.importorskip("sklearn")


def test_they_learn(tokenizer_run: Path, modelling_run: Path) -> None:
    gained, found = [], []
    for name, run in (("image-tokenizer", tokenizer_run), ("image-modelling", modelling_run)):
        found.append(read_json(run / RESULT_FILE)["metrics"])
        least = small_task(name).baseline()
        gained.append({key: found[-1][key] - value for key, value in least.items()})
    assert gained[0]["loss"] < -0.1 and gained[0]["cosine"] > 0.1
    assert found[0]["codebook_use"] > 0.6 and 4 < found[0]["codebook_perplexity"] <= 16
    assert gained[1]["loss"] < -0.3 and gained[1]["masked_accuracy"] > 0


MISFITS: list[tuple[str, dict[str, Any], str]] = [
    ("image-classification", {"model__classes": 9}, "has 10 classes, but model.classes is 9"),
    ("image-tokenizer", {"data__normalisation": "imagenet"}, "normalisation must be 'half'"),
    ("image-tokenizer", {"model__target_width": 7}, "target_width is 7, but .* width of 5"),
    ("image-tokenizer", {"model__channels": 3}, "have 1 channel, but model.channels is 3"),
    ("image-modelling", {"model__codes": None}, "'builtin:patches' needs a number"),
    ("image-modelling", {"data__image_tokenizer": "nowhere"}, "no run in nowhere"),
    ("segmentation", {"data__source": "builtin:digits"}, "has no masks"),
    ("segmentation", {}, "has 11 classes, but model.classes is 5"),
]


def test_what_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "SCENES", {"train": 8, "validation": 4})
    for name, changes, words in MISFITS:
        task = small_recipe(name, **changes).build_task()
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            task.prepare()


def test_a_run_is_opened_without_what_it_was_trained_with(
    tokenizer_run: Path, tmp_path: Path
) -> None:
    """Without its teacher; without its tokenizer, which may not be another one meanwhile."""
    shutil.copytree(tokenizer_run, tmp_path / "one")
    train_small("image-tokenizer", tmp_path / "two", training__steps=1, seed=2)
    found = load_run(tmp_path / "one", "auto", {"model.teacher": "clip:nowhere"})
    assert found.recipe.model.target_width == 5
    chosen = {"data__image_tokenizer": str(tmp_path / "one"), "model__codes": None}
    check_weights_first(small_recipe("image-modelling", **chosen))
    run = tmp_path / "run"
    train_small("image-modelling", run, **chosen, training__steps=1, training__save_every=1)
    chosen["data__image_tokenizer"] = str(tmp_path / "two")
    with pytest.raises(ValueError, match=r"data.digest|trained .* on other data"):
        train_small("image-modelling", run, **chosen, resume=True)
    (tmp_path / "one").rename(tmp_path / "moved")
    chosen["data__image_tokenizer"] = str(tmp_path / "moved")
    assert train_small("image-modelling", run, True, **chosen, training__steps=2).step == 2
    (tmp_path / "moved").rename(tmp_path / "gone")
    opened: Any = load_run(run, "auto", {})
    assert opened.model.head.out_features == 16
    names = open_tensors(run / "final")
    assert not any("codebook" in name or "tokenizer" in name for name in names)


def test_other_images_have_the_codes_of_the_run(modelling_run: Path, tmp_path: Path) -> None:
    source = grey_squares(tmp_path / "images", 8)["data__source"]
    other = {"data.source": source, "data.validation_source": source}
    opened: list[Any] = [load_run(modelling_run, "auto", data).task for data in ({}, other)]
    made = small_task("image-modelling").targets.tokenizer
    assert [weights_digest(task.targets.tokenizer) for task in opened] == [weights_digest(made)] * 2


DERIVED = ("image_size", "patch_size", "channels", "max_length")


def grey_squares(folder: Path, side: int) -> dict[str, Any]:
    """A folder of two classes with six grey images each."""
    for name in ("light", "dark"):
        for number in range(6):
            pixels = np.full((side, side + number), 200 if name == "light" else 20, np.uint8)
            write(folder / name / f"{number}.png", encoded(pixels))
    return {"data__source": str(folder), "data__mixup": 0.0, "data__cutmix": 0.0}


def sizes_of(task: Any) -> list[int]:
    return [getattr(task.model_config, name) for name in DERIVED]


@pytest.mark.parametrize(
    ("side", "given", "expected"),
    [
        (8, (None, None), (8, 2)), (28, (None, None), (28, 4)), (1, (None, None), (1, 1)),
        (500, (None, None), (64, 8)), (28, (None, 16), (32, 16)), (28, (50, None), (50, 10)),
        (28, (64, 4), (64, 4)),
    ],
)  # fmt: skip
def test_at_most_8_patches_of_64_pixels_a_side(side: int, given: Any, expected: Any) -> None:
    assert derive_sizes(side, *given) == expected


def test_a_run_keeps_what_was_derived(tmp_path: Path) -> None:
    source, run = grey_squares(tmp_path / "images", 28), tmp_path / "run"
    task, progress = small_recipe("image-classification", **source).build_task(), RecordedProgress()
    task.prepare(progress)
    assert sizes_of(task) == [28, 4, 1, 49]
    assert any(
        "image_size 28, patch_size 4, channels 1, 49 patches" in line for line in progress.lines
    )
    train_small("image-classification", run, **source, training__steps=1)
    assert train_small("image-classification", run, True, **source, training__steps=2).step == 2
    (tmp_path / "images").rename(tmp_path / "gone")
    opened: Any = load_run(run, "auto", {})
    assert sizes_of(opened.task) == [28, 4, 1, 49]
    assert opened.model(torch.zeros(1, 1, 28, 28)).shape == (1, 2)


def test_unreadable_images_have_no_sizes(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("image,label\n1.png,a\n2.png,b\n3.png,b\n")
    with pytest.raises(ValueError, match=r"\d\.png: can't be read \(No such file or directory\)$"):
        small_task("image-classification", data__source=str(table), model__image_size=None)


def test_photographs_have_colours_and_masks_have_classes(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos")
    shape = {name.replace(".", "__"): value for name, value in SHAPE.items()}
    task = small_task("image-tokenizer", data__source=str(folder), **shape)
    assert sizes_of(task) == [12, 2, 3, 36]
    write_pairs(tmp_path / "pairs", [(20, 30), (24, 22)], classes=4)
    pairs = {"data__source": str(tmp_path / "pairs"), "data__validation_fraction": 0.5}
    null = dict.fromkeys(("image_size", "patch_size", "classes", "stride"))
    given = {f"model__{name}": value for name, value in null.items()}
    segmentation = small_task("segmentation", **pairs, **given)
    assert segmentation.classes == 4 and segmentation.names == ["0", "1", "2", "3"]
    assert sizes_of(segmentation)[:2] == [21, 3]


def test_no_image_s_colours_and_no_mask_s_class_are_overlooked(tmp_path: Path) -> None:
    """The last of many folders alone has colours; one mask of many has the largest class."""
    for name in "abcdefgh":
        for number in range(10):
            pixels = np.full((8, 8, 3), ord(name) + 8 * number, np.uint8)
            pixels[..., 0] += 100 * (name == "h")
            write(tmp_path / "folders" / name / f"{number}.png", encoded(pixels))
    recipe = {"data__source": str(tmp_path / "folders")}
    assert sizes_of(small_task("image-classification", **recipe))[2] == 3
    masks = [encoded(np.full((4, 4), number, np.uint8)) for number in range(3)]
    for number in range(300):
        write(tmp_path / f"pairs/images/{number}.png", masks[0])
        mask = masks[2 if number == 127 else number % 2]
        write(tmp_path / f"pairs/annotations/{number}.png", mask)
    pairs = {f"data__{name}": str(tmp_path / "pairs") for name in ("source", "validation_source")}
    assert small_recipe("segmentation", **pairs, model__classes=None).build_task().classes == 3


def test_validation_images_are_normalised_by_their_own_peak(tmp_path: Path) -> None:
    """White is 1 in photographs of 255 levels, and in the digits of 240."""
    write_photos(tmp_path, 4)
    sources = {"data__source": str(tmp_path), "data__validation_source": "builtin:digits"}
    task = small_task("image-modelling", **sources, model__channels=1)
    assert task.validation_batches()[0]["images"].max() == 1


def test_another_run_s_sizes_come_first(tokenizer_run: Path, tmp_path: Path) -> None:
    """28 x 28 pixels are read as the 8 x 8 of the encoder, or of the tokenizer."""
    source = grey_squares(tmp_path / "images", 28)["data__source"]
    modelling = {"data__image_tokenizer": str(tokenizer_run), "model__codes": None}
    task = small_task("image-modelling", data__source=source, **modelling)
    assert sizes_of(task) == [8, 2, 1, 17]
    with pytest.raises(ValueError, match=r"model.codes is 8, but the image tokenizer has 16"):
        small_task("image-modelling", data__source=source, **{**modelling, "model__codes": 8})
    train_small("image-classification", tmp_path / "encoder", training__steps=1)
    begun = {"data__source": source, "model__pretrained": str(tmp_path / "encoder")}
    assert sizes_of(small_task("image-classification", **begun)) == [8, 2, 1, 16]
    held = open_run(tmp_path / "encoder").model.class_token
    other = {"none": "learned", "learned": "none"}[held]
    for name, wrong, right in (("class_token", other, held), ("patch_size", 4, 2)):
        with pytest.raises(ValueError, match=rf"differs .* set --model\.{name} {right}$"):
            small_task("image-classification", **begun, **{f"model__{name}": wrong})


def task_of(folder: Path, **changes: Any) -> ImageClassification:
    """20 images in 2 classes: three are broken, and one is read by Pillow alone."""
    root, whole = class_folders(folder / "images"), encoded(photo(), "JPEG")
    odd = {"cat/003": b"no image", "dog/001": whole[:300], "dog/002": b"",
           "dog/004": whole[:-40] + whole[-2:]}  # fmt: skip
    for name, content in odd.items():
        write(root / f"{name}.jpg", content)
    source = {"data__source": str(root), "data__validation_source": str(root)}
    shape = {"model__channels": 3, "model__classes": 2, "model__image_size": 8}
    return small_task("image-classification", **source, **shape, **changes)


def test_every_epoch_draws_otherwise_for_an_image() -> None:
    def example(index: int, random: np.random.Generator) -> dict[str, float]:
        return {"index": index, "drawn": random.random()}

    drawn: list[float] = []
    for seed, epoch in ((1, 0), (1, 1), (2, 0)):
        (batch,) = image_stream(6, example, 6, seed).batch(epoch)
        assert sorted(batch["index"].tolist()) == [*range(6)]
        drawn += batch["drawn"].tolist()
    assert len({*drawn}) == 18


@pytest.mark.parametrize("name", ["image-classification", "image-modelling", "image-tokenizer"])
def test_training_images_alone_are_augmented_and_repeated(name: str) -> None:
    changes = {"data__mixup": 0.0, "data__cutmix": 0.0} if name == "image-classification" else {}
    plain = small_task(name, **changes)
    task = small_task(name, **changes, data__augmentation__flip=1.0, data__augmentation__repeats=2)
    held, expected = (each.validation_batches()[0]["images"] for each in (task, plain))
    assert torch.equal(held, expected)
    known = {image.numpy().tobytes() for batch in plain.fixed_batches(plain.splits.train)
             for image in batch["images"]}  # fmt: skip
    images = task.train_stream(8, 1).batch(0)[0]["images"]
    assert {image.flip(-1).contiguous().numpy().tobytes() for image in images} < known
    assert len(images.unique(dim=0)) == 4


@pytest.mark.parametrize("name", small.SMALL)
def test_a_dummy_batch_is_like_one_of_images(name: str, tmp_path: Path) -> None:
    task = small_task(name, **small.striped(name, tmp_path / "data"))
    made, read = (
        {key: (tensor.shape, tensor.dtype) for key, tensor in named_tensors(batch).items()}
        for batch in (task.dummy_batch(4), task.train_stream(4, 1).batch(0)[0])
    )
    assert {key: read[key] for key in made} == made and {*read} - {*made} <= {"batch.labels"}


def test_many_broken_images_in_a_row_end_training() -> None:
    def broken(index: int, random: np.random.Generator) -> dict:
        raise BrokenImage(f"{index} is no image")

    with pytest.raises(ValueError, match=r"32 .*images .* are broken; .* is no image"):
        read_or_replace(broken, 5, 1, (1, 0))


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_and_refused_images_are_listed(tmp_path: Path, workers: int) -> None:
    pytest.importorskip("simplejpeg")
    task, run = task_of(tmp_path), tmp_path / "run"
    run.mkdir()
    task.train_stream(8, 1).batch(0)  # before there is a run
    task.problems.write_to(run)
    stream = BatchPrefetcher(task.train_stream(8, 1), 1, [0], num_workers=workers)
    with closing(stream) as ahead:
        list(islice(ahead.start(), 12))
    (held,) = task.validation_batches()
    read = collect_features(task, task.build_model())
    assert [(len(features.labels), features.broken) for features in read] == [(17, 3)] * 2
    lost = held["images"][held["broken"]]
    assert len(lost) == 3 and not lost.any() and len(held["labels"]) == 20
    kinds = {Path(name).stem: (kind, why) for kind, name, why in listed(run)}
    assert len(listed(run)) == 4 and kinds.keys() == {"001", "002", "003", "004"}
    assert kinds["003"] == (BROKEN, "Pillow does not recognise an image in this file")
    assert kinds["004"][0] == BY_PILLOW and kinds["004"][1]
    assert task.problems.describe() == f"{BROKEN}: 3; {BY_PILLOW}: 1"


BACKBONE: dict[str, Any] = {
    "width": 16, "layers": 3, "heads": 2, "ffn_width": 32, "image_size": 8, "patch_size": 2,
}  # fmt: skip
# What is set, of which configuration, and the words of the error.
WRONG: list[tuple[type, dict[str, Any], str]] = [
    (ImageClassifierConfig, {**BACKBONE, "pooling": "first"}, "needs class_token 'learned'"),
    (ImageClassifierConfig, {**BACKBONE, "positions": "learned", "max_length": 4}, "at least 16"),
    (
        ImageClassifierConfig,
        {**BACKBONE, "positions": "learned", "max_length": 16, "class_token": "learned"},
        "at least 17",
    ),
    (ImageClassifierConfig, {**BACKBONE, "channels": 2}, "channels must be one of 1, 3"),
    (ImageClassifierConfig, {**BACKBONE, "image_size": 9}, r"\(2\) must divide image_size \(9\)"),
    (ImageTokenizerConfig, {"teacher": "clop"}, "hog, pixels, clip:PATH.*not 'clop'"),
    (ImageModelConfig, {**BACKBONE, "aggregation_layer": 3}, r"below layers \(3\), not 3"),
    (ImageModelConfig, {"aggregation_layer": 9, "class_token": "none"}, "class_token 'learned'"),
    (ImageModelConfig, {"stem": "convolutions"}, "stem must be 'linear'"),
    (SegmenterConfig, {"image_size": 16, "stride": 16}, "at least 32 pixels"),
    (SegmenterConfig, {**SEGMENTER, "stride": 17}, r"stride must be from 1 to image_size \(16\)"),
    (SegmenterConfig, {**SEGMENTER, "feature_layers": (0, 1, 2, 4)}, r"with the top layer \(3\)"),
    (SegmenterConfig, {**SEGMENTER, "feature_layers": (0, 2, 1, 3)}, r"1, 3\] must ascend"),
    (AugmentationConfig, {"crop_scale": (0.5, 0.2)}, "crop_scale must have the smaller share"),
    (PairedAugmentationConfig, {"resize": (2.0, 0.5)}, "resize must have the smaller factor"),
    (ImageModellingDataConfig, {"augmentation": AugmentationConfig(erasing=0.5)}, "must be 0"),
    (ImageDataConfig, {"source": "builtin:digit"}, "builtin:digits, builtin:scenes"),
]


def test_what_can_not_be_is_said() -> None:
    for kind, values, words in WRONG:
        with pytest.raises(ValueError, match=words):
            kind(**values)


def test_features_are_of_layers_spread_over_the_depth() -> None:
    spread = {layers: SegmenterConfig(layers=layers).read_layers for layers in (1, 2, 4, 12)}
    assert spread == {1: (0, 0, 0, 0), 2: (0, 0, 0, 1), 4: (0, 1, 2, 3), 12: (2, 5, 8, 11)}


# As BEiT v2's released configurations have it: rate, decay of layers, drop path, length.
FINE_TUNED = {
    "segmentation/ade20k-base": (5e-5, 0.75, 0.15, 160_000),
    "segmentation/ade20k-large": (4e-5, 0.9, 0.2, 160_000),
    "image-classification/imagenet-base": (5e-4, 0.65, 0.1, 100),
    "image-classification/imagenet-large": (3e-4, 0.8, 0.2, 50),
}


@pytest.mark.parametrize("name", FINE_TUNED)
def test_the_papers_fine_tuning(name: str) -> None:
    recipe = load_recipe(name, {"model.pretrained": "runs/x"})
    model, training = recipe.model, recipe.training
    length = training.epochs or training.steps
    found = training.learning_rate, model.layer_decay, model.drop_path, length
    assert found == FINE_TUNED[name]
