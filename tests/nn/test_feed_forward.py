"""Every activation of the feed-forward network, against plain equations and against transformers.

Outputs and gradients, of the input and of every weight. The equations below are written with exp,
tanh and erf alone; the other oracle is code that nobody here wrote.
"""

import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from magneto import TransformerConfig
from magneto.nn.config import Activation
from magneto.nn.feed_forward import GATED, PLAIN, FeedForward

WIDTH, INNER = 12, 20


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def relu(x: Tensor) -> Tensor:
    return (x + abs(x)) / 2


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu2(x: Tensor) -> Tensor:
    return relu(x) * relu(x)


def silu(x: Tensor) -> Tensor:
    return x * sigmoid(x)


EQUATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "relu2": relu2,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
}
# Shazeer 2020: the function that the gate of each unit goes through.
GATES = {"swiglu": silu, "geglu": gelu, "geglu_tanh": gelu_tanh, "reglu": relu, "relu2_glu": relu2}


def equations(block: FeedForward, x: Tensor, activation: str, normed: bool) -> Tensor:
    """Shazeer 2020, equations 2 and 6: W2 (f(W x) * V x), and W2 f(W1 x)."""
    first, bias = block.fc1.weight, block.fc1.bias
    if activation in GATES:
        gate = x @ first[:INNER].T + bias[:INNER]
        value = x @ first[INNER:].T + bias[INNER:]
        inner = GATES[activation](gate) * value
    else:
        inner = EQUATIONS[activation](x @ first.T + bias)
    if normed:
        centred = inner - inner.mean(-1, keepdim=True)
        inner = centred / ((centred**2).mean(-1, keepdim=True) + 1e-5).sqrt()
        inner = inner * block.inside.weight + block.inside.bias
    return inner @ block.fc2.weight.T + block.fc2.bias


def made(activation: str, placement: str = "pre", bias: bool = True) -> FeedForward:
    """Return a block in float64 whose parameters are all random, biases and norms included."""
    torch.manual_seed(3)
    config = TransformerConfig(
        width=WIDTH, layers=1, heads=2, ffn_width=INNER, bias=bias,
        activation=activation, placement=placement,
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


@pytest.mark.parametrize("placement", ["pre", "sub"])
@pytest.mark.parametrize("activation", [*PLAIN, *GATED])
def test_activations_are_their_equations(activation: str, placement: str) -> None:
    block, x = made(activation, placement), inputs()
    ours, plain = block(x), equations(block, x, activation, normed=placement == "sub")
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    of = [x, *block.parameters()]
    torch.testing.assert_close(gradients(ours, of), gradients(plain, of), rtol=1e-10, atol=1e-10)


# transformers' names of the functions in gated units; BitNet's is relu2.
ACT2FN = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh", "reglu": "relu",
          "relu2_glu": "relu2"}  # fmt: skip


@pytest.mark.parametrize("activation", GATED)
@pytest.mark.parametrize("bias", [False, True])
def test_gated_units_are_the_feed_forward_network_of_llama(bias: bool, activation: str) -> None:
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = modeling.LlamaConfig(
        hidden_size=WIDTH, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=INNER, mlp_bias=bias, hidden_act=ACT2FN[activation],
    )  # fmt: skip
    block, theirs, x = made(activation, bias=bias), modeling.LlamaMLP(config).double(), inputs()
    with torch.no_grad():
        for name in ("weight", "bias") if bias else ("weight",):
            first = getattr(block.fc1, name)
            getattr(theirs.gate_proj, name).copy_(first[:INNER])
            getattr(theirs.up_proj, name).copy_(first[INNER:])
            getattr(theirs.down_proj, name).copy_(getattr(block.fc2, name))
    ours, others = block(x), theirs(x)
    torch.testing.assert_close(ours, others, rtol=1e-12, atol=1e-12)
    of_ours = gradients(ours, [x, block.fc1.weight, block.fc2.weight])
    of_x, gate, up, down = gradients(
        others, [x, theirs.gate_proj.weight, theirs.up_proj.weight, theirs.down_proj.weight]
    )
    torch.testing.assert_close(of_ours, [of_x, torch.cat([gate, up]), down], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("activation", "called"),
    [
        ("gelu", "gelu"),
        ("gelu_tanh", "gelu_new"),
        ("relu", "relu"),
        ("relu2", "relu2"),
        ("silu", "silu"),
    ],
)
def test_other_activations_are_those_of_gpt2(activation: str, called: str) -> None:
    modeling = pytest.importorskip("transformers.models.gpt2.modeling_gpt2")
    config = modeling.GPT2Config(n_embd=WIDTH, activation_function=called, resid_pdrop=0.0)
    block, theirs, x = made(activation), modeling.GPT2MLP(INNER, config).double(), inputs()
    with torch.no_grad():
        for one, other in ((block.fc1, theirs.c_fc), (block.fc2, theirs.c_proj)):
            other.weight.copy_(one.weight.T)
            other.bias.copy_(one.bias)
    ours, others = block(x), theirs(x)
    torch.testing.assert_close(ours, others, rtol=1e-12, atol=1e-12)
    of_ours = gradients(ours, [x, block.fc1.weight, block.fc2.weight])
    of_x, first, second = gradients(others, [x, theirs.c_fc.weight, theirs.c_proj.weight])
    torch.testing.assert_close(of_ours, [of_x, first.T, second.T], rtol=1e-10, atol=1e-10)


def test_every_activation_has_an_equation() -> None:
    assert set(PLAIN) == set(EQUATIONS) and set(GATED) == set(GATES)
    assert {*PLAIN, *GATED} == set(get_args(Activation))


def test_roles_are_views_of_the_gate_the_value_and_the_output() -> None:
    block = made("swiglu")
    (role, gate), (same, value), (last, out) = block.roles()
    assert (role, same, last) == ("fc1", "fc1", "fc2")
    assert gate.shape == value.shape == (INNER, WIDTH) and out is block.fc2.weight
    with torch.no_grad():
        gate.fill_(1.0)
        value.fill_(2.0)
    assert block.fc1.weight[:INNER].eq(1).all() and block.fc1.weight[INNER:].eq(2).all()
