"""Images, masks and scores beside Pillow, simplejpeg, torchvision, timm and scikit-learn.

And what BEiT v2's masking hides, by its published algorithm.
"""

import itertools
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from magneto.vision import decoding
from magneto.vision.augmentation import FILL, LARGEST, OPERATIONS, enhance, resize_part
from magneto.vision.classification import ImageClassification
from magneto.vision.config import ImageClassificationDataConfig, ImageClassifierConfig
from magneto.vision.decoding import PixelPicture
from magneto.vision.segmentation import confusion, segmentation_scores
from magneto.vision.targets import BlockMasking
from magneto.vision.transforms import Box, centre_crop, crop_and_resize
from tests.unit.nn.grids import timm_module
from tests.unit.vision.image_files import Image, encoded, photo, write_colours


def rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)


BICUBIC = Image.Resampling.BICUBIC
NAMES = ["sky", "road", "tree", "car"]


class Signs:
    """A generator whose sign is known."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


TIMM = {
    "autocontrast": "AutoContrast", "equalise": "Equalize", "invert": "Invert",
    "rotate": "Rotate", "posterise": "PosterizeIncreasing", "solarise": "SolarizeIncreasing",
    "solarise_add": "SolarizeAdd", "colour": "ColorIncreasing", "contrast": "ContrastIncreasing",
    "brightness": "BrightnessIncreasing", "sharpness": "SharpnessIncreasing", "shear_x": "ShearX",
    "shear_y": "ShearY", "translate_x": "TranslateXRel", "translate_y": "TranslateYRel",
}  # fmt: skip


def test_operations_are_timms(monkeypatch) -> None:
    theirs = timm_module("timm.data.auto_augment")
    assert OPERATIONS.keys() == TIMM.keys()
    image = Image.fromarray(photo(5, 96, 120))
    signs = ((-1, 0.1), (1, 0.9))
    for name, magnitude, (sign, number) in itertools.product(TIMM, (1.0, 5.0, 9.0), signs):
        monkeypatch.setattr(theirs, "_randomly_negate", lambda value, sign=sign: sign * value)
        levels = theirs.LEVEL_TO_ARG[TIMM[name]]
        levels = levels(magnitude, {"translate_pct": 0.45}) if levels else ()
        wanted = theirs.NAME_TO_OP[TIMM[name]](image, *levels, fillcolor=FILL, resample=BICUBIC)
        found = OPERATIONS[name](image, magnitude / LARGEST, Signs(number))  # type: ignore[arg-type]
        assert np.array_equal(np.asarray(found), np.asarray(wanted)), name


def test_simplejpeg_agrees_with_pillow() -> None:
    """Within one level: with one version of libjpeg-turbo in both they are equal."""
    pytest.importorskip("simplejpeg")
    every = itertools.product((50, 95), (0, 1, 2), (False, True), (1, 2, 4, 8))
    for quality, subsampling, progressive, scale in every:
        options = {"quality": quality, "subsampling": subsampling, "progressive": progressive}
        content = encoded(photo(1, 61, 83), "JPEG", **options)
        found = decoding.decode_jpeg(content, scale)
        wanted = decoding.decode_by_pillow(decoding.open_by_pillow(content), scale)
        assert found is not None and found.shape == wanted.shape
        assert np.abs(found.astype(int) - wanted).max() <= 1


@pytest.mark.parametrize(("size", "resize"), [(32, 40), (224, 256), (384, 438), (384, 384)])
def test_the_middle_is_that_of_resizing_the_whole_and_cutting(size: int, resize: int) -> None:
    """On noise, where another order of the two passes is 20 levels off (Pillow's own `box`)."""
    sides = (
        ((90, 50), (40, 200)) if size == 32 else ((375, 500), (500, 375), (500, 333), (427, 640))
    )
    for height, width in sides:
        pixels = rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
        shorter = min(height, width)
        ends = {side: int(resize * side / shorter) for side in (height, width)}
        whole = Image.fromarray(pixels).resize((ends[width], ends[height]), BICUBIC)
        top, left = round((ends[height] - size) / 2), round((ends[width] - size) / 2)
        wanted = np.asarray(whole)[top : top + size, left : left + size]
        found = centre_crop(PixelPicture(pixels), size, resize)
        assert np.abs(found.astype(int) - wanted).max() <= 1, (height, width)


def test_a_box_is_cut_out_and_then_resized() -> None:
    """Its edges see nothing from beyond it, and neither does the order of passes."""
    pixels = rng(1).integers(0, 256, (500, 333, 3), dtype=np.uint8)
    for box in (Box(100, 3, 90, 61), Box(0, 0, 500, 333), Box(7, 9, 480, 320)):
        part = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
        wanted = np.asarray(Image.fromarray(part).resize((224, 224), BICUBIC))
        assert np.array_equal(crop_and_resize(PixelPicture(pixels), box, 224), wanted)


def test_crops_and_colours_are_torchvisions() -> None:
    """What docs/fields/images.md says of torchvision, where it is installed."""
    pytest.importorskip("torchvision")
    from torchvision.transforms import InterpolationMode, functional

    how = InterpolationMode.BICUBIC
    for height, width in ((375, 500), (500, 375)):
        picture = PixelPicture(photo(2, height, width))
        image = Image.fromarray(picture.pixels())
        for size, resize in ((224, 256), (384, 384)):
            middle = functional.center_crop(functional.resize(image, resize, how), [size, size])
            found = centre_crop(picture, size, resize)
            assert np.abs(found.astype(int) - np.asarray(middle)).max() <= 1
        part = functional.resized_crop(image, 100, 3, 90, 61, [224, 224], how)
        assert np.array_equal(crop_and_resize(picture, Box(100, 3, 90, 61), 224), np.asarray(part))
    for name, theirs in (("Brightness", functional.adjust_brightness),
                         ("Contrast", functional.adjust_contrast),
                         ("Color", functional.adjust_saturation)):  # fmt: skip
        for factor in (0.6, 1.4):
            wanted = np.asarray(theirs(image, factor))
            assert np.array_equal(np.asarray(enhance(image, name, factor)), wanted)


def test_masks_are_resized_to_the_nearest() -> None:
    """Against Pillow's own."""
    mask = (np.arange(60)[:, None] // 20 * 4 + np.arange(80) // 20).astype(np.uint8)
    for height, width in ((30, 40), (90, 100), (61, 79)):
        wanted = Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST)
        box = (0, 0, height, width)
        found = resize_part(mask[..., None], height, width, box, "NEAREST")[..., 0]
        assert (found != np.asarray(wanted)).mean() < 0.03  # where two pixels are as near


def test_confusion_is_scikit_learn_s() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (3, 20, 30), generator=generator, dtype=torch.uint8)
    answers = torch.randint(4, (3, 20, 30), generator=generator)
    labels[:, :5] = 255
    matrix = confusion(labels, answers, 4)
    known = labels != 255
    assert matrix.tolist() == metrics.confusion_matrix(labels[known], answers[known]).tolist()
    found = segmentation_scores(matrix.tolist(), NAMES)
    iou = metrics.jaccard_score(labels[known], answers[known], average=None)
    assert [found[f"iou_{name}"] for name in NAMES] == pytest.approx(iou)
    assert found["mean_iou"] == pytest.approx(iou.mean())
    recall = metrics.balanced_accuracy_score(labels[known], answers[known])
    assert found["mean_accuracy"] == pytest.approx(recall)
    assert found["pixel_accuracy"] == pytest.approx(
        metrics.accuracy_score(labels[known], answers[known])
    )


@pytest.mark.parametrize("letter", ["a", "r"])
def test_candidates_are_those_of_timm(letter: str, tmp_path: Path) -> None:
    """Folders of the wnids of ImageNet-A or -R: timm's published indices are what is left."""
    timm = find_spec("timm")  # not imported: that needs torchvision
    if timm is None or timm.origin is None:
        pytest.skip("timm's lists of ImageNet's classes are needed")
    info = Path(timm.origin).parent / "data" / "_info"
    wnids = (info / f"imagenet_{letter}_synsets.txt").read_text().split()
    source = str(tmp_path / "set")
    write_colours(tmp_path / "set", dict.fromkeys(wnids, "red"), 1)
    shape = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 16}
    names = str(info / "imagenet_synsets.txt")
    data = ImageClassificationDataConfig(
        source=source, validation_source=source, class_names=names, candidates="present"
    )
    task = ImageClassification(ImageClassifierConfig(**shape, classes=1000), data, seed=1)
    published = (info / f"imagenet_{letter}_indices.txt").read_text().split()
    assert task.candidates.isfinite().nonzero()[:, 0].tolist() == sorted(map(int, published))
    assert len(published) == 200


# Means over 20,000 masks of the published algorithm (BEiT v2's masking generator, with 16 of 196
# patches as its smallest block), by the side of the grid: pairs of masked neighbours in a row,
# masked patches without a masked neighbour, rows with a masked patch, share of masks that hide the
# corner, and the middle. The errors of these means are below 0.02, 0.005, 0.012, 0.003 and 0.004.
PUBLISHED = {
    14: (62.68, 0.408, 10.88, 0.044, 0.717),
    8: (17.07, 0.090, 6.18, 0.103, 0.641),
    4: (2.712, 0.207, 3.02, 0.238, 0.535),
}


COUNTS = {14: 75, 8: 24, 4: 6}


def masks(side: int, count: int) -> np.ndarray:
    masking, random = BlockMasking(side, side, 75 / 196), rng(0)
    made = np.zeros((count, side * side), bool)
    for row in made:
        row[masking.draw(random)] = True
    return made.reshape(count, side, side)


@pytest.mark.parametrize("side", PUBLISHED)
def test_against_the_published_algorithm(side: int) -> None:
    hidden = masks(side, 1000)
    assert (hidden.sum((1, 2)) == COUNTS[side]).all()
    around = np.pad(hidden, ((0, 0), (1, 1), (1, 1))).astype(int)
    neighbours = (
        around[:, 2:, 1:-1] + around[:, :-2, 1:-1] + around[:, 1:-1, 2:] + around[:, 1:-1, :-2]
    )
    middle = side // 2
    found = {
        "pairs": (hidden[:, :, 1:] & hidden[:, :, :-1]).sum((1, 2)),
        "alone": (hidden & (neighbours == 0)).sum((1, 2)),
        "rows": hidden.any(2).sum(1),
        "corner": hidden[:, 0, 0],
        "middle": hidden[:, middle, middle],
    }
    for (name, values), expected in zip(found.items(), PUBLISHED[side], strict=True):
        error = values.std() / len(values) ** 0.5
        assert abs(values.mean() - expected) < 5 * error + 0.01, name
