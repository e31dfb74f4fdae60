"""Pictures of codes show what they say."""

import io

import numpy as np
import torch
from matplotlib.image import imread

from magneto.vision.tokenizer.config import ImageTokenizerConfig
from magneto.vision.tokenizer.model import ImageTokenizer
from magneto.vision.tokenizer.pictures import (
    codes_figure,
    image_of,
    mean_patches,
    patches_of,
    png,
    readable_batches,
    reconstruction_figure,
    seen_codes,
    tiles,
)


def tokenizer() -> ImageTokenizer:
    torch.manual_seed(0)
    return ImageTokenizer(
        ImageTokenizerConfig(
            width=16, layers=1, heads=2, ffn_width=16, image_size=8, patch_size=2, channels=1,
            codes=6, code_width=4,
        )
    ).eval()  # fmt: skip


def batches() -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(10, 1, 8, 8, generator=draw) * 2 - 1
    return [{"images": images, "broken": torch.arange(10) == 3}]


def test_patches_and_back() -> None:
    images = torch.arange(2 * 3 * 16.0).view(2, 3, 4, 4)
    patches = patches_of(images, 2)
    assert patches.shape == (2, 4, 3, 2, 2)
    assert torch.equal(patches[1, 2], images[1, :, 2:, :2])
    assert torch.equal(image_of(patches), images)


def test_mean_patches() -> None:
    images = torch.rand(3, 1, 4, 4)
    codes = torch.tensor([[0, 2, 0, 0], [2, 2, 0, 0], [0, 0, 0, 2]])
    means = mean_patches(images, codes, 4, 2)
    patches = patches_of(images, 2)
    assert torch.allclose(means[2], patches[codes == 2].mean(0))
    assert torch.allclose(means[0], patches[codes == 0].mean(0))
    assert not means[1].any() and not means[3].any()


def test_a_picture_is_a_png_of_its_tiles() -> None:
    rows = [
        torch.full((2, 1, 2, 2), -1.0),
        torch.stack((torch.zeros(1, 2, 2), torch.ones(1, 2, 2))),
    ]
    pixels = tiles(rows)
    read = np.round(imread(io.BytesIO(png(pixels)))[..., :3] * 255).astype(np.uint8)
    assert np.array_equal(read, pixels) and png(pixels) == png(pixels)
    height, width = pixels.shape[:2]
    corners = [pixels[y, x, 0] for y in (0, height - 1) for x in (0, width - 1)]
    assert corners == [0, 0, 128, 255]


def test_broken_images_are_not_shown() -> None:
    images, codes = seen_codes(tokenizer().encode, batches(), torch.device("cpu"))
    assert len(images) == len(codes) == 9


def test_batches_that_are_all_broken_are_skipped() -> None:
    (good,) = batches()
    lost = {**good, "broken": torch.ones(10, dtype=torch.bool)}
    assert readable_batches([lost, good, lost], 3) == [good]
    assert readable_batches([lost, good], 1) == []


def test_captions_have_the_numbers() -> None:
    model = tokenizer()
    _, codes = seen_codes(model.encode, batches(), torch.device("cpu"))
    times = sorted((int(n) for n in codes.flatten().bincount() if n), reverse=True)
    caption = codes_figure(model, batches()).caption
    assert caption.endswith(f"have them: {', '.join(map(str, times))}.")
    assert f"of {len(times)} that occur (of 6)" in caption
    assert "% of their variance" in reconstruction_figure(model, batches()).caption
