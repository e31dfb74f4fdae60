"""torch's own encoder as ours."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional as F

from magneto.hf.weights.layout import Pair, fill, in_layers, modules, read_state
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
    names = {
        "self_attention.attention.out_proj": "self_attn.out_proj",
        f"self_attention.{slot}": "norm1",
        "feed_forward.mlp.fc1": "linear1",
        "feed_forward.mlp.fc2": "linear2",
        f"feed_forward.{slot}": "norm2",
    }
    made = modules({"final_norm": "norm"}) + in_layers(names, "layers", "layers", layers)
    for layer in range(layers):
        projection = f"layers.{layer}.self_attention.attention.qkv_proj"
        made += [
            Pair(f"{projection}.{kind}", (f"layers.{layer}.self_attn.in_proj_{kind}",))
            for kind in ("weight", "bias")
        ]
    return made
