"""Attention weights for pictures: they are what the fused attention uses, whatever the positions.

BEiT's, layer by layer, are compared with transformers' own in test_grid_position.
"""

import pytest
import torch

from magneto import PLACEMENTS, Encoder, TransformerConfig
from magneto.nn.attention_weights import attention_weights


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
