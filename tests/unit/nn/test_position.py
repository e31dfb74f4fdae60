"""Positions against transformers' T5, Wav2Vec2-Conformer, Bloom and MPT.

Those of Llama, BART and Marian are in the oracles, with whole models.
"""

from typing import Any

import pytest
import torch

from magneto import Decoder, Encoder, TransformerConfig
from magneto.nn.position import AlibiTable, sinusoids, slopes


def config(**changes) -> TransformerConfig:
    return TransformerConfig(**{"width": 32, "heads": 2, "layers": 1, "ffn_width": 8, **changes})


@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_buckets_are_t5s(kind: Any) -> None:
    """The authors' causal decoder builds them in both directions and never uses half."""
    transformers = pytest.importorskip("transformers")
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-400, 401)[None]
    ours = kind(config(positions="t5")).position_embedding.bucket(distance)
    theirs = modeling.T5Attention._relative_position_bucket(
        distance, bidirectional=kind is Encoder, num_buckets=32, max_distance=128
    )
    assert torch.equal(ours, theirs) and ours.max() == 31 and ours.min() == 0
    shape = transformers.T5Config(num_heads=2, is_decoder=kind is Decoder)
    attention = modeling.T5Attention(shape, has_relative_attention_bias=True)
    table = kind(config(positions="t5")).position_embedding
    with torch.no_grad():
        attention.relative_attention_bias.weight.copy_(table.bias.weight.normal_())
    expected = attention.compute_bias(9, 9)
    for past in (0, 6):
        assert torch.equal(
            table(torch.zeros(1, 9 - past, 32), None, past)[1], expected[:, :, past:]
        )


def test_an_odd_width_ends_in_zeros() -> None:
    assert sinusoids(torch.arange(4), 7)[:, 6].tolist() == [0] * 4


@pytest.mark.parametrize("length", [1, 2, 9])
def test_transformer_xl_positions_are_espnets(length: int) -> None:
    """By Wav2Vec2-Conformer, which has them from ESPnet: outputs and every gradient.

    Its sinusoids alternate sines and cosines, and ours are Transformer-XL's, all sines first: the
    columns of the matrix that reads them are moved.
    """
    modeling = pytest.importorskip(
        "transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer"
    )
    theirs_config = modeling.Wav2Vec2ConformerConfig(
        hidden_size=32, num_attention_heads=4, attention_dropout=0.0,
        position_embeddings_type="relative", attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = modeling.Wav2Vec2ConformerSelfAttention(theirs_config).eval()
    table = modeling.Wav2Vec2ConformerRelPositionalEmbedding(theirs_config)
    stack = Encoder(config(heads=4, positions="transformer_xl"))
    ours = stack.layers[0].self_attention.attention
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours.inside = torch.nn.Identity()
    alternating = torch.stack((torch.arange(16), torch.arange(16, 32)), dim=1).flatten()
    with torch.no_grad():
        theirs.pos_bias_u.copy_(ours.positions.content_bias)
        theirs.pos_bias_v.copy_(ours.positions.position_bias)
        theirs.linear_pos.weight.copy_(ours.positions.position_proj.weight[:, alternating])
        for kind in ("weight", "bias"):
            for name, part in zip("qkv", getattr(ours.qkv_proj, kind).chunk(3), strict=True):
                getattr(getattr(theirs, f"linear_{name}"), kind).copy_(part)
            getattr(theirs.linear_out, kind).copy_(getattr(ours.out_proj, kind))
    x = torch.randn(2, length, 32)
    mask = torch.arange(length) < torch.tensor([[length], [(length + 1) // 2]])
    _, (allowed, *_), shared = stack.enter(x, mask, None)
    closed = torch.zeros(2, 1, 1, length).masked_fill(~mask[:, None, None], float("-inf"))
    expected = theirs(x, closed, table(x))[0]
    output = ours(x, allowed, shared, None)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    weigh = torch.randn_like(x)
    (output * weigh).sum().backward()
    (expected * weigh).sum().backward()
    pairs = {
        "u": (ours.positions.content_bias.grad, theirs.pos_bias_u.grad),
        "v": (ours.positions.position_bias.grad, theirs.pos_bias_v.grad),
        "linear_pos": (
            ours.positions.position_proj.weight.grad[:, alternating], theirs.linear_pos.weight.grad
        ),
        "q": (ours.qkv_proj.weight.grad[:32], theirs.linear_q.weight.grad),
    }  # fmt: skip
    for name, (mine, other) in pairs.items():
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("heads", [1, 2, 4, 6, 8, 12, 16])
def test_slopes_are_blooms(heads: int) -> None:
    modeling = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = modeling.build_alibi_tensor(torch.ones(1, 3), heads, torch.float32)
    assert torch.allclose(slopes(heads), theirs[:, 0, 1])


def test_the_bias_is_mpts() -> None:
    modeling = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    table = AlibiTable(TransformerConfig(width=32, heads=8, positions="alibi"), True)
    x = torch.randn(1, 5, 32)
    _, bias = table(x, torch.arange(5)[None], 0)
    assert bias is not None
    assert torch.allclose(bias[0, :, -1], modeling.build_mpt_alibi_tensor(8, 5)[:, 0])


def test_both_directions_count() -> None:
    shape = config(heads=4, positions="alibi")
    _, bias = AlibiTable(shape, True)(torch.randn(1, 5, 32), torch.zeros(1), 0)
    assert bias is not None and torch.equal(bias, bias.mT)
    for kind in (Encoder, Decoder):
        stack, x = kind(shape).eval(), torch.randn(1, 5, 32)
        assert (stack(x)[:, -1] - stack(x.flip(1).clone())[:, -1]).abs().max() > 1e-3
