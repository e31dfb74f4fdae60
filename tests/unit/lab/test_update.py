"""The measured update: linear in the step, equal to the gradient's norm, with known growth."""

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from magneto.lab import update
from magneto.lab.update import (
    MEASURES,
    Update,
    bounds_over,
    effective_scales,
    growth,
    measure_growth,
    measure_update,
    measured_shape,
    theory_of,
)
from magneto.language.config import LanguageModelConfig
from magneto.nn.config import TransformerConfig
from magneto.nn.transformer import Decoder, Encoder, EncoderDecoder
from magneto.theory.bounds import bound, derived_scales, encoder_decoder_bound
from magneto.theory.placement import PLACEMENTS, Depth

SHAPE = TransformerConfig(width=16, layers=2, heads=2, ffn_width=32)


def test_the_sgd_change_of_a_label_is_the_squared_gradient() -> None:
    """F(theta + s g) - F(theta) = s |g|^2 for a small s; so the measure is |g|^2 / d."""
    torch.manual_seed(7)
    model = Decoder(SHAPE).double().eval()
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    rows = torch.randn(3, 16, dtype=torch.float64)
    changes = update._label_changes(model, x, rows)
    weights = [p for p in model.layers.parameters() if p.ndim >= 2]
    gradients = [torch.autograd.grad(model(x)[n, -1] @ rows[n], weights) for n in (0, 1)]
    square = sum(g.square().sum().item() for part in gradients for g in part) / 2
    size = sum(g.abs().sum().item() for part in gradients for g in part) / 2
    assert changes["label", "sgd"] == pytest.approx(square / 16, rel=1e-4), "a mean over samples"
    assert changes["label", "adam"] == pytest.approx(size / 16, rel=1e-4)


def test_the_change_is_linear_in_the_step_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    small = measure_update(SHAPE, seed=3)
    monkeypatch.setattr(update, "STEP", update.STEP / 10)
    smaller = measure_update(SHAPE, seed=3)
    assert [(u.reading, u.optimizer) for u in small] == list(MEASURES)
    assert [u.value for u in small] == pytest.approx([u.value for u in smaller], rel=1e-3)
    assert measure_update(SHAPE, seed=3) == smaller, "the same seed, the same measurement"


def test_the_change_of_the_output_is_relative_and_after_one_step_on_the_batch() -> None:
    torch.manual_seed(7)
    model = Decoder(SHAPE).double().eval()
    x, rows = torch.randn(3, 6, 16).double(), torch.randn(5, 16).double()
    answers = torch.randint(5, (3, 6))
    changes = update._output_changes(model, x, rows, answers)
    before = model(x)
    nn.functional.cross_entropy((before @ rows.T).flatten(0, 1), answers.flatten()).backward()
    for optimizer, direction in (("sgd", lambda slope: slope), ("adam", torch.sign)):
        moved = deepcopy(model)
        with torch.no_grad():
            for weight, own in zip(moved.parameters(), model.parameters(), strict=True):
                if weight.ndim >= 2:
                    weight -= 1e-7 * direction(own.grad)
            change = ((moved(x) - before).norm() / before.norm()).item() / 1e-7
        assert changes["output", optimizer] == pytest.approx(change, rel=1e-4)


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
    (fitted,) = growth(spread)
    # The exponents 1.5 and 2.5: 2 -+ 12.706 x 0.5.
    assert fitted.exponent == pytest.approx(2)
    assert fitted.interval == pytest.approx(12.7062 / 2, rel=1e-4)
    low, high = fitted.ratio_range
    assert low == pytest.approx(16 / 2**12.7062, rel=1e-4)
    assert high == pytest.approx(16 * 2**12.7062, rel=1e-4)


def test_growth_names_what_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="sub was measured only at 2 layers"):
        growth([Update("sub", 2, 0, "label", "sgd", 1.0)])
    for value in (0.0, math.nan, -1.0):
        with pytest.raises(ValueError, match="sub at 4 layers"):
            growth([Update("sub", n, 0, "label", "sgd", v) for n, v in ((2, 1.0), (4, value))])


def test_measured_shape_keeps_proportions() -> None:
    sizes = {"width": 1024, "heads": 16, "key_value_heads": 8, "ffn_width": 3072, "layers": 24}
    model = LanguageModelConfig(**sizes, positions="rotary", dropout=0.1, norm="rmsnorm")
    shape = measured_shape(model)
    assert (shape.width, shape.heads, shape.ffn_width) == (64, 4, 192)
    assert (shape.norm, shape.dropout, shape.positions) == ("rmsnorm", 0.0, "none")
    assert measured_shape(SHAPE).width == 16


def test_depth_tells_placements_apart() -> None:
    """From 2 to 16 layers Post-LN's update grows far more than Sub-LN's; DeepNorm's does not."""
    placements = ["post", "sub", "deepnorm"]
    updates = [
        update
        for name in placements
        for update in measure_growth(
            replace(SHAPE, width=32, ffn_width=64, placement=name), depths=(2, 16), seeds=(0, 1)
        )
    ]
    fits = {(f.placement, f.reading, f.optimizer): f for f in growth(updates)}
    post, sub, deepnorm = (fits[name, "output", "sgd"] for name in placements)
    assert post.ratio > 3 * sub.ratio > 3 * deepnorm.ratio
    assert 0.5 < deepnorm.ratio < 1.5
    # Adam's step has the same size in every weight: no placement is free of depth under it.
    assert all(fits[name, "output", "adam"].ratio > 1.5 for name in placements)


def config(**changes: object) -> TransformerConfig:
    shape = {"width": 128, "layers": 3, "heads": 4, "ffn_width": 512, "placement": "pre"}
    return TransformerConfig(**(shape | changes))  # type: ignore[arg-type]


def squares(values: tuple[float, ...]) -> list[float]:
    return [value * value for value in values]


def test_square_xavier_is_1_and_the_feed_forward_network_is_not() -> None:
    for init in ("xavier_normal", "xavier_uniform"):
        scales = effective_scales(Encoder(config(init=init, layers=1)))
        assert squares(scales.v) == pytest.approx([1, 1.6], rel=0.05)
        assert squares(scales.w) == pytest.approx([1, 0.4], rel=0.05)


def test_fused_projections_and_shared_keys_are_measured_on_the_values_alone() -> None:
    stack = Decoder(config(key_value_heads=2))
    with torch.no_grad():
        for role, weight in stack.layers[0].self_attention.attention.qkv_proj.roles():  # type: ignore[union-attr]
            weight.mul_(100 if role in "qk" else 1)
    # Xavier with fans 128 and 64.
    assert effective_scales(stack).w[0] ** 2 == pytest.approx(128 * 2 / 192, rel=0.05)


def test_cross_attention_is_the_second_sublayer_and_not_scaled() -> None:
    made = config(placement="sub", ffn_width=128, encoder_layers=2, decoder_layers=4)
    model = EncoderDecoder(made)
    expected = derived_scales("sub", Depth("decoder", 4, 2), cross_gain=1)
    scales = effective_scales(model.decoder)
    assert scales.v == pytest.approx(expected.v, rel=0.05)
    assert len(scales.v) == 12
    encoder = derived_scales("sub", Depth("encoder", 2, 4))
    theory = encoder_decoder_bound("sub", encoder, expected).total
    assert theory_of(model).measured["paper"] == pytest.approx(theory, rel=0.05)
    alike = derived_scales("sub", Depth("decoder", 4, 2))
    assert theory_of(model).derived["paper"] == encoder_decoder_bound("sub", encoder, alike).total


def test_a_gated_network_counts_the_mean_of_gate_and_value() -> None:
    stack = Encoder(config(activation="swiglu", layers=1))
    with torch.no_grad():
        stack.layers[0].feed_forward.mlp.fc1.weight[:512].mul_(2)  # type: ignore[union-attr,index]
    assert effective_scales(stack).w[1] ** 2 == pytest.approx(0.4 * (4 + 1) / 2, rel=0.05)


def test_why_there_is_no_bound_is_said() -> None:
    zero = Encoder(config(layers=1))
    nn.init.zeros_(zero.layers[0].feed_forward.mlp.fc2.weight)  # type: ignore[union-attr,arg-type]
    for model, reason in (
        (nn.Linear(2, 2), "a model with 0 Transformer stacks"),
        (
            nn.ModuleList([zero, zero.layers[0], Encoder(config(layers=1))]),
            "a model with 2 Transformer stacks",
        ),
        (Encoder(config(placement="peri", layers=1)), "no bound is derived for Peri-LN"),
        (zero, "v of sublayer 2 must be a positive number"),
    ):
        found = theory_of(model)
        assert found.derived == found.measured == {} and reason in found.note
    assert "only the order of growth" in theory_of(Encoder(config(placement="post", layers=1))).note


def test_a_weighted_skip_connection_has_no_bound_of_pre_ln() -> None:
    """The layout alone does not tell: the derivation has no weight on the skip connection."""
    pre = PLACEMENTS["pre"]
    assert bounds_over(replace(pre, name="heavy", alpha=lambda depth: 2.0), [2, 4], "decoder") == {}
    scales = [derived_scales(pre, Depth("decoder", layers)) for layers in (2, 4)]
    found = bounds_over(pre, [2, 4], "decoder")
    assert len(found) > 1 and found == {
        form: [bound(pre, part, form=form) for part in scales] for form in found
    }
