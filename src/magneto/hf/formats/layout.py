"""What every conversion uses: which tensor of ours is which of theirs, read both ways."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from magneto.nn.config import TransformerConfig

State = dict[str, Tensor]
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# Say how a model is trained, or where its numbers lie, not what it computes.
FREE = {
    "init", "loss_chunk", "residual_dtype", "checkpoint_activations", "drop_path", "rotary_base",
    "label_smoothing", "layers", "pretrained", "objective", "layer_decay", "head_rate",
    "temperature",
}  # fmt: skip


def same(tensor: Tensor) -> Tensor:
    """Return a tensor as it is."""
    return tensor


def transposed(tensor: Tensor) -> Tensor:
    """Return a matrix transposed (GPT-2's Conv1D keeps (in, out)); a vector as it is."""
    return tensor.t() if tensor.ndim == 2 else tensor


def skip_two(table: Tensor) -> Tensor:
    """Return a table of positions without its first two rows, which fairseq never uses."""
    return table[2:]


def add_two(table: Tensor) -> Tensor:
    """Return a table of positions with two rows of zeros before it."""
    return nn.functional.pad(table, (0, 0, 2, 0))


@dataclass(frozen=True)
class Pair:
    """One tensor of ours.

    Attributes:
        ours: Its name.
        theirs: Theirs; several are stacked along the first axis in ours.
        read: From theirs to ours, before stacking.
        write: Back.
        rows: Of ours that each of theirs has, where they are not alike.
    """

    ours: str
    theirs: tuple[str, ...]
    read: Callable[[Tensor], Tensor] = same
    write: Callable[[Tensor], Tensor] = same
    rows: tuple[int, ...] = ()

    def parts(self, tensor: Tensor) -> Sequence[Tensor]:
        """Return what of our tensor belongs to each of theirs."""
        if len(self.theirs) == 1:
            return (tensor,)  # a scalar has no chunks
        return tensor.split(self.rows) if self.rows else tensor.chunk(len(self.theirs))


def module(
    ours: str,
    *theirs: str,
    read: Callable[[Tensor], Tensor] = same,
    write: Callable[[Tensor], Tensor] = same,
) -> list[Pair]:
    """Return the pairs of a module's weight and bias."""
    return [
        Pair(f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs), read, write)
        for kind in ("weight", "bias")
    ]


def read_state(pairs: Iterable[Pair], state: Mapping[str, Tensor], ignored: str = "") -> State:
    """Return our tensors from theirs; what neither has (a bias) is left out.

    Args:
        pairs: Of all tensors of ours.
        state: Theirs.
        ignored: A regular expression; what it finds in a name of theirs may be left behind.

    Raises:
        ValueError: If a tensor of theirs has no place here, or is there only in part.
    """
    ours: State = {}
    used: set[str] = set()
    for pair in pairs:
        found = [name for name in pair.theirs if name in state]
        if not found:
            continue
        if len(found) < len(pair.theirs):
            lacking = ", ".join(set(pair.theirs) - set(found))
            raise ValueError(f"the weights have {found[0]} but not {lacking}")
        parts = [pair.read(state[name]) for name in pair.theirs]
        ours[pair.ours] = torch.cat(parts) if len(parts) > 1 else parts[0]
        used.update(found)
    left = [name for name in state if name not in used]
    left = [name for name in left if not (ignored and re.search(ignored, name))]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise ValueError(f"no place here for the tensor {left[0]!r}{more}")
    return ours


def write_state(pairs: Iterable[Pair], state: Mapping[str, Tensor]) -> State:
    """Return their tensors from ours; tied ones may come under each of their names.

    Raises:
        ValueError: If a tensor of ours has no place there.
    """
    theirs: State = {}
    used: set[str] = set()
    for pair in pairs:
        if pair.ours not in state:
            continue
        parts = pair.parts(state[pair.ours])
        theirs |= {
            name: pair.write(part).contiguous()
            for name, part in zip(pair.theirs, parts, strict=True)
        }
        used.add(pair.ours)
    taken = {state[name].data_ptr() for name in used}
    left = [name for name in state if name not in used and state[name].data_ptr() not in taken]
    if left:
        raise ValueError(f"no place there for our tensor {left[0]!r}")
    return theirs


def squeezed(token: Tensor) -> Tensor:
    """Return a class token (1, 1, width) as (width,)."""
    return token[0, 0]


def as_row(token: Tensor) -> Tensor:
    """Return a class token (width,) as (1, 1, width)."""
    return token[None, None]


def first(table: Tensor) -> Tensor:
    """Return positions (1, length, width) as (length, width)."""
    return table[0]


def one(table: Tensor) -> Tensor:
    """Return positions (length, width) as (1, length, width)."""
    return table[None]


def fill(model: nn.Module, state: Mapping[str, Tensor], computed: str = "") -> nn.Module:
    """Load a state; a tied tensor may come under one of its names.

    Args:
        model: To fill.
        state: Of tensors with the model's shapes.
        computed: A regular expression of names that need not come: they hold no weights.

    Raises:
        ValueError: If a tensor is missing, has no place, or another shape.
    """
    own = model.state_dict()
    for name, tensor in state.items():
        if name not in own:
            raise ValueError(f"no place for the tensor {name!r}")
        if own[name].shape != tensor.shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}, not {tuple(own[name].shape)}")
    filled = {own[name].data_ptr() for name in state}
    for name, tensor in own.items():
        known = tensor.data_ptr() in filled or (computed and re.search(computed, name))
        if not known:
            raise ValueError(f"the tensor {name!r} is missing")
    model.load_state_dict(dict(state), strict=False)
    return model


def without_prefix(state: Mapping[str, Tensor], prefix: str) -> State:
    """Return the state of a model with or without a head on it, under the same names."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


def activation(name: str) -> Any:
    """Return our name of an activation.

    Raises:
        ValueError: If we have none.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"no activation {name!r} here: there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def their_activation(name: str) -> str:
    """Return transformers' name of one of our activations; ours if they have none."""
    return next((theirs for theirs, ours in ACTIVATIONS.items() if ours == name), name)


def require(config: Any, **wanted: Any) -> None:
    """Raise ValueError if an option of their configuration is not as we have it."""
    for name, value in wanted.items():
        found = getattr(config, name, value)
        if found != value:
            kind = getattr(config, "model_type", "the model")
            raise ValueError(f"{kind} with {name}={found!r} has no counterpart here "
                             f"(only {value!r})")  # fmt: skip


def check_placement(config: TransformerConfig, wanted: Sequence[str], format_name: str) -> None:
    """Check that a model's placement is one of the table's rows that a format can hold.

    Raises:
        ValueError: If it is another, or another row of the same name.
    """
    row = config.row
    if row.name in wanted and replace(config, placement=row.name).row == row:
        return
    found = f"another {row.name!r} than the table's" if row.name in wanted else repr(row.name)
    raise ValueError(f"{format_name} cannot hold this model: placement is {found} here, "
                     f"{' or '.join(map(repr, wanted))} there")  # fmt: skip


def check_same(ours: TransformerConfig, returned: TransformerConfig, format_name: str) -> None:
    """Check that a configuration of ours survives a format: it comes back as it went.

    Raises:
        ValueError: If a field that says what the model computes does not.
    """
    check_placement(ours, [returned.row.name], format_name)
    for field in fields(ours):
        name = field.name
        if name in FREE and not (name == "layers" and ours.encoder_layers is None):
            continue
        mine, theirs = getattr(ours, name), getattr(returned, name, None)
        if name == "placement":
            continue
        if name == "key_value_heads":
            mine, theirs = mine or ours.heads, theirs or returned.heads
        if name == "head_dim":
            mine, theirs = ours.head_width, returned.head_width
        if name == "windows":
            mine, theirs = (
                [config.window(layer) for layer in range(ours.layers)]
                for config in (ours, returned)
            )
        if name == "max_length" and ours.positions != "learned":
            continue
        if mine != theirs:
            raise ValueError(f"{format_name} cannot hold this model: {name} is {mine!r} here, "
                             f"{theirs!r} there")  # fmt: skip
