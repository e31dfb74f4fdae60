"""Broken images never end a run; neither workers nor ranks nor a resumption change a batch."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from magneto.data.problems import DataProblems
from magneto.data.stream import BatchStream
from magneto.data.workers import BatchesAhead
from magneto.vision.augmentation import Augmentation
from magneto.vision.batches import evaluation_images, example_stream, read_or_replace
from magneto.vision.config import AugmentationConfig, ImageDataConfig
from magneto.vision.decoding import BrokenImage
from magneto.vision.images import BROKEN, BY_PILLOW, ImageSplit, load_images
from magneto.vision.transforms import Reading, validation_transform
from tests.problems import listed
from tests.unit.vision.image_files import class_folders, encoded, photo, write

READING = Reading(8)
DATA = ImageDataConfig(augmentation=AugmentationConfig(
    crop="random_resized", flip=0.5, brightness=0.4, rand_augment=9, erasing=0.25, repeats=2
))  # fmt: skip
PLAIN = ImageDataConfig()


@pytest.fixture
def split(tmp_path: Path) -> ImageSplit:
    """20 images in 2 classes, of which three are broken."""
    root = class_folders(tmp_path / "set")
    (root / "cat" / "003.jpg").write_bytes(b"no image")
    (root / "dog" / "001.jpg").write_bytes((root / "dog" / "001.jpg").read_bytes()[:300])
    (root / "dog" / "002.jpg").write_bytes(b"")
    config = ImageDataConfig(source=str(root), validation_source=str(root))
    return load_images(config, 1).train


def stream(
    split: ImageSplit, config: AugmentationConfig = DATA.augmentation, size: int = 8
) -> BatchStream:
    change = Augmentation(READING, config)

    def example(index: int, random: np.random.Generator) -> dict:
        return {"images": change(split.open(index), random), "labels": split.label(index)}

    return example_stream(len(split), example, size, 1, config.repeats, broken=split.broken)


def taken(split: ImageSplit, workers: int, batches: int, parts: int = 1) -> dict:
    with closing(BatchesAhead(stream(split), parts, range(parts), num_workers=workers)) as ahead:
        made = ahead.start()
        pieces = [piece for _ in range(batches) for piece in next(made)]
    return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


@pytest.mark.parametrize(("workers", "parts"), [(2, 1), (3, 2)])
def test_workers_and_ranks_change_nothing(split, workers: int, parts: int) -> None:
    wanted, found = taken(split, 0, 6), taken(split, workers, 6, parts)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert wanted["images"].shape == (48, 3, 8, 8) and wanted["images"].dtype == torch.float32


def test_a_broken_image_is_replaced_in_training(split) -> None:
    found = taken(split, 0, 15)
    broken = found["broken"]
    assert 0 < broken.sum() < 60
    assert set(found["labels"].tolist()) == {0, 1}
    for index in range(20):
        _, used = read_or_replace(lambda i, _: {"pixels": split.pixels(i)}, 20, index, (1, 0))
        assert (used != index) == (index in {3, 11, 12}) and used not in {3, 11, 12}

    def broken_all(index: int, random: np.random.Generator) -> dict:
        raise BrokenImage(f"{index} is no image")

    with pytest.raises(ValueError, match=r"32 images .* are broken; the last: .* is no image"):
        read_or_replace(broken_all, 5, 1, (1, 0))


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_and_refused_images_are_listed(tmp_path: Path, workers: int) -> None:
    pytest.importorskip("simplejpeg")
    root = class_folders(tmp_path / "images", each=15)
    for name in ("cat/003.jpg", "dog/007.jpg"):
        write(root / name, b"no image")
    whole = encoded(photo(), "JPEG")
    write(root / "dog/001.jpg", whole[:-40] + whole[-2:])
    run, problems = tmp_path / "run", DataProblems()
    run.mkdir()
    config = ImageDataConfig(source=str(root), validation_source=str(root))
    split = load_images(config, 1, problems=problems).train
    names = {str(root / n) for n in ("cat/003.jpg", "dog/007.jpg", "dog/001.jpg")}
    assert names <= {split.name(index) for index in range(len(split))}
    batches = stream(split, PLAIN.augmentation, 4)
    batches.batch(0)  # before there is a run
    problems.keep_in(run)
    with closing(BatchesAhead(batches, 1, [0], num_workers=workers)) as ahead:
        made = ahead.start()
        for _ in range(20):
            next(made)
    held = list(evaluation_images(split, validation_transform(PLAIN, READING), 8, READING.blank))
    lost = [(batch["images"][batch["broken"]], len(batch["labels"])) for batch in held]
    assert sum(len(images) for images, _ in lost) == 2 and [n for _, n in lost] == [8, 8, 8, 6]
    assert not any(images.any() for images, _ in lost)
    rows = listed(run)
    assert len(rows) == 3 and {name for _, name, _ in rows} == names
    kinds = {Path(name).name: (kind, why) for kind, name, why in rows}
    assert kinds["003.jpg"] == (BROKEN, "no image file that Pillow can identify")
    assert kinds["001.jpg"][0] == BY_PILLOW and kinds["001.jpg"][1]
    assert problems.describe() == f"{BROKEN}: 2; {BY_PILLOW}: 1"
