"""Initialisation: measured standard deviations against the formula, for every row of the table.

The regressions are named after what the paper authors' own code does: it never calls its Xavier
initialisation, scales biases, gets DeepNorm's encoder beta wrong, and lets one flag override
another.
"""

import pytest
import torch
from torch import nn

from magneto import PLACEMENTS, Decoder, Encoder, EncoderDecoder, TransformerConfig
from magneto.nn.init import NORMAL_STD, HasRoles, draw, xavier_std
from magneto.theory.placement import deepnorm_beta, sub_gain
from tests.pairs import in_turn

WIDTH, INNER = 256, 1024
KEY_VALUE_HEADS = {None: 256, 2: 64}


def config(**changes) -> TransformerConfig:
    return TransformerConfig(width=WIDTH, heads=8, ffn_width=INNER, **changes)


def weights(stack: nn.Module) -> dict[tuple[str, str], torch.Tensor]:
    """All weights of one sublayer kind and role, joined."""
    found: dict[tuple[str, str], list[torch.Tensor]] = {}
    for module in stack.modules():
        if isinstance(module, HasRoles):
            for role, weight in module.roles():
                found.setdefault((module.sublayer, role), []).append(weight.detach())
    return {key: torch.stack(parts) for key, parts in found.items()}


def check_stack(stack: nn.Module, cfg: TransformerConfig, side: str) -> None:
    row, depth = cfg.row, cfg.depth(side)
    for (sublayer, role), weight in weights(stack).items():
        gain = row.sublayer_gain(sublayer, depth) if role in ("v", "out", "fc1", "fc2") else 1.0
        expected = xavier_std(weight.shape[2], weight.shape[1], gain)
        assert weight.std().item() == pytest.approx(expected, rel=0.02), (sublayer, role)
        assert weight.mean().abs().item() < 0.02 * expected


@pytest.mark.parametrize(("placement", "key_value_heads"), in_turn(PLACEMENTS, KEY_VALUE_HEADS))
def test_std_by_role(placement: str, key_value_heads: int | None) -> None:
    """Each slice of the fused projection has its own fan, with fewer key/value heads too."""
    cfg = config(layers=3, placement=placement, key_value_heads=key_value_heads)
    check_stack(Encoder(cfg), cfg, "encoder")
    check_stack(Decoder(cfg), cfg, "decoder")
    cfg = config(
        encoder_layers=3, decoder_layers=4, placement=placement, key_value_heads=key_value_heads
    )
    model = EncoderDecoder(cfg)
    check_stack(model.encoder, cfg, "encoder")
    check_stack(model.decoder, cfg, "decoder")


def test_std_by_role_where_heads_are_wider_and_positions_are_projected() -> None:
    cfg = config(layers=4, head_dim=48, key_value_heads=2, positions="transformer_xl")
    model = Encoder(cfg)
    found = weights(model)
    assert found["self_attention", "q"].shape == (4, 8 * 48, WIDTH)
    assert found["self_attention", "k"].shape == (4, 2 * 48, WIDTH)
    assert found["self_attention", "out"].shape == (4, WIDTH, 8 * 48)
    assert found["self_attention", "position"].shape == (4, 8 * 48, WIDTH)
    check_stack(model, cfg, "encoder")


@pytest.mark.parametrize("unbiased", [("k",), ("q", "out"), ("fc1", "k", "v"), ("q", "k", "v")])
def test_biases_by_projection(unbiased: tuple[str, ...]) -> None:
    """A model in which they are zero computes the same, and has so many parameters more."""
    torch.manual_seed(0)
    few = Encoder(config(layers=1, unbiased=unbiased))
    full = Encoder(config(layers=1))
    for name, parameter in few.named_parameters():
        if name.endswith("proj.bias") or name.endswith("fc1.bias") or name.endswith("fc2.bias"):
            nn.init.normal_(parameter)
    state = few.state_dict()
    sizes = {"q": WIDTH, "k": WIDTH, "v": WIDTH, "out": WIDTH, "fc1": INNER, "fc2": WIDTH}
    count = sum(p.numel() for p in full.parameters()) - sum(p.numel() for p in few.parameters())
    assert count == sum(sizes[role] for role in unbiased)
    filled = {name: state.get(name, torch.zeros_like(t)) for name, t in full.state_dict().items()}
    held = "layers.0.self_attention.attention.qkv_proj.bias"
    if held in state:
        parts = iter(state[held].split(WIDTH))
        filled[held] = torch.cat(
            [torch.zeros(WIDTH) if role in unbiased else next(parts) for role in "qkv"]
        )
    full.load_state_dict(filled)
    x = torch.randn(2, 5, WIDTH)
    torch.testing.assert_close(few(x), full(x))


def test_cross_attention_has_the_biases_that_are_chosen() -> None:
    cfg = config(encoder_layers=1, decoder_layers=1, unbiased=("k", "fc2"))
    part = EncoderDecoder(cfg).decoder.layers[0]
    attention = part.cross_attention.attention
    assert attention.k_proj.bias is None and part.feed_forward.mlp.fc2.bias is None
    assert attention.q_proj.bias is not None and part.feed_forward.mlp.fc1.bias is not None


def test_swiglu_halves_have_their_own_fan() -> None:
    cfg = config(layers=4, activation="swiglu")
    found = weights(Encoder(cfg))["feed_forward", "fc1"]
    assert found.shape == (8, INNER, WIDTH)
    check_stack(Encoder(cfg), cfg, "encoder")


@pytest.mark.parametrize("gain", [1.0, 1.7827])
@pytest.mark.parametrize("base", ["xavier_normal", "xavier_uniform", "normal", "truncated_normal"])
def test_bases(base: str, gain: float) -> None:
    weight = torch.empty(INNER, WIDTH)
    draw(weight, base, gain)  # type: ignore[arg-type]
    expected = xavier_std(WIDTH, INNER, gain) if "xavier" in base else NORMAL_STD * gain
    assert weight.std().item() == pytest.approx(expected, rel=0.01)
    if base == "truncated_normal":
        assert weight.abs().max().item() < 2.28 * expected


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_biases_are_zero_and_norms_neutral(placement: str) -> None:
    """The authors' code draws biases at random and multiplies them by the gain."""
    model = EncoderDecoder(config(encoder_layers=2, decoder_layers=2, placement=placement))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            assert not module.bias.any()
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()


def test_v_proj_is_xavier_and_not_torchs_default() -> None:
    """The authors' code leaves nn.Linear's default, 1 / sqrt(3 fan_in), x0.58 of Xavier here."""
    cfg = config(layers=12)
    std = weights(Encoder(cfg))["self_attention", "v"].std().item()
    default = (3 * WIDTH) ** -0.5
    assert std / default == pytest.approx(sub_gain(cfg.depth("encoder")) * 3**0.5, rel=0.02)


def test_deepnorm_encoder_beta_at_18_18() -> None:
    """0.3526 as in DeepNet; the authors' code gives 0.465."""
    cfg = config(encoder_layers=18, decoder_layers=18, placement="deepnorm")
    assert deepnorm_beta(cfg.depth("encoder")) == pytest.approx(0.3526, abs=5e-5)
    std = weights(Encoder(cfg))["self_attention", "v"].std().item()
    assert std == pytest.approx(0.3526 * WIDTH**-0.5, rel=0.02)


def test_cross_attention_is_scaled_by_deepnorm_only() -> None:
    for placement, scaled in (("sub", False), ("deepnorm", True)):
        cfg = config(encoder_layers=2, decoder_layers=6, placement=placement)
        row, depth = cfg.row, cfg.depth("decoder")
        assert (row.sublayer_gain("cross_attention", depth) != 1) == scaled


def test_same_seed_same_weights() -> None:
    def build() -> dict[str, torch.Tensor]:
        torch.manual_seed(5)
        return Encoder(config(layers=2)).state_dict()

    first, second = build(), build()
    assert all(torch.equal(first[name], second[name]) for name in first)
