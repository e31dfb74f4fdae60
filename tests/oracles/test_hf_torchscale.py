"""torchscale's state dicts: names and shapes as its modules make them, parity where it is there."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
from transformers.models.kosmos2.modeling_kosmos2 import (  # noqa: E402
    Kosmos2TextSinusoidalPositionalEmbedding,
)

from magneto.hf.conversion import load_weights, write_weights  # noqa: E402
from magneto.language.config import LanguageModelConfig  # noqa: E402
from magneto.language.models import LanguageModel, TextEncoder  # noqa: E402
from magneto.translation.model import TranslationModel  # noqa: E402
from tests.oracles.hf_models import same_gradients, shaken  # noqa: E402
from tests.unit.nn.grids import timm_module  # noqa: E402

WIDTH, INNER, WORDS, ROWS = 32, 48, 97, 40
SHAPES = {
    "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH, WIDTH),
    "self_attn.v_proj": (WIDTH, WIDTH), "self_attn.out_proj": (WIDTH, WIDTH),
    "self_attn_layer_norm": (WIDTH,), "ffn.fc1": (INNER, WIDTH), "ffn.fc2": (WIDTH, INNER),
    "final_layer_norm": (WIDTH,),
}  # fmt: skip
INNER_NORMS = {"self_attn.inner_attn_ln": (WIDTH,), "ffn.ffn_layernorm": (INNER,)}
CROSS = {f"encoder_attn.{part}_proj": (WIDTH, WIDTH) for part in ("q", "k", "v", "out")} | {
    "encoder_attn_layer_norm": (WIDTH,)
}


def stack(layers: int, inner: bool, final: bool, cross: bool = False) -> dict[str, Tensor]:
    """A state dict of one stack, as torchscale names and shapes it, with numbers of its own."""
    torch.manual_seed(layers)
    shapes = SHAPES | (INNER_NORMS if inner else {}) | (CROSS if cross else {})
    state = {}
    for layer in range(layers):
        for name, shape in shapes.items():
            state[f"layers.{layer}.{name}.weight"] = torch.randn(shape)
            state[f"layers.{layer}.{name}.bias"] = torch.randn(shape[0])
    state["embed_positions.weight"] = torch.randn(ROWS + 2, WIDTH)
    state["embed_positions.weight"][:2] = 0  # never read: fairseq's positions begin at 2
    if final:
        state |= {"layer_norm.weight": torch.randn(WIDTH), "layer_norm.bias": torch.randn(WIDTH)}
    return state


def decoder(inner: bool, final: bool, tied: bool = True) -> dict[str, Tensor]:
    state = stack(3, inner, final)
    table = torch.randn(WORDS, WIDTH)
    state["embed_tokens.weight"] = table
    state["output_projection.weight"] = table if tied else torch.randn(WORDS, WIDTH)
    return state


def args(name: str, *stacks: str) -> dict[str, Any]:
    made: dict[str, Any] = {f"{stack}_attention_heads": 4 for stack in stacks}
    return made | {"deepnorm": name == "deepnorm", "subln": name == "sub"}


def there_and_back(state: dict[str, Tensor], given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return ours, and the arguments that are written with it; every bit is written back."""
    ours = load_weights(state, given)
    assert not ours.training
    back, made = write_weights(ours, "torchscale")
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
    return ours, made


# Whether there are norms inside the sublayers, and one on top.
NORMS = {
    "sub": (True, True), "pre": (False, True), "post": (False, False), "deepnorm": (False, False),
}  # fmt: skip


@pytest.mark.parametrize(("placement", "tied"), [*zip(NORMS, (True, False) * 2, strict=True)])
def test_a_decoder_there_and_back_is_bit_equal(placement: str, tied: bool) -> None:
    state = decoder(*NORMS[placement], tied)
    ours, made = there_and_back(state, args(placement, "decoder"))
    assert isinstance(ours, LanguageModel)
    assert ours.config.placement == placement and ours.config.tie_embeddings == tied
    assert ours.config.embedding_scale == "none", "unless the arguments say otherwise"
    sizes = architecture(placement, decoder=3) | {"share_decoder_input_output_embed": tied}
    assert made.items() >= sizes.items() and made["layernorm_embedding"] is False
    wrapped = {f"decoder.{name}": tensor for name, tensor in state.items()}
    wrapped["decoder.version"] = torch.tensor([3.0])
    again = load_weights(wrapped, args(placement, "decoder"))
    assert torch.equal(again(torch.arange(5)[None]), ours(torch.arange(5)[None]))
    # Sub-LN precedes DeepNorm; computed positions have the length that the arguments say.
    del wrapped["decoder.embed_positions.weight"]
    wrapped["decoder.embed_positions._float_tensor"] = torch.zeros(1)
    given = args(placement, "decoder") | {"max_target_positions": 20, "max_source_positions": 30}
    again = load_weights(wrapped, given | ({"deepnorm": True} if placement == "sub" else {}))
    assert (again.config.placement, again.config.max_length) == (placement, 20)
    table = Kosmos2TextSinusoidalPositionalEmbedding(20, WIDTH, 1).weights[2:]
    assert torch.equal(again.decoder.position_embedding.table.weight, table)


def test_an_encoder_decoder_there_and_back_is_bit_equal() -> None:
    table = torch.randn(WORDS, WIDTH)
    names = ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")
    state, given = {}, {}
    for placement, norms in NORMS.items():
        state = {f"encoder.{n}": t for n, t in stack(2, *norms).items()}
        state |= {f"decoder.{n}": t for n, t in stack(3, *norms, cross=True).items()}
        state |= {f"{name}.weight": table for name in names}
        given = args(placement, "encoder", "decoder") | {"no_scale_embedding": False}
        ours, made = there_and_back(state, given)
        assert isinstance(ours, TranslationModel) and ours.config.embedding_scale == "sqrt_width"
        sizes = architecture(placement, encoder=2, decoder=3) | {"share_all_embeddings": True}
        assert made.items() >= sizes.items()
    for side, words in (
        ("decoder", "separate embeddings"),
        ("encoder", r"no counterpart of the tensor 'encoder\.output_projection"),
    ):
        other = state | {f"{side}.output_projection.weight": torch.randn(WORDS, WIDTH)}
        with pytest.raises(ValueError, match=words):
            load_weights(other, given)
    with pytest.raises(ValueError, match="the same heads, not 4 and 8"):
        load_weights(state, given | {"decoder_attention_heads": 8})
    ours.logits_bias[3] = 1
    with pytest.raises(ValueError, match="cannot represent this model's logits_bias"):
        write_weights(ours, "torchscale")


def test_an_encoder_there_and_back_is_bit_equal() -> None:
    state = stack(2, True, True)
    state["embed_tokens.weight"] = torch.randn(WORDS, WIDTH)
    relative = {name: t for name, t in state.items() if name != "embed_positions.weight"}
    relative["relative_position.relative_attention_bias.weight"] = torch.randn(32, 4)
    for given in (state, relative):
        ours, made = there_and_back(given, args("sub", "encoder"))
        assert made.items() >= (architecture("sub", encoder=2) | {"no_output_layer": True}).items()
        assert isinstance(ours, TextEncoder)
        more = given | {"output_projection.weight": torch.randn(WORDS, WIDTH)}
        again, ids = load_weights(more, args("sub", "encoder")), torch.arange(5)[None]
        assert torch.equal(again(ids), ours(ids)), "an output projection is left out"


def test_what_does_not_fit_is_named() -> None:
    """Also what torchscale built wrongly."""
    state, sub = decoder(True, True), args("sub", "decoder")
    relative = {name: tensor for name, tensor in state.items() if name != "embed_positions.weight"}
    relative["self_attn_relative_position.relative_attention_bias.weight"] = torch.randn(32, 4)
    for given, values, words in (
        (decoder(False, True), args("deepnorm", "decoder"), "Pre-LN with DeepNorm's alpha"),
        (decoder(True, False), sub, "Post-LN with Sub-LN's inner norms"),
        (relative, sub, "supported only in an encoder"),
        (state, {}, "with encoder_attention_heads or decoder"),
        (state, args("sub", "encoder", "decoder"), "could belong to an encoder or to a decoder"),
        (state, sub | {"multiway": True}, "multiway=True is not supported"),
        (state | {"extra": torch.ones(1)}, sub, r"no counterpart of the tensor 'decoder\.extra'"),
        (state, sub | {"activation_fn": "tanh"}, "activation 'tanh' is not supported"),
        ({"weight": torch.ones(1)}, sub, "unknown weights"),
        (stack(2, True, True), args("sub", "encoder"), r"no encoder\.embed_tokens\.weight, which"),
    ):
        with pytest.raises(ValueError, match=words):
            load_weights(given, values)
    rotary = LanguageModelConfig(
        width=32, layers=1, heads=4, ffn_width=48, vocab_size=9, positions="rotary"
    )
    with pytest.raises(ValueError, match="cannot represent this model: positions is 'rotary', but"):
        write_weights(LanguageModel(rotary), "torchscale")
    with pytest.raises(ValueError, match="cannot convert a Linear"):
        write_weights(nn.Linear(1, 1), "torchscale")


def architecture(placement: str, **layers: int) -> dict[str, Any]:
    """torchscale's arguments of a placement, by the numbers of its stacks' layers."""
    values: dict[str, Any] = {"deepnorm": placement == "deepnorm", "subln": placement == "sub"}
    for side, count in layers.items():
        values |= {
            f"{side}_embed_dim": WIDTH, f"{side}_attention_heads": 4, f"{side}_layers": count,
            f"{side}_ffn_embed_dim": INNER,
            f"{side}_normalize_before": placement in ("sub", "pre"),
        }  # fmt: skip
    return values


@pytest.mark.parametrize("placement", NORMS)
def test_parity_with_torchscale(placement: str) -> None:
    """Runs where torchscale can be imported: it pins old versions of what it needs."""
    pytest.importorskip("torchscale")
    timm_module("torchscale.architecture.encoder_decoder")
    from torchscale.architecture import config as configs
    from torchscale.architecture.decoder import Decoder
    from torchscale.architecture.encoder import Encoder
    from torchscale.architecture.encoder_decoder import EncoderDecoder
    from torchscale.component.embedding import PositionalEmbedding

    ids, target = torch.randint(2, WORDS, (2, 11)), torch.randint(2, WORDS, (2, 7))
    for side, made, config, positions in (
        ("encoder", Encoder, configs.EncoderConfig, "learned"),
        ("encoder", Encoder, configs.EncoderConfig, "relative"),
        ("decoder", Decoder, configs.DecoderConfig, "learned"),
    ):
        sizes = architecture(placement, **{side: 3})
        sizes |= {"vocab_size": WORDS, "no_scale_embedding": False}
        sizes |= {"rel_pos_buckets": 32, "max_rel_pos": 128} if positions == "relative" else {}
        table = nn.Embedding(WORDS, WIDTH)
        places = PositionalEmbedding(ROWS + 2, WIDTH) if positions == "learned" else None
        theirs = shaken(made(config(**sizes), embed_tokens=table, embed_positions=places))
        expected = theirs(ids, features_only=side == "encoder")
        expected = expected["encoder_out"] if side == "encoder" else expected[0]
        ours = load_weights(theirs.state_dict(), sizes)
        found = ours(ids)
        difference = (expected - found).abs().max().item()
        print(f"torchscale {side}, {placement}, {positions}: largest difference {difference:.2e}")
        assert difference <= 1e-5
        same_gradients((expected, found), (table.weight, ours.embedding.table.weight), 1e-3)
    sizes = architecture(placement, encoder=2, decoder=3)
    table, output = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
    output.weight = table.weight
    places = [PositionalEmbedding(ROWS + 2, WIDTH) for _ in range(2)]
    config = configs.EncoderDecoderConfig(vocab_size=WORDS, **sizes)
    theirs = shaken(EncoderDecoder(config, table, places[0], table, places[1], output))
    expected = theirs(ids, target)[0]
    ours = load_weights(theirs.state_dict(), sizes)
    difference, largest = ((x.abs().max().item()) for x in (expected - ours(ids, target), expected))
    print(f"torchscale, both, {placement}: difference {difference:.2e} of {largest:.1f}")
    assert difference <= 1e-6 * largest
