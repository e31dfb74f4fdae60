"""Which patches are hidden, and where the codes in their places come from."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from magneto.config import ConfigError
from magneto.recipe import RUN_FILE
from magneto.vision.config import ImageModelConfig
from magneto.vision.targets import BlockMasking, CodeTargets, PatchTokenizer, load_tokenizer
from magneto.vision.transforms import InputFormat
from tests.unit.vision.small import PATCHES, small_recipe


def test_the_count_is_exact_on_any_grid() -> None:
    for side, ratio in itertools.product((2, 3, 5, 16), (0.01, 0.4, 0.75, 0.99)):
        masking, random = BlockMasking(side, side, ratio), np.random.default_rng(0)
        assert masking.count == min(max(1, round(ratio * side**2)), side**2 - 1)
        for _ in range(20):
            drawn = masking.draw(random)
            assert len(drawn) == masking.count == len(set(drawn.tolist()))
            assert (np.diff(drawn) > 0).all() and drawn[0] >= 0 and drawn[-1] < side**2


def config(**changes: Any) -> ImageModelConfig:
    return ImageModelConfig(**{**PATCHES, "codes": 4, **changes})


def flat_patches() -> torch.Tensor:
    """Images of patches in four shades, a little noisy."""
    draw = torch.Generator().manual_seed(0)
    shades = torch.tensor([-1.0, -0.3, 0.3, 1.0])[torch.randint(4, (20, 1, 4, 4), generator=draw)]
    large = shades.repeat_interleave(2, -1).repeat_interleave(2, -2)
    return large + 0.02 * torch.randn(20, 1, 8, 8, generator=draw)


def test_patches_that_look_alike_have_one_code() -> None:
    images = flat_patches()
    # From some starts two shades share a code; the best of a few does not.
    found = [PatchTokenizer(config(), [images[:10], images[10:]], seed) for seed in range(8)]
    codes = max((t.encode(images) for t in found), key=lambda codes: len(codes.unique()))
    means = images.unfold(2, 2, 2).unfold(3, 2, 2).mean((-1, -2)).flatten(1)
    spread = torch.stack([means[codes == code].std() for code in range(4)])
    assert codes.shape == (20, 16) and spread.max() < 0.1


def test_the_tokenizer_reads_pixels_from_minus_one_to_one() -> None:
    tokenizer = PatchTokenizer(config(channels=3), [torch.randn(4, 3, 8, 8)], 0)
    pixels = torch.randint(256, (8, 8, 3), dtype=torch.uint8).numpy()
    half = torch.from_numpy(InputFormat(8, 3, "half").normalise(pixels))[None]
    for kind in ("half", "imagenet"):
        targets = CodeTargets(tokenizer, kind)
        images = torch.from_numpy(InputFormat(8, 3, kind).normalise(pixels))[None]
        assert torch.allclose(targets.view(images), half, atol=1e-6)
        assert torch.equal(targets(images), tokenizer.encode(half))


def test_a_runs_tokenizer(tokenizer_run: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_run, config())
    targets = CodeTargets(tokenizer, "half").eval()
    images = flat_patches()
    assert torch.equal(targets(images), tokenizer.encode(images))
    assert targets.digest() != CodeTargets(PatchTokenizer(config(), [images], 0), "half").digest()
    with pytest.raises(ValueError, match=r"images of another size: give --model.patch_size 2"):
        load_tokenizer(tokenizer_run, config(patch_size=4))
    with pytest.raises(FileNotFoundError, match=r"no run in .*; did you mean .*tokenizer"):
        load_tokenizer(tokenizer_run.with_name("tokeniser"), config())
    small_recipe("image-modelling").save(tmp_path / RUN_FILE)
    (tmp_path / "assets").mkdir()
    with pytest.raises(ConfigError, match="does not support image-modelling"):
        load_tokenizer(tmp_path, config())
