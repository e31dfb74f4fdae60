"""ALiBi against transformers' Bloom and MPT."""

import pytest
import torch

from magneto import Decoder, Encoder, TransformerConfig
from magneto.nn.alibi import AlibiTable, slopes


@pytest.mark.parametrize("heads", [1, 2, 4, 6, 8, 12, 16])
def test_slopes_are_blooms(heads: int) -> None:
    modeling = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = modeling.build_alibi_tensor(torch.ones(1, 3), heads, torch.float32)
    assert torch.allclose(slopes(heads), theirs[:, 0, 1])


def test_the_bias_is_mpts() -> None:
    modeling = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    table = AlibiTable(TransformerConfig(width=32, heads=8, positions="alibi"))
    x = torch.randn(1, 5, 32)
    _, bias = table(x, torch.arange(5)[None], 0)
    assert bias is not None
    assert torch.allclose(bias[0, :, -1], modeling.build_mpt_alibi_tensor(8, 5)[:, 0])


def test_a_cache_changes_nothing_and_both_directions_count() -> None:
    config = TransformerConfig(width=32, heads=4, layers=2, ffn_width=48, positions="alibi")
    table = AlibiTable(config)
    x = torch.randn(1, 5, 32)
    whole, last = (table(part, torch.zeros(1), past)[1] for part, past in ((x, 0), (x[:, 3:], 3)))
    assert whole is not None and last is not None
    assert torch.equal(whole[:, :, 3:], last) and torch.equal(whole, whole.mT)
    for kind in (Encoder, Decoder):
        stack = kind(config).eval()
        assert (stack(x)[:, -1] - stack(x.flip(1).clone())[:, -1]).abs().max() > 1e-3
