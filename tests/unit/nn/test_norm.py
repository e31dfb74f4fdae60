"""Norms against their equations; they keep the dtype, and an empty slot costs nothing."""

import pytest
import torch

from magneto import TransformerConfig
from magneto.nn.init import FastIdentity, LayerNorm, RMSNorm, build_norm, optional_norm


def config(**changes) -> TransformerConfig:
    return TransformerConfig(width=16, heads=2, layers=1, ffn_width=24, **changes)


@pytest.mark.parametrize("bias", [False, True])
def test_layer_norm_is_its_equation(bias: bool) -> None:
    norm = build_norm("layernorm", 16, config(bias=bias, norm_eps=1e-3)).double()
    x = torch.randn(3, 5, 16, dtype=torch.float64)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight
    expected = expected + norm.bias if bias else expected
    assert (norm.bias is not None) == bias
    torch.testing.assert_close(norm(x), expected)


def test_rms_norm_is_its_equation() -> None:
    norm = build_norm("rmsnorm", 16, config(norm_eps=1e-3)).double()
    x = torch.randn(3, 5, 16, dtype=torch.float64)
    torch.nn.init.normal_(norm.weight)
    root = (x.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    torch.testing.assert_close(norm(x), x / root * norm.weight)
    assert [name for name, _ in norm.named_parameters()] == ["weight"]


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_mixed_precision_keeps_the_dtype(kind: str, dtype: torch.dtype) -> None:
    norm = build_norm(kind, 16, config())
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(torch.randn(2, 3, 16, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize(("kind", "made"), [("layernorm", LayerNorm), ("rmsnorm", RMSNorm)])
def test_a_slot_holds_the_configurations_norm_or_nothing(kind: str, made: type) -> None:
    norm = optional_norm(True, 24, config(norm=kind))
    assert type(norm) is made and norm.weight.shape == (24,)
    assert type(optional_norm(False, 24, config(norm=kind))) is FastIdentity
