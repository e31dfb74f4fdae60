"""torch's own encoder as ours."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional as F

from magneto.hf.formats.layout import Pair, fill, module, read_state
from magneto.nn.config import Activation, TransformerConfig
from magneto.nn.transformer import Encoder


def from_torch(encoder: nn.TransformerEncoder) -> Encoder:
    """Return torch's own encoder as one of ours, in evaluation mode.

    Ours reads (batch, length, width) whatever `batch_first` was, and its dropout rates are 0.

    Args:
        encoder: With `norm_first` and a norm on top ("pre"), or with neither ("post").

    Raises:
        ValueError: If an option has no counterpart.
    """
    first: Any = encoder.layers[0]
    before = first.norm_first
    if before != (encoder.norm is not None):
        raise ValueError("norm_first needs a norm on top of the stack, and Post-LN has none")
    epsilons = {norm.eps for norm in encoder.modules() if isinstance(norm, nn.LayerNorm)}
    if len(epsilons) > 1:
        raise ValueError(f"norms with unlike eps have no counterpart here: {sorted(epsilons)}")
    config = TransformerConfig(
        width=first.linear1.in_features,
        layers=len(encoder.layers),
        heads=first.self_attn.num_heads,
        ffn_width=first.linear1.out_features,
        placement="pre" if before else "post",
        activation=_activation(first.activation),
        norm_eps=first.norm1.eps,
        bias=first.linear1.bias is not None,
    )
    model = Encoder(config)
    names = _pairs(len(encoder.layers), "before" if before else "after")
    return fill(model, read_state(names, encoder.state_dict())).eval()  # type: ignore[return-value]


def _activation(function: Any) -> Activation:
    if function is F.relu or isinstance(function, nn.ReLU):
        return "relu"
    if function is F.gelu:
        return "gelu"
    if isinstance(function, nn.GELU):
        return "gelu" if function.approximate == "none" else "gelu_tanh"
    raise ValueError(f"no counterpart for the activation {function}")


def _pairs(layers: int, slot: str) -> list[Pair]:
    made = module("final_norm", "norm")
    for layer in range(layers):
        name = f"layers.{layer}"
        attention = f"{name}.self_attention.attention"
        made += [
            Pair(f"{attention}.qkv_proj.{kind}", (f"{name}.self_attn.in_proj_{kind}",))
            for kind in ("weight", "bias")
        ]
        made += module(f"{attention}.out_proj", f"{name}.self_attn.out_proj")
        made += module(f"{name}.self_attention.{slot}", f"{name}.norm1")
        made += module(f"{name}.feed_forward.mlp.fc1", f"{name}.linear1")
        made += module(f"{name}.feed_forward.mlp.fc2", f"{name}.linear2")
        made += module(f"{name}.feed_forward.{slot}", f"{name}.norm2")
    return made
