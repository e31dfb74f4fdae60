"""Heads of segmentation and teachers beside transformers'."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from magneto.vision.config import ImageTokenizerConfig
from magneto.vision.models import FCNHead, FeaturePyramid, GroupNorm, UperNetHead
from magneto.vision.tokenizer import FLAT, build_teacher, gradient_histograms

WIDTH, CHANNELS, CLASSES, SCALES = 12, 8, 5, (1, 2, 3, 6)


def maps(*sizes: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, WIDTH, size, size + 1, generator=generator) for size in sizes]


# Of a block of convolution, norm and ReLU.
BLOCK = {"0": "conv", "1": "batch_norm"}


def upernet_name(name: str) -> str:
    """Return what transformers' UperNet calls one of our head's tensors."""
    *parts, last = name.split(".")
    where = ".".join(parts)
    where = re.sub(r"^pooling\.scales\.(\d)\.1\.(\d)$",
                   lambda m: f"psp_modules.{m[1]}.1.{BLOCK[m[2]]}", where)  # fmt: skip
    for ours, theirs in (("pooling.bottleneck", "bottleneck"), ("fuse", "fpn_bottleneck"),
                         ("laterals", "lateral_convs"), ("smooth", "fpn_convs"),
                         ("convolution", "convs.0")):  # fmt: skip
        where = re.sub(rf"^{ours}((?:\.\d)?)\.(\d)$",
                       lambda m, name=theirs: f"{name}{m[1]}.{BLOCK[m[2]]}", where)  # fmt: skip
    return f"{where}.{last}"


def pyramid_name(name: str) -> str:
    """Return what transformers' BEiT calls one of our pyramid's tensors."""
    parts = ("conv_transpose1", "normalization", "activation", "conv_transpose2")
    name = re.sub(r"^levels\.0\.(\d)", lambda m: f"fpn1.{parts[int(m[1])]}", name)
    return name.replace("levels.1", "fpn2")


def take_over(ours: nn.Module, theirs: nn.Module, name_of: Any) -> None:
    """Give ours the tensors of theirs; all of both are used."""
    held = dict(theirs.state_dict())
    generator = torch.Generator().manual_seed(1)
    for tensor in held.values():
        tensor.normal_(std=0.3, generator=generator)
    ours.load_state_dict({name: held.pop(name_of(name)) for name in ours.state_dict()})
    assert not held
    ours.eval()
    theirs.eval()


def with_group_norm(theirs: nn.Module) -> nn.Module:
    """Return a module of transformers with our norm in the place of batch norm."""
    for module in list(theirs.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, GroupNorm(child.num_features))
    return theirs


@pytest.mark.parametrize("kind", ["UperNetHead", "UperNetFCNHead"])
def test_heads_are_transformers(kind: str) -> None:
    modeling = pytest.importorskip("transformers.models.upernet.modeling_upernet")
    settings = modeling.UperNetConfig(
        hidden_size=CHANNELS, pool_scales=list(SCALES), num_labels=CLASSES,
        auxiliary_channels=CHANNELS, auxiliary_in_channels=WIDTH,
    )  # fmt: skip
    theirs = with_group_norm(getattr(modeling, kind)(settings, [WIDTH] * 4))
    levels: Any = maps(28, 14, 7, 3)
    ours: nn.Module = UperNetHead(WIDTH, CHANNELS, CLASSES, SCALES, 0.1)
    given = levels
    if kind == "UperNetFCNHead":
        ours, given = FCNHead(WIDTH, CHANNELS, CLASSES, 0.1), levels[2]
    take_over(ours, theirs, upernet_name)
    expected = theirs(levels)
    assert expected.std() > 0.1
    torch.testing.assert_close(ours(given), expected, rtol=1e-5, atol=1e-5)


def test_pyramid_is_beit_s() -> None:
    modeling = pytest.importorskip("transformers.models.beit.modeling_beit")
    theirs = with_group_norm(modeling.BeitFPNNeck(modeling.BeitConfig(hidden_size=WIDTH)))
    ours = FeaturePyramid(WIDTH)
    take_over(ours, theirs, pyramid_name)
    found = ours(maps(7, 7, 7, 7))
    assert [tuple(x.shape[2:]) for x in found] == [(28, 32), (14, 16), (7, 8), (3, 4)]
    torch.testing.assert_close(found, theirs(maps(7, 7, 7, 7)), rtol=1e-5, atol=1e-5)


def by_hand(image: np.ndarray, cell: int) -> np.ndarray:
    """(channels, height, width) to (9, height / cell, width / cell), pixel by pixel."""
    channels, height, width = image.shape
    found = np.zeros((9, height // cell, width // cell))
    for y in range(height):
        for x in range(width):
            best, angle = -1.0, 0.0
            for c in range(channels):
                down = image[c, y + 1, x] - image[c, y - 1, x] if 0 < y < height - 1 else 0.0
                across = image[c, y, x + 1] - image[c, y, x - 1] if 0 < x < width - 1 else 0.0
                if math.hypot(down, across) > best:
                    best = math.hypot(down, across)
                    angle = math.degrees(math.atan2(down, across)) % 180
            found[min(int(angle // 20), 8), y // cell, x // cell] += best / cell**2
    return found


@pytest.mark.parametrize(("channels", "cell"), [(1, 2), (3, 4), (3, 8)])
def test_against_a_loop_over_pixels(channels: int, cell: int) -> None:
    images = np.random.default_rng(0).random((2, channels, 16, 16))
    found = gradient_histograms(torch.from_numpy(images), cell).numpy()
    assert np.allclose(found, np.stack([by_hand(image, cell) for image in images]), atol=1e-12)


SIZES = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 16, "codes": 4, "code_width": 4}


MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]


def config(teacher: str, **changes: Any) -> ImageTokenizerConfig:
    shape = {"image_size": 32, "patch_size": 8, "channels": 3, **changes}
    return ImageTokenizerConfig(**SIZES, **shape, teacher=teacher)


def images(channels: int = 3, size: int = 32) -> torch.Tensor:
    return torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(0)) * 2 - 1


def save(model: Any, folder: Path) -> str:
    library = pytest.importorskip("transformers")
    model.save_pretrained(folder)
    reader = library.image_processing_base.ImageProcessingMixin
    reader(image_mean=MEAN, image_std=STD).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    library = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
             "num_attention_heads": 2, "image_size": 32, "patch_size": 8}  # fmt: skip
    settings = library.CLIPVisionConfig(**shape, projection_dim=12)
    model = library.CLIPVisionModelWithProjection(settings).eval()
    return model, save(model, tmp_path_factory.mktemp("clip"))


def normalised(given: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return ((given + 1) / 2 - mean) / std


@torch.no_grad()
def test_clip(clip: tuple[Any, str]) -> None:
    model, folder = clip
    teacher: Any = build_teacher(config(f"clip:{folder}")).eval()
    found = teacher(images())
    every = teacher.tokens(normalised(images()))
    # The class token, put through the same norm and projection, is CLIP's own answer.
    theirs = model(normalised(images()))
    assert found.shape == (2, 16, 12) and teacher.width == 12
    assert torch.allclose(every[:, 0], theirs.image_embeds, atol=1e-6)
    last = model.vision_model.post_layernorm(theirs.last_hidden_state[:, 1:])
    assert torch.allclose(found, model.visual_projection(last), atol=1e-5)
    # An image of another size is resized to theirs: a grid of 4 x 4, too.
    other = build_teacher(config(f"clip:{folder}", image_size=16, patch_size=4)).eval()
    assert other(images(size=16)).shape == (2, 16, 12)


@pytest.mark.parametrize("kind", ["ViT", "Dinov2"])
def test_dino(kind: str, tmp_path: Path) -> None:
    library = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
             "image_size": 32, "patch_size": 8}  # fmt: skip
    model = getattr(library, f"{kind}Model")(getattr(library, f"{kind}Config")(**shape)).eval()
    teacher = build_teacher(config(f"dino:{save(model, tmp_path)}")).eval()
    with torch.no_grad():
        expected = model(normalised(images())).last_hidden_state[:, 1:]
        assert torch.allclose(teacher(images()), expected, atol=1e-5)
    assert teacher.width == 16


def test_what_is_wrong_is_said(clip: tuple[Any, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="grid of 4 x 4 patches, but the model has 2 x 2"):
        build_teacher(config(f"clip:{clip[1]}", patch_size=16))
    with pytest.raises(ValueError, match=f"model.teacher {tmp_path}: .*"):
        build_teacher(config(f"clip:{tmp_path}"))


def test_pixels_of_a_patch_are_in_its_vector() -> None:
    teacher = build_teacher(config("pixels"))
    given = images()
    found = teacher(given)
    assert found.shape == (2, 16, 3 * 64 + 1) and teacher.width == 193
    assert torch.equal(found[0, 6, :64], given[0, 0, 8:16, 16:24].flatten())
    assert torch.allclose(found[..., -1], torch.tensor(192.0).sqrt() / 2)
    # Black, grey and white patches have directions of their own.
    flat = torch.stack([torch.full((3, 32, 32), level) for level in (-1.0, 0.0, 1.0)])
    ways = F.normalize(teacher(flat)[:, 0], dim=-1)
    assert (ways @ ways.t()).fill_diagonal_(0).max() < 0.5


@pytest.mark.parametrize(("patch", "cells"), [(8, 2), (4, 1), (2, 1)])
def test_gradients_of_a_patch_are_in_its_vector(patch: int, cells: int) -> None:
    teacher = build_teacher(config("hog", patch_size=patch))
    found = teacher(images())
    assert found.shape == (2, (32 // patch) ** 2, 10 * cells**2)
    assert teacher.width == found.shape[2] and torch.isfinite(found).all()
    # Its second patch's cells, in any order, each a direction with the constant.
    cell = patch // cells
    counted = gradient_histograms((images() + 1) / 2, cell)[0, :, :cells, cells : 2 * cells]
    expected = F.normalize(torch.cat((counted, torch.full_like(counted[:1], FLAT))), dim=0)
    assert torch.allclose(found[0, 1].sort().values, expected.flatten().sort().values, atol=1e-6)
