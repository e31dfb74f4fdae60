"""The encoder of another run of images, to begin with, and the rates at which its layers learn."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from magneto.nn.config import TransformerConfig
from magneto.nn.position import resize_positions
from magneto.runs import check_same_encoder, open_run, pretrained_run
from magneto.weights import StoredTensor, find_weights, open_tensors

WANTED = "give an image-modelling or image-classification run"
PARTS = ("embedding.", "class_token.", "encoder.")
# Of both runs' encoders alike: what the weights compute depends on them.
SAME = {
    *(field.name for field in fields(TransformerConfig)),
    *("patch_size", "channels", "class_token"),
} - {"max_length"}


@dataclass(frozen=True)
class HeldTensor:
    """A tensor in memory, in the place of an open file that has it."""

    tensor: Tensor

    def get_tensor(self, name: str) -> Tensor:
        """Return it."""
        return self.tensor

    def get_slice(self, name: str) -> Tensor:
        """Return it, to be cut by rows."""
        return self.tensor


def encoder_weights(model: nn.Module, config: Any) -> dict[str, StoredTensor]:
    """Return patches, class token, positions and layers of the run that `pretrained` names.

    Learned positions are interpolated to the model's grid. The run's head, and a norm on top of its
    stack, are left.

    Args:
        model: That shall have them; its shapes are looked at, not its values.
        config: Its configuration.

    Raises:
        FileNotFoundError: If there is no such run, or it has no weights.
        ValueError: If its encoder is another one; names the options that would fit.
    """
    run = pretrained_run(config)
    held: Any = open_run(run).model
    if getattr(held, "grid", None) is None:
        raise ValueError(f"{run} is no run of images: {WANTED}")
    check_same_encoder(run, held, config, SAME)
    stored = open_tensors(find_weights(run))
    wanted = {n: t for n, t in model.state_dict().items() if n.startswith(PARTS)}
    missing = sorted(wanted.keys() - stored.keys())
    if missing:
        raise ValueError(f"{run} has no {missing[0]}: {WANTED}")
    state = {name: stored[name].read() for name in wanted}
    return {n: in_memory(n, t) for n, t in resize_positions(state, held, config).items()}


def in_memory(name: str, tensor: Tensor) -> StoredTensor:
    """Return a tensor as those that are read from files."""
    rows = len(tensor) if tensor.ndim else 1
    return StoredTensor(name, tuple(tensor.shape), ((HeldTensor(tensor), 0, rows),))


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
