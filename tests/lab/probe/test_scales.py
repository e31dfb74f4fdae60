"""Scales measured from real stacks, and the bound with them."""

import pytest
import torch
from torch import nn

from magneto.lab.probe.scales import effective_scales, measured_bound
from magneto.nn.config import TransformerConfig
from magneto.nn.transformer import Decoder, Encoder, EncoderDecoder
from magneto.theory.bounds import bound, encoder_decoder_bound
from magneto.theory.depth import Depth
from magneto.theory.placement import PLACEMENTS
from magneto.theory.scales import Scales, derived_scales


def config(**changes: object) -> TransformerConfig:
    shape = {"width": 128, "layers": 3, "heads": 4, "ffn_width": 512, "placement": "pre"}
    return TransformerConfig(**(shape | changes))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def squares(values: tuple[float, ...]) -> list[float]:
    return [value * value for value in values]


@pytest.mark.parametrize("init", ["xavier_normal", "xavier_uniform"])
def test_square_xavier_is_1_and_the_feed_forward_network_is_not(init: str) -> None:
    scales = effective_scales(Encoder(config(init=init)))
    v, w = squares(scales.v), squares(scales.w)
    assert v[::2] == pytest.approx([1] * 3, rel=0.05)
    assert w[::2] == pytest.approx([1] * 3, rel=0.05)
    assert w[1::2] == pytest.approx([0.4] * 3, rel=0.03)
    assert v[1::2] == pytest.approx([1.6] * 3, rel=0.03)


def test_square_sub_ln_has_the_derived_scales() -> None:
    made = config(width=256, ffn_width=256, placement="sub", layers=6)
    expected = derived_scales("sub", Depth("encoder", 6))
    scales = effective_scales(Encoder(made))
    assert scales.v == pytest.approx(expected.v, rel=0.02)
    assert scales.w == pytest.approx(expected.w, rel=0.02)
    assert measured_bound(Encoder(made)) == pytest.approx(3.2354, rel=0.03)


def test_torchs_own_linear_layers_have_a_third() -> None:
    stack = Encoder(config())
    for module in stack.modules():
        if isinstance(module, nn.Linear):
            nn.Linear.reset_parameters(module)
    scales = effective_scales(stack)
    assert squares(scales.v + scales.w) == pytest.approx([1 / 3] * 12, rel=0.05)


def test_fused_projections_and_shared_keys_are_measured_on_the_values_alone() -> None:
    stack = Decoder(config(key_value_heads=2))
    with torch.no_grad():
        for role, weight in stack.layers[0].self_attention.attention.roles():  # type: ignore[union-attr]
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
    assert measured_bound(model) == pytest.approx(theory, rel=0.05)


def test_alpha_comes_along() -> None:
    scales = effective_scales(Encoder(config(placement="deepnorm", ffn_width=128)))
    assert scales.alpha == pytest.approx(6**0.25)
    assert bound("deepnorm", scales) == pytest.approx(1, rel=0.05)


def test_a_gated_network_counts_the_mean_of_gate_and_value() -> None:
    stack = Encoder(config(activation="swiglu", layers=1))
    with torch.no_grad():
        stack.layers[0].feed_forward.mlp.fc1.weight[:512].mul_(2)  # type: ignore[union-attr,index]
    assert effective_scales(stack).w[1] ** 2 == pytest.approx(0.4 * (4 + 1) / 2, rel=0.05)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_can_be_measured(placement: str) -> None:
    scales = effective_scales(Encoder(config(placement=placement, layers=1)))
    assert isinstance(scales, Scales)
    assert len(scales.v) == 2


def test_wrong_models_are_named() -> None:
    with pytest.raises(ValueError, match="not 0 stacks"):
        measured_bound(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="not 2 stacks"):
        measured_bound(nn.ModuleList([Encoder(config(layers=1)), Encoder(config(layers=1))]))
    with pytest.raises(ValueError, match="no bound is derived for Peri-LN"):
        measured_bound(Encoder(config(placement="peri", layers=1)))
    stack = Encoder(config(layers=1))
    nn.init.zeros_(stack.layers[0].feed_forward.mlp.fc2.weight)  # type: ignore[union-attr,arg-type]
    with pytest.raises(ValueError, match="v of sublayer 2 must be a positive number"):
        effective_scales(stack)
