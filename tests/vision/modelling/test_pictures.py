"""Pictures of masked image modelling show what they say."""

import io
import re

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from magneto.vision.modelling.config import ImageModelConfig
from magneto.vision.modelling.model import MaskedImageModel
from magneto.vision.modelling.pictures import attention_figure, guesses_figure
from magneto.vision.modelling.targets import CodeTargets, PatchTokenizer


def build(class_token: str) -> tuple[MaskedImageModel, CodeTargets, list[dict[str, torch.Tensor]]]:
    torch.manual_seed(0)
    config = ImageModelConfig(
        width=16, layers=2, heads=2, ffn_width=16, image_size=8, patch_size=2, channels=1, codes=6,
        class_token=class_token,  # type: ignore[arg-type]
    )  # fmt: skip
    images = torch.rand(10, 1, 8, 8) * 2 - 1
    hidden = torch.stack([torch.randperm(16)[:6].sort().values for _ in range(10)])
    batch = {"images": images, "hidden": hidden, "broken": torch.arange(10) == 3}
    targets = CodeTargets(PatchTokenizer(config, [images], 0), "half")
    return MaskedImageModel(config).eval(), targets, [batch]


def read(image: str | bytes) -> np.ndarray:
    assert isinstance(image, bytes)
    return np.round(imread(io.BytesIO(image))[..., :3] * 255).astype(np.uint8)


@pytest.mark.parametrize("class_token", ["none", "learned"])
def test_hidden_patches_are_grey(class_token: str) -> None:
    model, targets, batches = build(class_token)
    figure = guesses_figure(model, targets, batches)
    pixels = read(figure.image)
    scale = (pixels.shape[0] - 6) // 32
    second = pixels[8 * scale + 2 : 16 * scale + 2, : 8 * scale]
    grey = (second == 128).all(-1)[scale // 2 :: 2 * scale, scale // 2 :: 2 * scale]
    assert np.flatnonzero(grey.flatten()).tolist() == batches[0]["hidden"][0].tolist()
    kept = torch.arange(10) != 3
    given, hidden = (batches[0][key][kept][:8] for key in ("images", "hidden"))
    guesses, codes = model(given, hidden).argmax(-1), targets(given).gather(1, hidden)
    right = 100 * (guesses == codes).float().mean()
    assert f"Of these 48 guesses {right:.0f} % are right" in figure.caption


@pytest.mark.parametrize("class_token", ["none", "learned"])
def test_attention_is_shown_by_head(class_token: str) -> None:
    model, targets, batches = build(class_token)
    figure = attention_figure(model, targets, batches)
    pixels = read(figure.image)
    assert pixels.shape[0] == 3 * (pixels.shape[0] - 4) // 3 + 4  # the images and two heads
    share = re.search(r"get (\d+) % of it", figure.caption)
    assert share is not None
    assert int(share[1]) == 100 if class_token == "none" else 80 < int(share[1]) < 100
