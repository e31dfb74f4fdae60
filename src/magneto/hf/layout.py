"""Maps of tensors and configuration fields between Magneto and other libraries.

In this module, "ours" stands for Magneto, and "theirs" for the other library.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from magneto.fields import free_fields
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


def identity(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Layout:
    """Conversion of a tensor's layout.

    `read` converts a tensor to Magneto's layout. `write` converts a tensor to the other library's
    layout.
    """

    read: Callable[[Tensor], Tensor] = identity
    write: Callable[[Tensor], Tensor] = identity


SAME = Layout()
# Theirs has a leading dimension of size 1.
ROW = Layout(lambda tensor: tensor[0], lambda tensor: tensor[None])
# Class token, theirs (1, 1, width).
TOKEN = Layout(lambda token: token[0, 0], lambda token: token[None, None])
# fairseq does not use the first two rows of a position table.
FROM_TWO = Layout(lambda table: table[2:], lambda table: nn.functional.pad(table, (0, 0, 2, 0)))


@dataclass(frozen=True)
class TheirTensors:
    """Tensors of the other library that correspond to one module or tensor of Magneto."""

    # Names of the tensors. Several tensors are stacked along the first dimension.
    names: tuple[str, ...]
    # Conversion of the layout.
    layout: Layout = SAME
    # Suffixes of the names, or ("",) for a single tensor.
    kinds: tuple[str, ...] = (".weight", ".bias")


def tensor(*names: str, layout: Layout = SAME) -> TheirTensors:
    return TheirTensors(names, layout, ("",))


Names = Mapping[str, "str | tuple[str, ...] | TheirTensors"]
"""Map from Magneto's names of modules and tensors to the other library's names.

`*` stands for a layer's number. The parts of a `qkv_proj` are queries, keys and values.
"""


@dataclass(frozen=True)
class Pair:
    """Magneto's tensor `ours`, which stacks the tensors `theirs` of the other library.

    `rows` has the number of rows of each tensor in `theirs`, or is () if all tensors
    have the same number.
    """

    ours: str
    theirs: tuple[str, ...]
    layout: Layout = SAME
    rows: tuple[int, ...] = ()


def tensor_pairs(config: Any, names: Names) -> list[Pair]:
    """Return the pairs of tensors that `names` describes. Each layer's number replaces `*`."""
    made = []
    for mine, their in names.items():
        if not isinstance(their, TheirTensors):
            their = TheirTensors((their,) if isinstance(their, str) else their)
        stack = "decoder" if "decoder." in mine else "encoder"
        layers = range(config.depth(stack).layers) if "*" in mine else [0]
        for number in map(str, layers):
            ours = mine.replace("*", number)
            parts = [name.replace("*", number) for name in their.names]
            for kind in their.kinds:
                theirs = [f"{part}{kind}" for part in parts]
                if "qkv_proj" in ours and len(theirs) == 3:
                    made += _projections(config, f"{ours}{kind}", theirs, their.layout)
                else:
                    made.append(Pair(f"{ours}{kind}", tuple(theirs), their.layout))
    return made


def _projections(config: Any, ours: str, theirs: list[str], layout: Layout) -> list[Pair]:
    rows = (config.attention_width, config.key_value_width, config.key_value_width)
    kept = {
        name: size
        for name, size, part in zip(theirs, rows, "qkv", strict=True)
        if ours.endswith("weight") or config.biased(part)
    }
    return [Pair(ours, tuple(kept), layout, tuple(kept.values()))] if kept else []


def read_state(pairs: Iterable[Pair], state: Mapping[str, Tensor], ignored: str = "") -> State:
    """Convert the other library's tensors to tensors with Magneto's names and layouts.

    Raises:
        ValueError: If a part of a stacked tensor is missing.
        ValueError: If a tensor is unused and its name does not match the regular expression
            `ignored`.
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
        parts = [state[name] for name in pair.theirs]
        stacked = torch.cat(parts) if len(parts) > 1 else parts[0]
        ours[pair.ours] = pair.layout.read(stacked)
        used.update(found)
    left = [name for name in state if name not in used]
    left = [name for name in left if not (ignored and re.search(ignored, name))]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise ValueError(f"Magneto has no counterpart of the tensor {left[0]!r}{more}")
    return ours


def write_state(pairs: Iterable[Pair], state: Mapping[str, Tensor]) -> State:
    """Convert Magneto's tensors to the other library's tensors, or raise ValueError."""
    theirs: State = {}
    used: set[str] = set()
    for pair in pairs:
        if pair.ours not in state:
            continue
        ours, count = pair.layout.write(state[pair.ours]), len(pair.theirs)
        rows = list(pair.rows) or [len(ours) // count] * count if count > 1 else []
        parts = ours.split(rows) if rows else [ours]  # a scalar cannot be split
        theirs |= {name: part.contiguous() for name, part in zip(pair.theirs, parts, strict=True)}
        used.add(pair.ours)
    taken = {state[name].data_ptr() for name in used}
    left = [name for name in state if name not in used and state[name].data_ptr() not in taken]
    if left:
        raise ValueError(f"the target format has no counterpart of Magneto's tensor {left[0]!r}")
    return theirs


def fill(model: nn.Module, state: Mapping[str, Tensor], computed: str = "") -> nn.Module:
    """Load tensors into a model.

    A tensor that is missing, unknown or of a wrong shape raises ValueError. A tensor may be missing
    if its name matches the regular expression `computed`. A tied tensor has several names, and
    `state` needs only one of them.
    """
    own = model.state_dict()
    for name, tensor in state.items():
        if name not in own:
            raise ValueError(f"the model has no tensor {name!r}")
        if own[name].shape != tensor.shape:
            raise ValueError(f"the shape of {name} is {tuple(tensor.shape)}, but must be "
                             f"{tuple(own[name].shape)}")  # fmt: skip
    filled = {own[name].data_ptr() for name in state}
    for name, tensor in own.items():
        known = tensor.data_ptr() in filled or (computed and re.search(computed, name))
        if not known:
            raise ValueError(f"the tensor {name!r} is missing")
    model.load_state_dict(dict(state), strict=False)
    return model


def without_prefix(state: Mapping[str, Tensor], prefix: str) -> State:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


@dataclass(frozen=True)
class Field:
    """Field of the other library's configuration.

    `read` converts the library's value to Magneto's value, and `write` does the reverse.
    """

    theirs: str
    read: Callable[[Any], Any] = identity
    write: Callable[[Any], Any] = identity


Fields = Mapping[str, str | Field]
"""Map from Magneto's fields to the other library's fields. A `Field` also converts values."""


def _known(fields: Fields) -> list[tuple[str, Field]]:
    return [(mine, Field(f) if isinstance(f, str) else f) for mine, f in fields.items()]


def read_fields(fields: Fields, theirs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        mine: pair.read(theirs[pair.theirs]) for mine, pair in _known(fields)
        if pair.theirs in theirs
    }  # fmt: skip


def write_fields(fields: Fields, config: Any) -> dict[str, Any]:
    return {pair.theirs: pair.write(getattr(config, mine)) for mine, pair in _known(fields)}


def activation(theirs: str, known: Mapping[str, str] = ACTIVATIONS) -> Field:
    """Return a `Field` that translates names of activations."""

    def read(name: str) -> str:
        if name not in known:
            raise ValueError(f"activation {name!r} is not supported, only {', '.join(known)}")
        return known[name]

    def write(name: str) -> str:
        return next((their for their, mine in known.items() if mine == name), name)

    return Field(theirs, read, write)


def choice(theirs: str, yes: Any, no: Any) -> Field:
    """Return a `Field` for a flag of the other library.

    True in the library is converted to `yes` in Magneto, and False to `no`.
    """
    return Field(theirs, lambda value: yes if value else no, lambda value: value == yes)


def require(kind: str, options: Mapping[str, Any], required: Mapping[str, Any]) -> None:
    """Raise ValueError if an option does not have the required value."""
    for name, value in required.items():
        if (found := options.get(name, value)) != value:
            raise ValueError(f"{kind} with {name}={found!r} is not supported, only {value!r}")


def check_placement(config: TransformerConfig, allowed: Sequence[str], format_name: str) -> None:
    row = config.row
    if row.name in allowed and replace(config, placement=row.name).row == row:
        return
    found = f"a changed {row.name!r}" if row.name in allowed else repr(row.name)
    raise ValueError(f"{format_name} cannot represent this model: placement is {found}, but must "
                     f"be {' or '.join(map(repr, allowed))}")  # fmt: skip


def check_round_trip(
    ours: TransformerConfig,
    returned: TransformerConfig,
    format_name: str,
    otherwise: Sequence[str] = (),
) -> None:
    """Raise ValueError if conversion to the library and back changes a model's outputs.

    `otherwise` lists configuration fields that may change, because they do not affect the outputs.
    """
    check_placement(ours, [returned.row.name], format_name)
    theirs = _computed_by(returned)
    for name, mine in _computed_by(ours).items():
        if mine != theirs.get(name) and name not in otherwise:
            raise ValueError(f"{format_name} cannot represent this model: {name} is {mine!r}, but "
                             f"must be {theirs.get(name)!r}")  # fmt: skip


def _computed_by(config: TransformerConfig) -> dict[str, Any]:
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    values |= {
        "key_value_heads": config.key_value_heads or config.heads,
        "head_dim": config.head_width,
        "windows": [config.window(layer) for layer in range(config.layers)],
        "max_length": config.max_length if config.positions == "learned" else None,
    }
    left_out = not_held(config) | {"placement"}
    return {name: value for name, value in values.items() if name not in left_out}


def not_held(config: TransformerConfig) -> set[str]:
    """Return the names of fields that no format stores."""
    free = {name for name in free_fields(type(config)) if not name.endswith("dropout")}
    return free | {"rotary_base"} | (set() if config.encoder_layers is None else {"layers"})


@dataclass(frozen=True)
class ModelFormat:
    """Conversion between model classes of the library transformers and of Magneto."""

    # The `model_type` in transformers.
    name: str
    # Name of transformers' configuration class.
    config: str
    # Names of transformers' model classes. Magneto reads all of them and writes the first.
    classes: tuple[str, ...]
    # Magneto's model class.
    model: Callable[[Any], nn.Module]
    # Magneto's configuration class.
    shape: Callable[..., Any]
    fields: Fields
    names: Names
    # Values of Magneto's fields that are the same in all models.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    # The only supported values of transformers' fields that Magneto lacks.
    required: Mapping[str, Any] = field(default_factory=dict)
    # Function that returns further values of Magneto's fields.
    read: Callable[[Any], dict[str, Any]] = lambda config: {}
    # Function that returns further values of transformers' fields.
    write: Callable[[Any], dict[str, Any]] = lambda config: {}
    # Prefix of transformers' tensor names in a model with a head.
    prefix: str = "model."
    # Regular expression for transformers' tensors that Magneto does not read.
    ignored: str = ""
    # Regular expression for transformers' tensors that Magneto does not write.
    absent: str = ""
    # Function that returns tensors of Magneto that transformers computes.
    computed: Callable[[Any, Any], State] = lambda theirs, ours: {}
    # Arguments of the constructor of transformers' model class.
    options: Mapping[str, Any] = field(default_factory=dict)

    def ours(self, config: Any) -> Any:
        """Convert transformers' configuration to Magneto's, or raise ValueError."""
        require(self.name, vars(config), self.required)
        names = {field.theirs for _, field in _known(self.fields)}
        held = {name: getattr(config, name) for name in names if hasattr(config, name)}
        known = read_fields(self.fields, held)
        return self.shape(**{**known, **self.fixed, **self.read(config)})

    def theirs(self, config: Any) -> dict[str, Any]:
        return write_fields(self.fields, config) | self.write(config)


class WeightFormat:
    """Conversion between a library's weight files and Magneto's models."""

    name: str
    model: Callable[[Any], nn.Module]
    placements: tuple[str, ...]
    # The only supported values of arguments that Magneto lacks.
    refused: ClassVar[Mapping[str, Any]] = {}
    # Regular expression for the library's tensors that Magneto does not read.
    ignored: str = ""
    # Regular expression for Magneto's tensors that the library lacks.
    absent: str = ""
    # Magneto's fields that may differ after conversion to the library and back.
    otherwise: tuple[str, ...] = ()

    def fits(self, state: Mapping[str, Tensor], args: Mapping[str, Any]) -> bool:
        """Return whether a file's tensors and arguments have the format of this class."""
        raise NotImplementedError

    def normalise(self, state: State, args: Mapping[str, Any]) -> State:
        """Give the library's tensors the names that the other methods expect."""
        return state

    def read(self, state: State, args: Mapping[str, Any]) -> Any:
        """Return Magneto's configuration, or raise ValueError."""
        raise NotImplementedError

    def names(self, config: Any, state: State | None) -> Names:
        """Return the map from Magneto's names to the library's names.

        `state` has the library's tensors. In a conversion to the library, `state` is None.
        """
        raise NotImplementedError

    def computed(self, state: State, config: Any) -> State:
        """Compute Magneto's tensors that are missing in the library's files."""
        return {}

    def write(self, config: Any) -> dict[str, Any]:
        raise NotImplementedError

    def finalise(self, state: State, config: Any) -> State:
        """Return the tensors of the library's weight file.

        `state` has converted tensors under the library's names.
        """
        return state

    def arguments_file(self, config: Any, args: dict[str, Any]) -> dict[str, Any]:
        return args

    def load(self, weights: Mapping[str, Tensor], args: Mapping[str, Any]) -> nn.Module:
        """Return a Magneto model with the library's weights, in evaluation mode."""
        require(self.name, args, self.refused)
        copies = {name: tensor.detach().clone().float() for name, tensor in weights.items()}
        state, config = self._read_normalised(copies, args)
        made = read_state(tensor_pairs(config, self.names(config, state)), state, self.ignored)
        made |= self.computed(state, config)
        return fill(self.model(config), made, self.absent).eval()

    def _read_normalised(self, state: State, args: Mapping[str, Any]) -> tuple[State, Any]:
        try:
            state = self.normalise(state, args)
            return state, self.read(state, args)
        except KeyError as error:
            message = f"the weights have no {error.args[0]}, which {self.model.__name__} needs"
            raise ValueError(message) from error

    def save(self, model: nn.Module) -> tuple[State, dict[str, Any]]:
        """Convert a model to the library's tensors and the content of its arguments file."""
        config: Any = model.config
        check_placement(config, self.placements, self.name)
        args, own = self.write(config), model.state_dict()
        kept = {key: t for key, t in own.items() if not re.search(self.absent or "^$", key)}
        for key in own.keys() - kept.keys():
            if own[key].any():
                raise ValueError(f"{self.name} cannot represent this model's {key}")
        state = write_state(tensor_pairs(config, self.names(config, None)), kept)
        state = self.finalise(state, config)
        arguments = self.arguments_file(config, args)
        _, again = self._read_normalised(state, args)
        check_round_trip(config, again, self.name, self.otherwise)
        return state, arguments


def square(patches: int) -> int:
    """Return the number of patches per side of a square image, or raise ValueError."""
    if patches <= 0 or math.isqrt(patches) ** 2 != patches:
        raise ValueError(f"{patches} patches are not a square image")
    return math.isqrt(patches)
