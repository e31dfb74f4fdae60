"""Layer-wise decay of the learning rate: what lies deeper in a pre-trained ViT learns slower."""

from __future__ import annotations

import re

from torch import nn

LAYER = re.compile(r"encoder\.layers\.(\d+)\.")
EMBEDDING = (
    "embedding.",
    "class_token.",
    "encoder.position_embedding.",
    "encoder.input_norm.",
)
"""What is below the first layer."""


def layer_decay_multipliers(model: nn.Module, layers: int, decay: float) -> dict[str, float]:
    """Return multiples of the learning rate by parameter's name (BEiT, arXiv 2106.08254).

    Patches, class token and positions are group 0, layer l is group l + 1, and all above the layers
    is the last group, which learns at the full rate; each group below learns at `decay` times the
    rate of the one above it.

    Args:
        model: With a stack called "encoder".
        layers: Of the stack.
        decay: 1 for none.
    """
    if decay == 1:
        return {}
    last = layers + 1

    def group(name: str) -> int:
        found = LAYER.match(name)
        if found:
            return int(found[1]) + 1
        return 0 if name.startswith(EMBEDDING) else last

    return {name: decay ** (last - group(name)) for name, _ in model.named_parameters()}
