"""What is done to training images: RandAugment as timm does it, bit by bit; mixup and CutMix."""

import numpy as np
import pytest
import torch

from magneto.vision.augmentation import (
    FILL,
    LARGEST,
    OPERATIONS,
    Mixing,
    RandAugment,
    draw_mixing,
    mixed,
    soft_targets,
)
from tests.unit.nn.grids import timm_module
from tests.unit.vision.image_files import Image, photo

TIMM = {
    "autocontrast": "AutoContrast", "equalise": "Equalize", "invert": "Invert",
    "rotate": "Rotate", "posterise": "PosterizeIncreasing", "solarise": "SolarizeIncreasing",
    "solarise_add": "SolarizeAdd", "colour": "ColorIncreasing", "contrast": "ContrastIncreasing",
    "brightness": "BrightnessIncreasing", "sharpness": "SharpnessIncreasing", "shear_x": "ShearX",
    "shear_y": "ShearY", "translate_x": "TranslateXRel", "translate_y": "TranslateYRel",
}  # fmt: skip


class Signs:
    """A generator whose sign is known."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


@pytest.mark.parametrize("name", TIMM)
def test_operations_are_timms(name: str, monkeypatch) -> None:
    theirs = timm_module("timm.data.auto_augment")
    assert OPERATIONS.keys() == TIMM.keys()
    image = Image.fromarray(photo(5, 96, 120))
    for magnitude in (1.0, 5.0, 9.0):
        for sign, number in ((-1, 0.1), (1, 0.9)):
            monkeypatch.setattr(theirs, "_randomly_negate", lambda value, sign=sign: sign * value)
            levels = theirs.LEVEL_TO_ARG[TIMM[name]]
            levels = levels(magnitude, {"translate_pct": 0.45}) if levels else ()
            options = {"fillcolor": FILL, "resample": Image.Resampling.BICUBIC}
            wanted = theirs.NAME_TO_OP[TIMM[name]](image, *levels, **options)
            found = OPERATIONS[name](image, magnitude / LARGEST, Signs(number))  # type: ignore[arg-type]
            assert np.array_equal(np.asarray(found), np.asarray(wanted))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_operations_keep_size_and_mode_at_any_strength(name: str, mode: str) -> None:
    image = Image.fromarray(photo()).convert(mode)
    for strength in (0.0, 0.5, 1.0):
        found = OPERATIONS[name](image, strength, np.random.default_rng(1))
        assert (found.size, found.mode) == (image.size, image.mode)


def test_known_pixels() -> None:
    image, random = Image.fromarray(np.array([[10, 127, 128, 255]], np.uint8)), Signs(0.9)

    def done(name: str, strength: float) -> list[int]:
        return np.asarray(OPERATIONS[name](image, strength, random))[0].tolist()  # type: ignore[arg-type]

    assert done("invert", 0.5) == [245, 128, 127, 0]
    assert done("solarise", 0.5) == [10, 127, 127, 0]
    assert done("solarise_add", 0.5) == [65, 182, 128, 255]
    assert done("posterise", 0.0) == [0, 112, 128, 240]
    assert done("posterise", 1.0) == [0, 0, 0, 0]
    assert done("translate_x", 1 / 1.8) == [127, 128, 255, round(sum(FILL) / 3)]


def test_about_half_of_two_operations_are_applied() -> None:
    image = Image.fromarray(photo())
    change = RandAugment()
    same = sum(
        np.array_equal(np.asarray(change(image, np.random.default_rng(n))), photo())
        for n in range(200)
    )
    assert 30 < same < 90  # a quarter, and where an operation finds nothing to change


def test_neighbours_are_mixed_by_their_shares() -> None:
    images = torch.arange(5.0)[:, None, None, None].expand(5, 1, 4, 4)
    targets = soft_targets(torch.arange(5), 5)
    how = [Mixing(0.75), Mixing(0.875, (0, 2, 1, 2))]
    found, shares = mixed(images, targets, how)
    assert torch.equal(found[0], torch.full((1, 4, 4), 0.25)) and found[1].unique() == 0.75
    assert shares[1].tolist() == [0.25, 0.75, 0, 0, 0]
    assert (found[2] == 3).sum() == 2 and found[2, 0, :2, 1].tolist() == [3, 3]
    assert found[3, 0, :2, 1].tolist() == [2, 2] and shares[2].tolist() == [0, 0, 0.875, 0.125, 0]
    assert torch.equal(found[4], images[4]) and torch.equal(shares[4], targets[4])
    assert images[0].unique() == 0  # what was given is as it was


def test_shares_of_labels_are_shares_of_pixels() -> None:
    random = np.random.default_rng(1)
    kinds = set()
    for _ in range(200):
        how = draw_mixing(random, 0.8, 1.0, 16, 24)
        kinds.add(how.box is None)
        assert 0 <= how.share <= 1
        if how.box is not None:
            pair = torch.stack([torch.zeros(1, 16, 24), torch.ones(1, 16, 24)])
            found, _ = mixed(pair, torch.eye(2), [how])
            assert float(1 - found[0].mean()) == pytest.approx(how.share, abs=1e-6)
    assert kinds == {True, False}
    assert draw_mixing(random, 0, 0, 16, 24) == Mixing()
    assert all(draw_mixing(random, 0.8, 0, 8, 8).box is None for _ in range(20))
    assert all(draw_mixing(random, 0, 1.0, 8, 8).box is not None for _ in range(20))


def test_shares_follow_a_beta_distribution() -> None:
    random = np.random.default_rng(2)
    shares = [draw_mixing(random, 0.8, 0, 8, 8).share for _ in range(4000)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.02)
    assert np.var(shares) == pytest.approx(1 / (4 * (2 * 0.8 + 1)), abs=0.01)
