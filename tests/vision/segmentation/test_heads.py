"""The heads against transformers' UperNet and BEiT: the same weights, the same outputs."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from magneto.vision.segmenter import FCNHead, FeaturePyramid, GroupNorm, UperNetHead

WIDTH, CHANNELS, CLASSES, SCALES = 12, 8, 5, (1, 2, 3, 6)
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


def maps(*sizes: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, WIDTH, size, size + 1, generator=generator) for size in sizes]


def with_group_norm(theirs: nn.Module) -> nn.Module:
    """Return a module of transformers with our norm in the place of batch norm."""
    for module in list(theirs.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, GroupNorm(child.num_features))
    return theirs


def config(**changes: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    backbone = transformers.ConvNextConfig(out_features=["stage1"])
    return transformers.UperNetConfig(
        backbone_config=backbone, hidden_size=CHANNELS, pool_scales=list(SCALES),
        num_labels=CLASSES, auxiliary_channels=CHANNELS, auxiliary_in_channels=WIDTH,
    )  # fmt: skip


def test_upernet_is_transformers() -> None:
    modeling = pytest.importorskip("transformers.models.upernet.modeling_upernet")
    theirs = with_group_norm(modeling.UperNetHead(config(), [WIDTH] * 4))
    ours = UperNetHead(WIDTH, CHANNELS, CLASSES, SCALES, 0.1)
    take_over(ours, theirs, upernet_name)
    levels = maps(28, 14, 7, 3)
    expected = theirs(levels)
    assert expected.std() > 0.1
    torch.testing.assert_close(ours(levels), expected, rtol=1e-5, atol=1e-5)


def test_auxiliary_head_is_transformers() -> None:
    modeling = pytest.importorskip("transformers.models.upernet.modeling_upernet")
    theirs = with_group_norm(modeling.UperNetFCNHead(config(), [WIDTH] * 4))
    ours = FCNHead(WIDTH, CHANNELS, CLASSES, 0.1)
    take_over(ours, theirs, upernet_name)
    levels = maps(28, 14, 7, 3)
    torch.testing.assert_close(ours(levels[2]), theirs(levels), rtol=1e-5, atol=1e-5)


def test_pyramid_is_beit_s() -> None:
    modeling = pytest.importorskip("transformers.models.beit.modeling_beit")
    theirs = with_group_norm(modeling.BeitFPNNeck(modeling.BeitConfig(hidden_size=WIDTH)))
    ours = FeaturePyramid(WIDTH)
    take_over(ours, theirs, pyramid_name)
    found = ours(maps(7, 7, 7, 7))
    assert [tuple(x.shape[2:]) for x in found] == [(28, 32), (14, 16), (7, 8), (3, 4)]
    for answer, expected in zip(found, theirs(maps(7, 7, 7, 7)), strict=True):
        torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5)


def test_first_loss_is_near_ln_classes() -> None:
    torch.manual_seed(0)
    head = UperNetHead(WIDTH, CHANNELS, CLASSES, SCALES, 0.1)
    logits = head(maps(28, 14, 7, 3))
    masks = torch.randint(CLASSES, (2, *logits.shape[2:]))
    loss = nn.functional.cross_entropy(logits, masks)
    assert abs(loss.item() - torch.tensor(float(CLASSES)).log().item()) < 0.05


def test_each_image_s_answer_is_its_own() -> None:
    torch.manual_seed(0)
    head = UperNetHead(WIDTH, CHANNELS, CLASSES, SCALES, 0.0)
    levels = maps(8, 4, 2, 1)
    alone = head([level[:1] for level in levels])
    torch.testing.assert_close(head(levels)[:1], alone, rtol=1e-5, atol=1e-6)


def test_group_norm_sees_one_image() -> None:
    norm = GroupNorm(48)
    x = torch.randn(3, 48, 4, 4)
    assert torch.allclose(norm(x)[1:2], norm(x[1:2]), atol=1e-6)
    assert norm.num_groups == 2 and norm(x.bfloat16()).dtype == torch.bfloat16
