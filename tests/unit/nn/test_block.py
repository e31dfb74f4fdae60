"""Sublayers and what is in their branches against transformers': activations, LayerScale, depth."""

import math
from typing import get_args

import pytest
import torch

from magneto import Encoder
from magneto.nn.block import GATED, PLAIN, DropPath, FeedForward
from magneto.nn.config import Activation
from magneto.nn.init import identity
from tests.unit.nn.grids import EVERY_PART, small


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
        assert layer.feed_forward.drop_path is identity


def test_layer_scale_multiplies_each_branch() -> None:
    """As in DINOv2's layers; BEiT's whole encoder is compared with its grid's positions."""
    modeling = pytest.importorskip("transformers.models.dinov2.modeling_dinov2")
    config = modeling.Dinov2Config(hidden_size=32, layerscale_value=1e-5)
    theirs = modeling.Dinov2LayerScale(config)
    model = Encoder(small(placement=EVERY_PART, layers=1, layer_scale=1e-5))
    x = torch.randn(2, 5, 32)
    for part in (model.layers[0].self_attention, model.layers[0].feed_forward):
        assert torch.equal(part.layer_scale.weight, theirs.lambda1)
        y = torch.randn(2, 5, 32)
        expected = part.after(part.alpha * x + theirs(part.branch(y)))
        torch.testing.assert_close(part.add(x, y), expected)


# transformers' names of the functions; in gated units, of those of gates.
THEIRS = {
    "gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "relu2": "relu2", "silu": "silu",
    "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh", "reglu": "relu", "relu2_glu": "relu2",
    "swiglu": "silu",
}  # fmt: skip


@pytest.mark.parametrize("activation", get_args(Activation))
def test_the_network_has_transformers_activation(activation: str) -> None:
    """Whole models in the oracles have the networks of GPT-2, BERT and LLaMA."""
    functions = pytest.importorskip("transformers.activations").ACT2FN
    block = FeedForward(small(activation=activation, placement="pre")).double()
    x = 2 * torch.randn(3, 5, 32, dtype=torch.float64).requires_grad_()
    parts = block.fc1(x).chunk(1 + (activation in GATED), dim=-1)
    expected = block.fc2(math.prod([functions[THEIRS[activation]](parts[0]), *parts[1:]]))
    torch.testing.assert_close(block(x), expected, rtol=1e-12, atol=1e-12)
    found, wanted = (torch.autograd.grad(y.sum(), x)[0] for y in (block(x), expected))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert set(PLAIN) | set(GATED) == set(THEIRS)
