"""Figures show what they say."""

import io
import re

import numpy as np
import pytest
import torch

from magneto.figures import MOST_CLASSES
from magneto.vision import figures
from magneto.vision.figures import (
    OPACITY,
    class_colours,
    codes_figure,
    confusion_figure,
    mistakes_figure,
    overlay,
    reconstruction_figure,
)
from magneto.vision.transforms import InputFormat
from tests.unit.vision.small import small_model

Image = pytest.importorskip("PIL.Image")


def test_patches_are_grouped_by_their_codes() -> None:
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(9, 1, 8, 8, generator=draw) * 2 - 1
    codes = torch.randint(6, (9, 16), generator=draw)
    times = sorted((int(n) for n in codes.flatten().bincount() if n), reverse=True)
    caption = codes_figure(images, codes, 7, 2).caption
    assert f"in the order of the rows: {', '.join(map(str, times))}." in caption
    assert f"{len(times)} of 7 codes occur" in caption
    # Where patches that are alike have a code of their own, its mean is the patch.
    twice, own = images.repeat(2, 1, 1, 1), torch.arange(9 * 16).view(9, 16).repeat(2, 1)
    assert "leave 0 % of the variance" in reconstruction_figure(twice, own, 144, 2).caption
    opposite = torch.tensor([3.0, -1] * 4).view(8, 1, 1, 1).expand(8, 1, 8, 8)
    one = torch.zeros(8, 16, dtype=torch.long)
    assert " 100 % of the variance" in reconstruction_figure(opposite, one, 7, 2).caption


def test_rows_of_the_figures_of_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of patches whose brightness is their code, with an edge that shows how they lie."""
    drawn: list[list[torch.Tensor]] = []
    monkeypatch.setattr(figures, "tiles", lambda rows: drawn.append(list(rows)) or b"")
    codes = torch.tensor([[0, 1, 1, 2], [2, 2, 1, 2]])
    patches = (codes / 10)[:, :, None, None, None] + torch.tensor([[0.0, 0.02], [0.04, 0.0]])
    images = torch.cat(
        [patches[:, :2].movedim(1, 3).flatten(3), patches[:, 2:].movedim(1, 3).flatten(3)], 2
    )
    codes_figure(images, codes, 4, 2)
    for row, (code, times) in zip(drawn[0], ((2, 4), (1, 3), (0, 1)), strict=True):
        patch = code / 10 + torch.tensor([[0.0, 0.02], [0.04, 0.0]])
        torch.testing.assert_close(row[:times], patch.expand(times, 1, 2, 2))
        assert len(row) == figures.PATCHES and (row[times:] == 1).all()
    reconstruction_figure(images, codes, 4, 2)
    torch.testing.assert_close(drawn[1], [images, images])
    hidden, guesses = torch.tensor([[1, 3]]), torch.tensor([[1, 3]])  # of the codes 1 and 2
    figure = figures.guesses_figure(images, codes, hidden, guesses, 4, 2)
    assert "50 % of the 2 predictions" in figure.caption
    grey, guessed = images[:1].clone(), images[:1].clone()
    grey[:, :, :, 2:] = guessed[:, :, 2:, 2:] = 0  # code 3 has no patch
    torch.testing.assert_close(drawn[2], [images[:1], grey, images[:1], guessed])


def test_tiles_stand_in_rows_and_are_black_at_minus_one() -> None:
    rows = [torch.stack([torch.full((1, 4, 4), level) for level in row])
            for row in ((-2.0, 0.0), (1.0, -1.0))]  # fmt: skip
    drawn = np.asarray(Image.open(io.BytesIO(figures.tiles(rows))).convert("RGB"))
    down, across, _ = drawn.shape
    found = [[int(drawn[row * down // 8, column * across // 4, 0]) for column in (1, 3)]
             for row in (2, 6)]  # fmt: skip
    assert found == [[0, 128], [255, 0]]
    wide, _ = Image.open(io.BytesIO(figures.tiles([torch.zeros(8, 1, 200, 200)]))).size
    assert wide > 8 * 200, "no pixel is lost"


def test_attention_is_of_the_last_layer_to_each_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[torch.Tensor]] = []
    monkeypatch.setattr(figures, "tiles", lambda rows: drawn.append(list(rows)) or b"")
    model, images = small_model(), torch.randn(7, 3, 16, 16)
    figures.attention_figure(model, images, images, slice(0, 1))
    weights = model.encoder.attention_weights(model.embed(images), 3)[:, :, 0, 1:]
    for row, own in zip(drawn[0][1:], (weights.mean(1), weights[:, 0], weights[:, 1]), strict=True):
        shown = own / own.amax(1, keepdim=True) * 2 - 1
        torch.testing.assert_close(row[:, 0, ::4, ::4].flatten(1), shown)
        assert torch.equal(row[:, :, 3::4, 2::4], row[:, :, ::4, ::4])


def test_a_segmentation_beside_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list = []
    monkeypatch.setattr(figures, "image_panels", lambda *given: drawn.extend(given) or b"")
    pixels = np.full((2, 400, 3), 100, np.uint8)
    mask = np.repeat(np.array([[1, 1, 3, 255]], np.uint8), 100, 1).repeat(2, 0)
    answer = np.repeat(np.array([[1, 3, 3, 1]], np.uint8), 100, 1).repeat(2, 0)
    figure = figures.overlay_figure(1, "a/b c.d.png", pixels, mask, answer, ["w", "x", "y", "z"])
    assert "66.7%" in figure.caption and figure.title == "Segmentation of b c.d.png"
    ((_, panels),), columns, side, legend = drawn
    assert columns == 3 and side == pytest.approx(400 / figures.DPI)
    assert [words for _, words in legend] == ["x  57.1 %", "z  42.9 %"]
    assert np.allclose(legend[1][0], class_colours(4)[3] / 255)
    wanted = [pixels, *(overlay(pixels, each, class_colours(4)) for each in (mask, answer))]
    assert all(map(np.array_equal, [panel.image for panel in panels], wanted))


def test_confusion_has_short_names_and_the_commonest_classes() -> None:
    matrix = np.array([[75, 25, 0], [0, 10, 0], [0, 0, 0]])
    names = ["sky, blue", "a bird of a very long name", "tree"]
    figure = confusion_figure(matrix, names, "pixels")
    words = re.findall(r">([^<>]+)</text>", str(figure.image))
    assert {"75", "25", "100", "sky", "a bird of a very lo…"} <= {*words}
    assert "85 of 110 validation pixels" in figure.caption
    many = confusion_figure(np.diag(np.arange(1, 151)), [f"class{n}" for n in range(150)], "images")
    assert f"{150 - MOST_CLASSES} rarer classes are left out" in many.caption


def test_a_mistake_is_shown_as_it_looks() -> None:
    """Restored, not stretched to its own darkest and brightest pixel."""
    dark = torch.full((5, 1, 4, 4), -0.8)
    figure = mistakes_figure(dark, ["is a"] * 5, InputFormat(4, 1))
    assert "The 5 most confident" in figure.caption
    assert isinstance(figure.image, bytes)
    pixels = np.asarray(Image.open(io.BytesIO(figure.image)).convert("RGB"))
    assert (abs(pixels.astype(int) - 26) <= 2).all(-1).mean() > 0.4


def test_colours_of_classes_differ_and_ignored_pixels_have_none() -> None:
    assert np.array_equal(class_colours(3), class_colours(150)[:3])
    assert len(np.unique(class_colours(150), axis=0)) == 150
    pixels = np.full((2, 3, 3), 100, np.uint8)
    classes = np.array([[0, 1, 255], [2, 2, 255]], np.uint8)
    found = overlay(pixels, classes, class_colours(3))
    assert (found[:, 2] == 100).all()
    expected = 100 + OPACITY * (class_colours(3)[1].astype(float) - 100)
    assert np.abs(found[0, 1] - expected).max() <= 0.5
    assert np.array_equal(overlay(pixels[..., :1], classes, class_colours(3)), found)
