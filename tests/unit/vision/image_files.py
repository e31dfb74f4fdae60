"""Image files for tests, made here."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")


def photo(number: int = 0, height: int = 48, width: int = 64) -> np.ndarray:
    """Smooth colours with some noise: what JPEG is made for."""
    random = np.random.default_rng(number)
    small = Image.fromarray(random.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(float)
    return (smooth + random.normal(0, 4, smooth.shape)).clip(0, 255).astype(np.uint8)


def encoded(pixels, kind: str = "PNG", **options) -> bytes:
    """The bytes of a file of an array, or of an image of Pillow's."""
    file = io.BytesIO()
    image = Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels
    image.save(file, kind, **options)
    return file.getvalue()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_photos(folder: Path, count: int, side: int = 8) -> list[str]:
    """Write photo n into n.png, each; return these names."""
    for number in range(count):
        write(folder / f"{number}.png", encoded(photo(number, side, side)))
    return [f"{number}.png" for number in range(count)]


def class_folders(root: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 10) -> Path:
    """A folder per class of small JPEGs, each another one."""
    for number, name in enumerate(classes):
        for index in range(each):
            pixels = photo(100 * number + index, 12, 16)
            write(
                root / name / f"{index:03}.jpg", encoded(pixels, "JPEG", quality=95, subsampling=0)
            )
    return root


def write_pairs(folder: Path, sizes: Sequence[tuple[int, int]], classes: int = 5) -> None:
    """Write images/N.png and annotations/N.png: stripes whose brightness tells their class."""
    for number, (height, width) in enumerate(sizes):
        random = np.random.default_rng(number)
        stripes = np.arange(height)[:, None] * classes // height + np.zeros((1, width), int)
        mask = ((stripes + number) % classes).astype(np.uint8)
        shades = mask[..., None] * (255 // classes) + random.integers(0, 20, (height, width, 3))
        write(folder / "images" / f"{number}.png", encoded(shades.astype(np.uint8)))
        write(folder / "annotations" / f"{number}.png", encoded(mask))


def write_colours(folder: Path, names: dict[str, str], each: int = 6) -> Path:
    """Write a folder per class with images of one colour, each of another brightness."""
    for place, colour in names.items():
        for number in range(each):
            image = Image.new("RGB", (9 + number, 12), colour)
            image = Image.blend(image, Image.new("RGB", image.size, "grey"), number / 20)
            write(folder / place / f"ILSVRC2012_val_{number + 1:08}.png", encoded(image))
    return folder
