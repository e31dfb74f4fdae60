"""Stochastic depth and LayerScale: against transformers' own, and nothing where they are off."""

import pytest
import torch

from magneto import PLACEMENTS, Encoder, TransformerConfig
from magneto.nn.norm import Nothing
from magneto.nn.residual import DropPath, LayerScale


def small(**changes) -> TransformerConfig:
    return TransformerConfig(**{"width": 32, "heads": 4, "layers": 3, "ffn_width": 48, **changes})


def test_drop_path_is_beits() -> None:
    modeling = pytest.importorskip("transformers.models.beit.modeling_beit")
    x = torch.randn(64, 5, 8)
    ours, theirs = DropPath(0.3), modeling.BeitDropPath(0.3)
    torch.manual_seed(0)
    mine = ours(x)
    torch.manual_seed(0)
    torch.testing.assert_close(mine, theirs(x))
    kept = mine.ne(0).any(2).any(1)
    assert 0 < kept.sum() < len(x)
    assert torch.equal(ours.eval()(x), x)


def test_rates_rise_to_the_last_layer_and_a_rate_of_0_is_no_module() -> None:
    rates = [
        getattr(part.drop_path, "rate", 0.0)
        for layer in Encoder(small(layers=5, drop_path=0.2)).layers
        for part in (layer.self_attention, layer.feed_forward)
    ]
    assert rates == pytest.approx([0, 0, 0.05, 0.05, 0.1, 0.1, 0.15, 0.15, 0.2, 0.2])
    for layer in Encoder(small()).layers:
        assert isinstance(layer.feed_forward.drop_path, Nothing)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_an_example_whose_branches_are_all_dropped_skips_the_layers(placement: str) -> None:
    """What is left of a layer is its skip connection: alpha, and the norm after the addition."""
    model = Encoder(small(placement=placement, layers=2, drop_path=0.999999))
    x = torch.randn(2, 5, 32)
    last = model.layers[1]
    skipped = x
    for part in (last.self_attention, last.feed_forward):
        skipped = part.after(part.alpha * skipped)
    _, (mask, *_), shared = model.enter(x, None, None)
    torch.testing.assert_close(last(x, mask, shared), skipped)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_layer_scale_multiplies_each_branch(placement: str) -> None:
    """As in DINOv2's layers; BEiT's whole encoder is compared with its grid's positions."""
    modeling = pytest.importorskip("transformers.models.dinov2.modeling_dinov2")
    config = modeling.Dinov2Config(hidden_size=32, layerscale_value=1e-5)
    theirs = modeling.Dinov2LayerScale(config)
    model = Encoder(small(placement=placement, layers=1, layer_scale=1e-5))
    x = torch.randn(2, 5, 32)
    for part in (model.layers[0].self_attention, model.layers[0].feed_forward):
        assert torch.equal(part.layer_scale.weight, theirs.lambda1)
        y = torch.randn(2, 5, 32)
        expected = part.after(part.alpha * x + theirs(part.branch(y)))
        torch.testing.assert_close(part.add(x, y), expected)


def test_layer_scale_keeps_the_dtype_and_is_learned() -> None:
    scale = LayerScale(8, 0.1)
    x = torch.randn(2, 3, 8)
    assert scale(x.bfloat16()).dtype == torch.bfloat16
    scale(x).sum().backward()
    torch.testing.assert_close(scale.weight.grad, x.sum((0, 1)))


def test_without_layer_scale_there_is_no_module() -> None:
    assert not [name for name in Encoder(small()).state_dict() if "layer_scale" in name]
