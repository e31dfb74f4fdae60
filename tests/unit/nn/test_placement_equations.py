"""Rows against their papers' equations, written out here: the same outputs and gradients.

Each equation reads a stack's weights by name and nothing else of it. Everything is in float64, with
weights, biases and norms drawn at random, so that a norm in the wrong place cannot hide.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from magneto import PLACEMENTS, Decoder, EncoderDecoder, TransformerConfig
from tests.unit.nn.grids import redrawn

LAYERS, HEADS, KEY_VALUE_HEADS, WIDTH = 3, 4, 2, 32
HEAD_WIDTH = WIDTH // HEADS
Weights = dict[str, Tensor]
Heads = Sequence[Tensor]


class Equations:
    """The parts all papers share, over the weights of one stack."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attend(self, query: Heads, key: Heads, value: Heads) -> Tensor:
        """Causal softmax attention, head by head; lists of (B, T, D) make (B, T, width)."""
        length = query[0].shape[1]
        future = torch.ones(length, length).triu(1).bool()
        heads = []
        for i, q in enumerate(query):
            shared = i * KEY_VALUE_HEADS // HEADS
            logits = q @ key[shared].transpose(1, 2) / HEAD_WIDTH**0.5
            probabilities = logits.masked_fill(future, float("-inf")).softmax(-1)
            heads.append(probabilities @ value[shared])
        return torch.cat(heads, -1)

    def projections(self, layer: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of all heads together."""
        inner = KEY_VALUE_HEADS * HEAD_WIDTH
        projected = self.linear(f"{layer}.self_attention.attention.qkv_proj", x)
        return projected.split([WIDTH, inner, inner], -1)

    def attention(self, layer: str, x: Tensor) -> Tensor:
        """Plain attention up to the output projection."""
        return self.attend(*(part.split(HEAD_WIDTH, -1) for part in self.projections(layer, x)))

    def out(self, layer: str, joined: Tensor) -> Tensor:
        return self.linear(f"{layer}.self_attention.attention.out_proj", joined)

    def mlp(self, layer: str, x: Tensor, normed: bool = False) -> Tensor:
        name = f"{layer}.feed_forward.mlp"
        inner = F.gelu(self.linear(f"{name}.fc1", x))
        return self.linear(f"{name}.fc2", self.norm(f"{name}.inside", inner) if normed else inner)

    def every_head(self, name: str, parts: Tensor) -> list[Tensor]:
        return [self.norm(name, head) for head in parts.split(HEAD_WIDTH, -1)]

    def scaled(self, name: str, joined: Tensor) -> Tensor:
        """A scalar per head times each head's part."""
        scales, parts = self.weights[f"{name}.weight"], joined.chunk(HEADS, -1)
        return torch.cat([scale * part for scale, part in zip(scales, parts, strict=True)], -1)


def normformer(eq: Equations, x: Tensor, fairseq: bool = False) -> Tensor:
    """x = norm(W concat(g h)) + x; x = W norm(gelu(W norm(x))) + x; fairseq: norm(g W concat(h)).

    The authors' code in fairseq is `TransformerDecoderLayerBase`.
    """
    for n in range(LAYERS):
        layer = f"layers.{n}"
        attention = f"{layer}.self_attention"
        heads = eq.attention(layer, eq.norm(f"{attention}.before", x))
        if fairseq:
            branch = eq.scaled(f"{attention}.attention.scale_after_out", eq.out(layer, heads))
        else:
            scaled = eq.scaled(f"{attention}.attention.scale_before_out", heads)
            branch = eq.out(layer, scaled)
        x = eq.norm(f"{attention}.branch", branch) + x
        x = eq.mlp(layer, eq.norm(f"{layer}.feed_forward.before", x), normed=True) + x
    return eq.norm("final_norm", x)


def normformer_fairseq(eq: Equations, x: Tensor) -> Tensor:
    return normformer(eq, x, fairseq=True)


def peri(eq: Equations, x: Tensor) -> Tensor:
    """x = x + norm(F(norm(x))), and a norm on top."""
    for n in range(LAYERS):
        layer = f"layers.{n}"
        attention, mlp = f"{layer}.self_attention", f"{layer}.feed_forward"
        branch = eq.out(layer, eq.attention(layer, eq.norm(f"{attention}.before", x)))
        x = x + eq.norm(f"{attention}.branch", branch)
        branch = eq.mlp(layer, eq.norm(f"{mlp}.before", x))
        x = x + eq.norm(f"{mlp}.branch", branch)
    return eq.norm("final_norm", x)


def pre_qk(eq: Equations, x: Tensor) -> Tensor:
    """Pre-LN, with the norms of ViT-22B on each head's queries and keys."""
    for n in range(LAYERS):
        layer = f"layers.{n}"
        attention = f"{layer}.self_attention"
        query, key, value = eq.projections(layer, eq.norm(f"{attention}.before", x))
        norms = f"{attention}.attention.norm_heads"
        query, key = (eq.every_head(f"{norms}.{n}", p) for n, p in (("q", query), ("k", key)))
        x = x + eq.out(layer, eq.attend(query, key, value.split(HEAD_WIDTH, -1)))
        x = x + eq.mlp(layer, eq.norm(f"{layer}.feed_forward.before", x))
    return eq.norm("final_norm", x)


def keel(eq: Equations, x: Tensor) -> Tensor:
    """x = norm(L x + F(norm(x))), L sublayers; the first layer has no L, its attention no norm."""
    alpha = 2 * LAYERS
    for n in range(LAYERS):
        layer = f"layers.{n}"
        attention, mlp = f"{layer}.self_attention", f"{layer}.feed_forward"
        branch = eq.out(layer, eq.attention(layer, eq.norm(f"{attention}.before", x)))
        x = x + branch if n == 0 else eq.norm(f"{attention}.after", alpha * x + branch)
        branch = eq.mlp(layer, eq.norm(f"{mlp}.before", x))
        x = eq.norm(f"{mlp}.after", (1 if n == 0 else alpha) * x + branch)
    return x


def hybrid_attention(eq: Equations, layer: str, x: Tensor) -> Tensor:
    """Attention with each head's queries, keys and values normed (equation 5)."""
    norms = f"{layer}.self_attention.attention.norm_heads"
    parts = zip("qkv", eq.projections(layer, x), strict=True)
    return eq.out(layer, eq.attend(*(eq.every_head(f"{norms}.{n}", part) for n, part in parts)))


def hybrid(eq: Equations, x: Tensor, first: int = 0) -> Tensor:
    """y = attention(x) + x; x = mlp(norm(y)) + norm(y) (equation 6)."""
    for n in range(first, LAYERS):
        layer = f"layers.{n}"
        y = hybrid_attention(eq, layer, x) + x
        normed = eq.norm(f"{layer}.self_attention.after", y)
        x = eq.mlp(layer, normed) + normed
    return eq.norm("final_norm", x)


def hybrid_star(eq: Equations, x: Tensor) -> Tensor:
    """The first layer: y = attention(norm(x)) + x; x = mlp(norm(y)) + y (equation 7)."""
    first = "layers.0"
    y = hybrid_attention(eq, first, eq.norm(f"{first}.self_attention.before", x)) + x
    x = eq.mlp(first, eq.norm(f"{first}.feed_forward.before", y)) + y
    return hybrid(eq, x, first=1)


def gated(eq: Equations, x: Tensor) -> Tensor:
    """Y' = Y * sigmoid(X W), Y the heads' outputs, X the attention's normed input (equation 5)."""
    for n in range(LAYERS):
        layer = f"layers.{n}"
        normed = eq.norm(f"{layer}.self_attention.before", x)
        gate = eq.linear(f"{layer}.self_attention.attention.gate_proj", normed)
        heads = eq.attention(layer, normed) / (1 + (-gate).exp())
        x = x + eq.out(layer, heads)
        x = x + eq.mlp(layer, eq.norm(f"{layer}.feed_forward.before", x))
    return eq.norm("final_norm", x)


EQUATIONS: dict[str, Callable[[Equations, Tensor], Tensor]] = {
    "normformer": normformer,
    "normformer-fairseq": normformer_fairseq,
    "peri": peri,
    "pre-qk": pre_qk,
    "keel": keel,
    "hybrid": hybrid,
    "hybrid-star": hybrid_star,
    "gated": gated,
}


def shape(placement: str, **changes) -> TransformerConfig:
    sizes = {"width": WIDTH, "heads": HEADS, "layers": LAYERS, "ffn_width": 48}
    return TransformerConfig(placement=placement, **{**sizes, **changes})


@pytest.mark.parametrize("placement", EQUATIONS)
def test_outputs_and_gradients_are_the_papers(placement: str) -> None:
    model = Decoder(shape(placement, key_value_heads=KEY_VALUE_HEADS)).double()
    redrawn(model)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    weigh = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    weights: Weights = dict(model.named_parameters())
    expected = EQUATIONS[placement](Equations(weights), x)
    output = model(x)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-10)
    # An unused parameter has no gradient, and raises here: every weight is in the equations.
    leaves = [x, *weights.values()]
    wanted = torch.autograd.grad((expected * weigh).sum(), leaves)
    found = torch.autograd.grad((output * weigh).sum(), leaves)
    for name, mine, theirs in zip(["x", *weights], found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-8, msg=f"gradient of {name}")


def test_cross_attention_is_gated_by_its_query() -> None:
    """A closed gate shuts the memory out; what the gate reads is the decoder's own stream."""
    model = EncoderDecoder(shape("gated", encoder_layers=1, decoder_layers=1)).eval()
    attention = model.decoder.layers[0].cross_attention.attention
    read = []
    attention.gate_proj.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    target, memories = torch.randn(1, 3, WIDTH), torch.randn(2, 1, 6, WIDTH)
    open_gate = [model.decoder(target, memory=memory) for memory in memories]
    assert not torch.allclose(*open_gate, atol=1e-3)
    assert torch.equal(*read) and read[0].shape == target.shape
    with torch.no_grad():
        attention.gate_proj.bias.fill_(-100)
    closed = [model.decoder(target, memory=memory) for memory in memories]
    torch.testing.assert_close(*closed, rtol=0, atol=1e-6)


def test_every_row_has_its_equation() -> None:
    """`post`, `pre`, `deepnorm` and `sub` are torchscale's, `olmo2` is OLMo 2's (tests/oracles)."""
    assert set(PLACEMENTS) - {"post", "pre", "deepnorm", "sub", "olmo2"} <= set(EQUATIONS)
