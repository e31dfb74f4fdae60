"""Positions against transformers' Llama, T5 and Marian, and the properties that they are for."""

import pytest
import torch

from magneto import TransformerConfig
from magneto.nn.position import RotaryTable, T5Table, build_positions, rotate, sinusoids


def config(**changes) -> TransformerConfig:
    return TransformerConfig(**{"width": 32, "heads": 2, "layers": 1, "ffn_width": 8, **changes})


def turned(x: torch.Tensor, index: torch.Tensor, base: float = 10000.0) -> torch.Tensor:
    """Turn (batch, heads, length, 16) by the angles of its positions."""
    table = RotaryTable(config(positions="rotary", rotary_base=base))
    _, shared = table(torch.zeros(*index.shape, 32), index, 0)
    return rotate(x, *shared)


@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_rotary_positions_are_llamas(base: float) -> None:
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    theirs = modeling.LlamaConfig(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )  # fmt: skip
    query, key = torch.randn(3, 2, 7, 16), torch.randn(3, 2, 7, 16)
    index = torch.stack([torch.arange(start, start + 7) for start in (0, 5, 400)])
    cosine, sine = modeling.LlamaRotaryEmbedding(theirs)(query, index)
    expected = modeling.apply_rotary_pos_emb(query, key, cosine, sine)
    torch.testing.assert_close((turned(query, index, base), turned(key, index, base)), expected)


def test_rotary_products_depend_on_the_distance_alone() -> None:
    query, key = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def product(i: int, j: int) -> torch.Tensor:
        at_i, at_j = turned(query, torch.tensor([[i]])), turned(key, torch.tensor([[j]]))
        return (at_i * at_j).sum()

    torch.testing.assert_close(product(9, 4), product(105, 100), rtol=1e-4, atol=1e-4)
    assert abs(product(9, 4) - product(9, 5)) > 1e-3
    torch.testing.assert_close(turned(query, torch.tensor([[77]])).norm(), query.norm())


@pytest.mark.parametrize("bidirectional", [False, True])
def test_buckets_are_t5s(bidirectional: bool) -> None:
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-400, 401)[None]
    ours = T5Table(config(positions="t5"), bidirectional).bucket(distance)
    theirs = modeling.T5Attention._relative_position_bucket(
        distance, bidirectional=bidirectional, num_buckets=32, max_distance=128
    )
    assert torch.equal(ours, theirs) and ours.max() == 31 and ours.min() == 0


def test_a_bias_read_in_parts_is_the_bias_read_at_once() -> None:
    table = T5Table(config(positions="t5"), bidirectional=False)
    torch.nn.init.normal_(table.bias.weight)
    whole = table(torch.zeros(1, 9, 32), torch.arange(9)[None], 0)[1]
    last = table(torch.zeros(1, 4, 32), torch.arange(5, 9)[None], 5)[1]
    assert torch.equal(whole[:, :, 5:], last)


def test_sinusoids_are_marians() -> None:
    modeling = pytest.importorskip("transformers.models.marian.modeling_marian")
    table = modeling.MarianSinusoidalPositionalEmbedding(50, 32).create_weight()
    torch.testing.assert_close(sinusoids(torch.arange(50), 32), table, rtol=0, atol=1e-5)
    assert sinusoids(torch.arange(4), 7).shape == (4, 7)


def test_learned_positions_have_an_end_that_is_named() -> None:
    positions = build_positions(config(positions="learned", max_length=5), bidirectional=False)
    x, index = torch.zeros(2, 3, 32), torch.tensor([[2, 0, 4]])
    added, shared = positions(x, index, 2)
    assert shared is None and torch.equal(added[1], positions.table.weight[[2, 0, 4]])
    with pytest.raises(ValueError, match="input of length 6 is longer than max_length, 5"):
        positions(x, index, 3)


def test_no_positions_change_nothing() -> None:
    x = torch.randn(2, 3, 32)
    assert build_positions(config(positions="none"), True)(x, torch.arange(3)[None], 0) == (x, None)
