"""Initialisation: measured standard deviations against the formula, for every row of the table.

The regressions are named after what the paper authors' own code does: it never calls its Xavier
initialisation, scales biases, gets DeepNorm's encoder beta wrong, and lets one flag override
another.
"""

import pytest
import torch
from torch import nn

from magneto import PLACEMENTS, Decoder, Encoder, EncoderDecoder, TransformerConfig
from magneto.nn.embedding import PatchProjection, TextEmbedding
from magneto.nn.init import (
    NORMAL_STD,
    NormalLinear,
    build_norm,
    draw,
    sublayer_projections,
    xavier_std,
)
from tests.pairs import in_turn

WIDTH, INNER = 128, 512


def config(**changes) -> TransformerConfig:
    return TransformerConfig(width=WIDTH, heads=8, ffn_width=INNER, **changes)


def weights(stack: nn.Module) -> dict[tuple[str, str], torch.Tensor]:
    """All weights of one sublayer kind and role, joined."""
    found: dict[tuple[str, str], list[torch.Tensor]] = {}
    for sublayer, projection in sublayer_projections(stack):
        for role, weight in projection.roles():
            found.setdefault((sublayer, role), []).append(weight.detach())
    return {key: torch.stack(parts) for key, parts in found.items()}


def check_stack(stack: nn.Module, cfg: TransformerConfig, side: str) -> None:
    row, depth = cfg.row, cfg.depth(side)
    for (sublayer, role), weight in weights(stack).items():
        gain = row.sublayer_gain(sublayer, depth) if role in ("v", "out", "fc1", "fc2") else 1.0
        expected = xavier_std(weight.shape[2], weight.shape[1], gain)
        assert weight.std().item() == pytest.approx(expected, rel=0.02), (sublayer, role)
        assert weight.mean().abs().item() < 0.02 * expected


@pytest.mark.parametrize(("placement", "key_value_heads"), in_turn(PLACEMENTS, [None, 2]))
def test_std_by_role(placement: str, key_value_heads: int | None) -> None:
    """Each slice of the fused projection has its own fan, with fewer key/value heads too.

    Biases are zero and norms neutral. The authors' code draws biases and multiplies them by a gain.
    """
    cfg = config(layers=3, placement=placement, key_value_heads=key_value_heads)
    check_stack(Decoder(cfg), cfg, "decoder")
    cfg = config(
        encoder_layers=3, decoder_layers=4, placement=placement, key_value_heads=key_value_heads
    )
    model = EncoderDecoder(cfg)
    check_stack(model.encoder, cfg, "encoder")
    check_stack(model.decoder, cfg, "decoder")
    shared = (key_value_heads or 8) * WIDTH // 8
    for role in "kv":
        assert weights(model.decoder)["cross_attention", role].shape == (4, shared, WIDTH)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            assert not module.bias.any()
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()


def test_std_by_role_where_heads_are_wider_positions_projected_and_units_gated() -> None:
    changes = {"positions": "transformer_xl", "activation": "swiglu"}
    cfg = config(layers=4, head_dim=48, key_value_heads=2, **changes)
    model = Encoder(cfg)
    found = weights(model)
    assert found["self_attention", "q"].shape == (4, 8 * 48, WIDTH)
    assert found["self_attention", "k"].shape == (4, 2 * 48, WIDTH)
    assert found["self_attention", "out"].shape == (4, WIDTH, 8 * 48)
    assert found["self_attention", "position"].shape == (4, 8 * 48, WIDTH)
    assert found["feed_forward", "fc1"].shape == (8, INNER, WIDTH), "each half has its own fan"
    check_stack(model, cfg, "encoder")


@pytest.mark.parametrize("gain", [1.0, 1.7827])
@pytest.mark.parametrize("base", ["xavier_normal", "xavier_uniform", "normal", "truncated_normal"])
def test_bases(base: str, gain: float) -> None:
    weight = torch.empty(INNER, WIDTH)
    draw(weight, base, gain)  # type: ignore[arg-type]
    expected = xavier_std(WIDTH, INNER, gain) if "xavier" in base else NORMAL_STD * gain
    assert weight.std().item() == pytest.approx(expected, rel=0.01)
    if base == "truncated_normal":
        assert weight.abs().max().item() < 2.28 * expected


def test_norms_have_the_configured_epsilon_and_bias() -> None:
    plain, root = (build_norm(kind, 8, config(norm_eps=1e-3)) for kind in ("layernorm", "rmsnorm"))
    assert plain.eps == root.eps == 1e-3
    assert build_norm("layernorm", 8, config(bias=False)).bias is None is not plain.bias


def test_embeddings_positions_heads_and_patches_have_a_std_of_their_own() -> None:
    positions = Encoder(config(layers=1, positions="learned")).position_embedding
    for table in (positions.table, TextEmbedding(INNER, WIDTH, "sqrt_width").table):
        assert table.weight.std().item() == pytest.approx(WIDTH**-0.5, rel=0.02)
    made = NormalLinear(WIDTH, INNER, True, 0.3), PatchProjection(3, 8, WIDTH)
    for module, std in zip(made, (0.3, xavier_std(192, WIDTH)), strict=True):
        assert module.weight.std().item() == pytest.approx(std, rel=0.02)
        assert module.bias is not None and not module.bias.any()


def test_cross_attention_is_scaled_by_deepnorm_only() -> None:
    for placement, scaled in (("sub", False), ("deepnorm", True)):
        cfg = config(encoder_layers=2, decoder_layers=6, placement=placement)
        row, depth = cfg.row, cfg.depth("decoder")
        assert (row.sublayer_gain("cross_attention", depth) != 1) == scaled
