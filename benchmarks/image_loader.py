"""Images per second of the input pipeline: 500 x 375 JPEGs to batches of random 224 x 224 crops.

    python -m benchmarks.image_loader --out benchmarks/results

Ours, with simplejpeg and with Pillow alone, against torch's DataLoader over Pillow and over a
Hugging Face data set, at 0, 1 and 2 worker processes. All do the same: random resized crop
(bicubic, 0.08 to 1 of the image), mirror image with probability 0.5, ImageNet's normalisation,
float32 batches. Turns are interleaved, so a machine that is busy with other things slows all alike.
"""

from __future__ import annotations

import argparse
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.workers import processor_time
from magneto.files import write_json
from magneto.training.environment import environment
from magneto.training.prefetch import Prefetch
from magneto.vision import decoding
from magneto.vision.batches import training_stream
from magneto.vision.config import AugmentationConfig, ImageDataConfig
from magneto.vision.data import load_images
from magneto.vision.decoding import Picture
from magneto.vision.geometry import random_box
from magneto.vision.transforms import NORMALISATIONS, Reading, training_transform

COUNTS = (0, 1, 2)
BATCH = 32
SIZE = 224
PROCESSES = 4096  # numbers of processes are taken modulo this
CROP = AugmentationConfig(crop="random_resized", flip=0.5)
MEAN, STD = (torch.tensor(values)[:, None, None] for values in NORMALISATIONS["imagenet"])


def write_images(folder: Path, count: int) -> None:
    """Write JPEGs of 500 x 375, quality 90: smooth colours with noise, about 90 kB each."""
    for number in range(count):
        random = np.random.default_rng(number)
        small = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        smooth = np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC)).astype(float)
        pixels = (smooth + random.normal(0, 12, (375, 500, 1))).clip(0, 255).astype(np.uint8)
        place = folder / f"class-{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number:04}.jpg", quality=90)


class Counter:
    """How many images all processes made together: a place each, in shared memory."""

    def __init__(self) -> None:
        self.made = np.frombuffer(mmap.mmap(-1, 8 * PROCESSES), np.int64)

    def add(self) -> None:
        """Count one."""
        self.made[os.getpid() % PROCESSES] += 1


def by_pillow(image: Image.Image, counter: Counter) -> torch.Tensor:
    """Do the same to an image as a short transform of one's own would."""
    counter.add()
    random = np.random.default_rng()
    box = random_box(image, CROP.crop_scale, CROP.crop_ratio, random)  # type: ignore[arg-type]
    left, top = int(box.left), int(box.top)
    part = image.convert("RGB").crop((left, top, left + int(box.width), top + int(box.height)))
    part = part.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    if random.random() < CROP.flip:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(part)).permute(2, 0, 1).contiguous().float().div(255)
    return pixels.sub_(MEAN).div_(STD)


class PillowImages(Dataset):
    """Image files and their labels."""

    def __init__(self, folder: Path, counter: Counter) -> None:
        self.counter = counter
        self.paths = sorted(folder.glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[number]) as image:
            return by_pillow(image, self.counter), number % 2


def hugging_face(folder: Path, counter: Counter) -> Any:
    """Return the files as a Hugging Face data set whose rows are transformed when they are read."""
    import datasets

    paths = [str(path) for path in sorted(folder.glob("*/*.jpg"))]
    table = datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Image())
    return table.with_transform(
        lambda rows: {"image": [by_pillow(image, counter) for image in rows["image"]]}
    )


def of_torch(examples: Any, num_workers: int, batches: int) -> Iterator[Any]:
    """Give batches of torch's DataLoader, epoch after epoch."""
    loader = DataLoader(examples, BATCH, shuffle=True, num_workers=num_workers, drop_last=True,
                        persistent_workers=num_workers > 0)  # fmt: skip
    yield from islice((batch for _ in range(batches + 1) for batch in loader), batches + 1)


def ours(folder: Path, num_workers: int, batches: int, counter: Counter) -> Iterator[Any]:
    """Give batches of this package."""

    def counted(picture: Picture, random: np.random.Generator) -> np.ndarray:
        counter.add()
        return transform(picture, random)

    config = ImageDataConfig(source=str(folder), normalisation="imagenet", augmentation=CROP)
    split = load_images(config, 1).train
    transform = training_transform(config, Reading(SIZE, 3, config.normalisation))
    stream = training_stream(split, counted, BATCH, 1)
    with closing(Prefetch(stream, 1, [0], num_workers=num_workers)) as prefetch:
        yield from islice(prefetch, batches + 1)


def by_pillow_alone(
    folder: Path, num_workers: int, batches: int, counter: Counter
) -> Iterator[Any]:
    """Give batches of this package without simplejpeg."""
    with patch.object(decoding, "simplejpeg", lambda: None):
        yield from ours(folder, num_workers, batches, counter)


CONTENDERS: dict[str, Callable[[Path, int, int, Counter], Iterator[Any]]] = {
    "ours, simplejpeg": ours,
    "ours, Pillow alone": by_pillow_alone,
    "torch DataLoader over Pillow": lambda f, n, b, c: of_torch(PillowImages(f, c), n, b),
    "torch DataLoader over Hugging Face datasets": lambda f, n, b, c: of_torch(
        hugging_face(f, c), n, b
    ),
}


def turn(make: Callable[..., Iterator[Any]], *how: Any, count: int) -> dict[str, float]:
    """Take so many batches after the first; return seconds and processor seconds for an image.

    Processor seconds are divided by all images that were made, also ahead.
    """
    counter, before = Counter(), processor_time()
    batches = make(*how, count, counter)
    next(batches)
    began = time.perf_counter()
    for _ in range(count):
        next(batches)
    took = time.perf_counter() - began
    batches.close()  # type: ignore[attr-defined]
    used = processor_time() - before
    return {"seconds": took / count / BATCH, "processor_seconds": used / counter.made.sum()}


def measure(folder: Path, rounds: int, batches: int) -> list[dict[str, Any]]:
    """Measure each contender with each number of workers, turn by turn."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for count in COUNTS:
            for name, make in CONTENDERS.items():
                made = turn(make, folder, count, count=batches)
                found.setdefault((name, count), []).append(made)
    return [
        {"contender": name, "num_workers": count, "turns": len(turns), "all": turns}
        | {key: median(turn[key] for turn in turns) for key in turns[0]}
        for (name, count), turns in found.items()
    ]


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with a table."""
    where = result["machine"]
    lines = [
        "# The input pipeline of images",
        "",
        f"{where['processor']}, {where['cores']} cores; torch {where['packages']['torch']}; "
        f"Pillow {result['pillow']}; commit {where['commit']}; {result['date']}. Medians of "
        "interleaved turns.",
        "",
        f"Processes that wanted a core, on average over a minute (load): {result['load'][0]:.1f} "
        f"at the start and {result['load'][1]:.1f} at the end.",
        "",
        f"JPEGs of 500 x 375 to batches of {BATCH} random 224 x 224 crops. Processor time is "
        "that of all processes, divided by all images they made. Where the load is above the "
        "number of cores, images/s say nothing about more workers.",
        "",
        "| pipeline | workers | turns | images/s | processor ms an image |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['contender']} | {row['num_workers']} | {row['turns']} "
            f"| {1 / row['seconds']:.0f} | {1e3 * row['processor_seconds']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=20, help="of a turn")
    parser.add_argument("--images", type=int, default=256, help="that are written")
    parser.add_argument("--name", default="image-loader-cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    with TemporaryDirectory() as folder:
        write_images(Path(folder), args.images)
        rows = measure(Path(folder), args.rounds, args.batches)
    where = environment()
    del where["command"]
    result = {
        "rows": rows, "machine": where, "pillow": Image.__version__,
        "load": [load, os.getloadavg()[0]], "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / f"{args.name}.json", result)
    page = markdown(result)
    (args.out / f"{args.name}.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
