"""Does masked image modelling help where labels are few? Accuracy over labelled images per class.

    python -m benchmarks.image_pretraining --size digits
    python -m benchmarks.image_pretraining --size cifar --data DIR        (DIR has train/ and val/)

A model is pre-trained once on all training images, without their labels. Then, for each number of
labelled images per class and each seed, two classifiers of the same shape are trained on these
images alone: from that run's encoder, and from scratch, each at every rate of the grid; the rate
with the best mean over seeds counts, for both, on the same held-out images. Results go to
benchmarks/results/image-pretraining-SIZE.json and .md after every run; begun again, it goes on.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.label_counts import ARMS, curve, grid, run, table
from magneto.analysis.report.provenance import without_places
from magneto.config import ConfigError
from magneto.files import plain, write_json, write_text
from magneto.training.environment import environment
from magneto.vision.config import ImageDataConfig
from magneto.vision.data import load_images
from magneto.vision.images import ImageSplit

RESULTS = Path(__file__).parent / "results"
COUNTED = "images_per_class"


@dataclass(frozen=True)
class Size:
    """What is trained, and on how many images.

    Attributes:
        model: Fields of both recipes' `model`.
        pretraining: Further dotted fields of image-modelling/tiny.
        training: Of image-classification/tiny.
        counts: Labelled images per class.
        rates: Peak learning rates of the classifiers.
    """

    model: dict[str, Any]
    pretraining: dict[str, Any]
    training: dict[str, Any]
    counts: tuple[int, ...]
    rates: tuple[float, ...]


# Crops of at least 40 % and mirror images, for both.
CROPS = {
    "data.augmentation.crop": "random_resized", "data.augmentation.crop_scale": (0.4, 1.0),
    "data.augmentation.flip": 0.5,
}  # fmt: skip
SIZES = {
    "digits": Size(
        {"width": 64, "layers": 4, "max_length": 17, "class_token": "learned"},
        {"model.codes": 64, "training.steps": 400},
        {"training.steps": 100, "training.batch_size": 32, "training.warmup_steps": 10},
        (5, 20, 100),
        (3e-3,),
    ),
    "cifar": Size(
        {
            "width": 96, "layers": 6, "heads": 3, "ffn_width": 384, "max_length": 17,
            "class_token": "learned", "image_size": 32, "patch_size": 8, "channels": 3,
        },
        {"model.codes": 256, "training.steps": 2000, **CROPS},
        {
            "training.steps": 300, "training.batch_size": 64, "training.warmup_steps": 30,
            "model.pooling": "mean_then_norm", **CROPS,
        },
        (10, 50, 100, 500),
        (1e-3,),
    ),
}  # fmt: skip


def main() -> None:
    """Run what is left of the grid."""
    given = parse()
    size, folder = SIZES[given.size], given.runs / given.size
    source = given.data or "builtin:digits"
    steps = {"training.steps": given.pretraining_steps} if given.pretraining_steps else {}
    pretrained = {
        "data.source": source, **shape(size), **size.pretraining, **steps,
    }  # fmt: skip
    encoder = run("image-modelling/tiny", pretrained, folder / "encoder")
    found = []
    counts = [int(n) for n in given.counts.split(",")] if given.counts else size.counts
    for count, seed, arm, rate in grid(counts, given.seeds, size.rates):
        images = few_images(source, count, seed, folder / "images")
        changes = {
            **images, **shape(size), **size.training, "seed": seed,
            "training.learning_rate": rate,
            "model.pretrained": str(folder / "encoder") if arm == ARMS[0] else None,
        }  # fmt: skip
        name = f"{count}-{seed}-{arm.replace(' ', '-')}-{rate:g}"
        ended = run("image-classification/tiny", changes, folder / name)
        if ended["status"] == "interrupted":
            return
        found.append({
            "images_per_class": count, "seed": seed, "arm": arm, "rate": rate,
            "accuracy": ended["metrics"].get("accuracy", 0.0), "seconds": ended["seconds"],
            "status": ended["status"],
        })  # fmt: skip
        write(given, size, encoder, found)


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="digits")
    parser.add_argument("--data", help="folder with train/ and val/, a folder per class in each")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each point (3)")
    parser.add_argument("--counts", help="images per class, with commas (the size's own)")
    parser.add_argument("--pretraining-steps", type=int, help="in place of the size's own")
    parser.add_argument("--runs", type=Path, default=Path("runs/image-pretraining"))
    given = parser.parse_args()
    if given.size != "digits" and not given.data:
        raise ConfigError([f"--size {given.size} needs --data DIR"])
    return given


def shape(size: Size) -> dict[str, Any]:
    """Return what both recipes have of the model, and that runs are small."""
    same = {"training.device": "cpu", "training.tensorboard": False, "training.evaluate_every": 0}
    return {**same, **{f"model.{name}": value for name, value in size.model.items()}}


def few_images(source: str, count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Return what a recipe reads: so many training images of each class, and the held-out ones.

    Which images are drawn depends on seed and count alone. They are written to a folder per class,
    as PNG where they are no files.
    """
    from PIL import Image

    splits = load_images(ImageDataConfig(source=source), seed=1)
    place, held = folder / f"{count}-{seed}", folder / "held-out"
    draw = np.random.default_rng([seed, count])
    labels = splits.train.labels_of()
    for number in range(len(splits.classes)):
        mine = np.flatnonzero(labels == number)
        for index in draw.permutation(mine)[:count].tolist():
            save(splits.train, index, place / "train" / splits.classes[number], Image)
    for index in range(len(splits.validation)):
        label = splits.classes[splits.validation.label(index)]
        save(splits.validation, index, held / label, Image)
    peak = splits.train.images.peak
    assert peak == 255 or source.startswith("builtin")
    return {"data.source": str(place / "train"), "data.validation_source": str(held)}


def save(split: ImageSplit, index: int, folder: Path, image: Any) -> None:
    """Write an image, brightest pixel 255, if it is not there."""
    path = folder / f"{int(split.numbers[index]):06}.png"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.round(split.pixels(index) * (255 / split.images.peak)).astype(np.uint8)
        image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(path)


def write(
    given: argparse.Namespace, size: Size, encoder: dict[str, Any], found: list[dict[str, Any]]
) -> None:
    """Write what is there so far."""
    rows, name = curve(found, COUNTED), f"image-pretraining-{given.size}"
    RESULTS.mkdir(exist_ok=True)
    content = {
        "size": given.size, "model": size.model, "training": size.training,
        "pretraining": {**size.pretraining, "steps_taken": encoder["step"]}, "curve": rows,
        "encoder": encoder["metrics"], "runs": found, "environment": environment(),
        "load": os.getloadavg(),
    }  # fmt: skip
    write_json(RESULTS / f"{name}.json", plain(without_places(content)))
    lines = [
        f"# Pre-training by masked image modelling, then few labels: {given.size}", "",
        f"Model: {size.model}. The encoder saw all training images for {encoder['step']:,} steps; "
        "then both arms took the same steps on the labelled images alone. Accuracy on the held-out "
        "images, mean over seeds with 95 % intervals, at the best of the rates "
        f"{', '.join(f'{rate:g}' for rate in size.rates)}.", "",
        *table(rows, COUNTED, "images per class"),
    ]  # fmt: skip
    write_text(RESULTS / f"{name}.md", "\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
