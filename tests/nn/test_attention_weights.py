"""Attention weights for pictures: they are what the fused attention uses, whatever the positions.

BEiT's, layer by layer, are compared with transformers' own in test_grid_position.
"""

import pytest
import torch

from magneto import PLACEMENTS, Encoder, TransformerConfig
from magneto.nn.attention_weights import attention_weights, multiway_attention_weights
from magneto.nn.packing import pack
from tests.nn.test_multiway import multiway, one_way


def small(**changes) -> TransformerConfig:
    return TransformerConfig(**{"width": 32, "heads": 4, "layers": 2, "ffn_width": 48, **changes})


@pytest.mark.parametrize("positions", ["none", "rotary", "t5", "transformer_xl"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_weights_times_values_are_what_attention_gives(placement: str, positions: str) -> None:
    torch.manual_seed(0)
    model = Encoder(small(placement=placement, positions=positions, key_value_heads=2)).eval()
    for name, parameter in model.named_parameters():
        if "position" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 5, 32)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    seen = {}
    hook = model.layers[1].self_attention.attention.dot_product.register_forward_hook(
        lambda module, inputs, output: seen.update(value=inputs[2], output=output)
    )
    model(x, mask)
    hook.remove()
    weights = attention_weights(model, x, 1, mask)
    value = seen["value"].repeat_interleave(2, dim=1)
    torch.testing.assert_close(weights @ value, seen["output"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5))
    assert not weights[1, :, :, 3:].any()


def test_windows_are_in_the_weights() -> None:
    model = Encoder(small(windows=(2, 3))).eval()
    x = torch.randn(2, 5, 32)
    seen = {}
    hook = model.layers[1].self_attention.attention.dot_product.register_forward_hook(
        lambda module, inputs, output: seen.update(value=inputs[2], output=output)
    )
    weights = attention_weights(model, x, 1)
    model(x)
    hook.remove()
    torch.testing.assert_close(weights @ seen["value"], seen["output"], rtol=1e-5, atol=1e-6)
    place = torch.arange(5)
    assert not weights[:, :, (place[:, None] - place).abs() >= 3].any()


def test_nothing_is_left_behind() -> None:
    """No hook, no gradient, no dropout in the weights; a row that sees nothing gives nothing."""
    model = Encoder(small(attention_dropout=0.5))
    x = torch.randn(1, 4, 32, requires_grad=True)
    weights = attention_weights(model, x, 0, torch.zeros(1, 4).bool())
    assert not weights.requires_grad and not weights.any() and model.training
    assert not model.layers[0].self_attention.attention.dot_product._forward_pre_hooks
    torch.testing.assert_close(attention_weights(model, x, 0), attention_weights(model, x, 0))
    with pytest.raises(ValueError, match="no layer 2: there are 0 to 1"):
        attention_weights(model, x, 2)


@pytest.mark.parametrize("design", ["decoupled", "shared"])
def test_packed_samples_of_one_modality_look_where_a_one_way_encoder_does(design: str) -> None:
    model = multiway(design)
    x = torch.randn(2, 5, 32)
    packing = pack([5, 5], [0, 0])
    for layer in range(3):
        found = multiway_attention_weights(
            model, x.flatten(0, 1), torch.zeros(0, 32), packing, layer
        )
        expected = attention_weights(one_way(model), x, layer)
        assert torch.allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match="layer"):
        multiway_attention_weights(model, x.flatten(0, 1), torch.zeros(0, 32), packing, 3)


def test_words_of_a_pair_look_at_its_image_too() -> None:
    """The softmax of the products of queries and keys of both experts, by hand."""
    model = multiway()
    vision, language = torch.randn(5, 32), torch.randn(3, 32)
    shares = multiway_attention_weights(model, vision, language, pack([5], [3]), 0)
    block = model.layers[0].self_attention
    experts = zip(block.experts.values(), (vision, language), strict=True)
    given = [expert.attention.project(expert.before(x)) for expert, x in experts]
    query, key = (torch.cat([parts[i] for parts in given]).transpose(0, 1) for i in (0, 1))
    expected = (query @ key.transpose(1, 2) * query.shape[-1] ** -0.5).softmax(-1)
    assert torch.allclose(shares[0], expected, atol=1e-5) and shares[0, :, 5:, :5].min() > 0
