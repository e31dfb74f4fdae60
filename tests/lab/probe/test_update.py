"""The measured update: linear in the step, equal to the gradient's norm, growing as it should."""

import math
from dataclasses import replace

import pytest
import torch

from magneto.lab.probe import update
from magneto.lab.probe.update import (
    MEASURES,
    Update,
    growth,
    measure_growth,
    measure_update,
    measured_shape,
)
from magneto.language.config import LanguageModelConfig
from magneto.nn.config import TransformerConfig
from magneto.nn.transformer import Decoder
from magneto.vision.classification.config import ImageClassifierConfig

SHAPE = TransformerConfig(width=16, layers=2, heads=2, ffn_width=32)


def test_the_sgd_change_of_a_label_is_the_squared_gradient() -> None:
    """F(theta + s g) - F(theta) = s |g|^2 for a small s; so the measure is |g|^2 / d."""
    torch.manual_seed(7)
    model = Decoder(SHAPE).double().eval()
    x = torch.randn(1, 6, 16, dtype=torch.float64)
    row = torch.randn(1, 16, dtype=torch.float64)
    changes = update._label_changes(model, x, row)
    weights = [p for p in model.layers.parameters() if p.ndim >= 2]
    gradients = torch.autograd.grad(model(x)[0, -1] @ row[0], weights)
    square = sum(g.square().sum().item() for g in gradients)
    size = sum(g.abs().sum().item() for g in gradients)
    assert changes["label", "sgd"] == pytest.approx(square / 16, rel=1e-4)
    assert changes["label", "adam"] == pytest.approx(size / 16, rel=1e-4)


def test_the_change_is_linear_in_the_step_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    small = measure_update(SHAPE, seed=3)
    monkeypatch.setattr(update, "STEP", update.STEP / 10)
    smaller = measure_update(SHAPE, seed=3)
    assert [(u.reading, u.optimizer) for u in small] == list(MEASURES)
    for a, b in zip(small, smaller, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-3)
    assert measure_update(SHAPE, seed=3) == smaller, "the same seed, the same measurement"


def test_growth_of_known_powers() -> None:
    updates = [
        Update("sub", layers, seed, "label", "sgd", (1 + seed) * layers**1.5)
        for layers in (2, 8, 32)
        for seed in (0, 1, 2)
    ]
    (fitted,) = growth(updates)
    assert fitted.exponent == pytest.approx(1.5) and fitted.interval == pytest.approx(0, abs=1e-9)
    assert fitted.ratio == pytest.approx(16**1.5) and fitted.depths == (2, 32)
    assert fitted.ratio_range == pytest.approx((64.0, 64.0))
    # Two seeds that grow by 8 and by 32: exp(log 16 -+ 12.706 x log 2).
    spread = [
        Update("sub", layers, seed, "label", "sgd", value)
        for seed, end in ((0, 8.0), (1, 32.0))
        for layers, value in ((2, 1.0), (8, end))
    ]
    low, high = growth(spread)[0].ratio_range
    assert low == pytest.approx(16 / 2**12.7062, rel=1e-4)
    assert high == pytest.approx(16 * 2**12.7062, rel=1e-4)


def test_growth_names_what_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match=r"two depths; sub has \[2\]"):
        growth([Update("sub", 2, 0, "label", "sgd", 1.0)])
    for value in (0.0, math.nan, -1.0):
        with pytest.raises(ValueError, match="sub at 4 layers"):
            growth([Update("sub", n, 0, "label", "sgd", v) for n, v in ((2, 1.0), (4, value))])


def test_measured_shape_keeps_proportions() -> None:
    model = LanguageModelConfig(
        width=1024,
        heads=16,
        ffn_width=3072,
        layers=24,
        positions="rotary",
        dropout=0.1,
        norm="rmsnorm",
    )
    shape = measured_shape(model)
    assert (shape.width, shape.heads, shape.ffn_width) == (64, 4, 192)
    assert (shape.norm, shape.dropout, shape.positions) == ("rmsnorm", 0.0, "none")
    assert measured_shape(SHAPE).width == 16


def test_measured_shape_of_an_image_model_has_no_grid() -> None:
    model = ImageClassifierConfig(
        width=96, heads=8, head_dim=16, layer_scale=0.1, drop_path=0.1, unbiased=("k",),
        grid_positions="relative_bias", class_token="learned",
    )  # fmt: skip
    shape = measured_shape(model)
    assert (shape.width, shape.heads, shape.head_width, shape.unbiased) == (64, 4, 16, ("k",))
    assert (shape.grid_positions, shape.layer_scale, shape.drop_path) == ("none", None, 0.0)


def test_depth_tells_placements_apart() -> None:
    """From 2 to 16 layers Post-LN's update grows far more than Sub-LN's; DeepNorm's does not."""
    placements = ["post", "sub", "deepnorm"]
    done = []
    updates = measure_growth(
        replace(SHAPE, width=32, ffn_width=64),
        placements=placements, depths=(2, 16), seeds=(0, 1, 2),
        progress=lambda part, total: done.append((part, total)),
    )  # fmt: skip
    assert done[-1][0] == done[-1][1] == 3 * 3 * 18
    fits = {(f.placement, f.reading, f.optimizer): f for f in growth(updates)}
    post, sub, deepnorm = (fits[name, "output", "sgd"] for name in placements)
    assert post.ratio > 3 * sub.ratio > 3 * deepnorm.ratio
    assert 0.5 < deepnorm.ratio < 1.5
    # Adam's step has the same size in every weight: no placement is free of depth under it.
    assert all(fits[name, "output", "adam"].ratio > 1.5 for name in placements)
