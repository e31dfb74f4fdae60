"""Sublayers and what is in their branches: activations, LayerScale, stochastic depth.

Against transformers' own: outputs and gradients, of the input and of every weight.
"""

from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from magneto import Encoder, TransformerConfig
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


WIDTH, INNER = 12, 20


def made(activation: str, bias: bool = True) -> FeedForward:
    """Return a block in float64 whose parameters are all random, biases included."""
    torch.manual_seed(3)
    config = TransformerConfig(
        width=WIDTH, layers=1, heads=2, ffn_width=INNER, bias=bias,
        activation=activation, placement="pre",
    )  # fmt: skip
    block = FeedForward(config).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.7)
    return block


def inputs() -> Tensor:
    generator = torch.Generator().manual_seed(7)
    x = 2 * torch.randn(3, 5, WIDTH, dtype=torch.float64, generator=generator)
    return x.requires_grad_()


def gradients(y: Tensor, of: list[Tensor]) -> list[Tensor]:
    """Return the gradients of a sum whose terms all weigh differently."""
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
    return list(torch.autograd.grad((weights * y).sum(), of))


# transformers' names of the functions in gated units; BitNet's is relu2.
ACT2FN = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh", "reglu": "relu",
          "relu2_glu": "relu2"}  # fmt: skip


# And of the others.
OTHERS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "relu2": "relu2", "silu": "silu"}


def of_transformers(activation: str, bias: bool) -> tuple[nn.Module, list[list[nn.Module]]]:
    """LLaMA's network or GPT-2's, and what its modules are of the block's first and second."""
    if activation in GATED:
        modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
        config = modeling.LlamaConfig(
            hidden_size=WIDTH, num_attention_heads=2, num_key_value_heads=2,
            intermediate_size=INNER, mlp_bias=bias, hidden_act=ACT2FN[activation],
        )  # fmt: skip
        made = modeling.LlamaMLP(config).double()
        return made, [[made.gate_proj, made.up_proj], [made.down_proj]]
    modeling = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
    config = modeling.GPT2Config(
        n_embd=WIDTH, activation_function=OTHERS[activation], resid_pdrop=0.0
    )
    made = modeling.GPT2MLP(INNER, config).double()
    return made, [[made.c_fc], [made.c_proj]]


@pytest.mark.parametrize(
    ("activation", "bias"),
    [(name, True) for name in get_args(Activation)] + [(name, False) for name in GATED],
)
def test_it_is_the_feed_forward_network_of_llama_or_gpt2(activation: str, bias: bool) -> None:
    block, x = made(activation, bias=bias), inputs()
    theirs, parts = of_transformers(activation, bias)
    flipped = activation in OTHERS  # GPT-2's matrices are (inputs, outputs)
    with torch.no_grad():
        for mine, others in zip((block.fc1, block.fc2), parts, strict=True):
            for name in ("weight", "bias") if bias else ("weight",):
                slices = getattr(mine, name).chunk(len(others))
                for other, values in zip(others, slices, strict=True):
                    getattr(other, name).copy_(values.T if flipped and name == "weight" else values)
    ours, expected = block(x), theirs(x)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    of_ours = gradients(ours, [x, block.fc1.weight, block.fc2.weight])
    weights = [other.weight for others in parts for other in others]
    of_x, *first, last = gradients(expected, [x, *weights])
    joined = [of_x, torch.cat(first), last]
    if flipped:
        joined = [of_x, first[0].T, last.T]
    torch.testing.assert_close(of_ours, joined, rtol=1e-10, atol=1e-10)


def test_every_activation_is_compared() -> None:
    assert set(PLAIN) == set(OTHERS) and set(GATED) == set(ACT2FN)
    assert {*PLAIN, *GATED} == set(get_args(Activation))
