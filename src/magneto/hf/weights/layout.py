"""What every conversion uses: which tensor and field of ours is which of theirs, both ways."""

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


def same(value: Any) -> Any:
    """Return a tensor or a value as it is."""
    return value


@dataclass(frozen=True)
class Layout:
    """How a tensor lies: `read` from theirs to ours, after stacking; `write` back."""

    read: Callable[[Tensor], Tensor] = same
    write: Callable[[Tensor], Tensor] = same


SAME = Layout()
# Theirs has an axis of one before it.
ROW = Layout(lambda tensor: tensor[0], lambda tensor: tensor[None])
# A class token, theirs (1, 1, width).
TOKEN = Layout(lambda token: token[0, 0], lambda token: token[None, None])
# Of a table of positions fairseq never uses the first two rows.
FROM_TWO = Layout(lambda table: table[2:], lambda table: nn.functional.pad(table, (0, 0, 2, 0)))


@dataclass(frozen=True)
class Theirs:
    """What is one module or one tensor of ours.

    Attributes:
        names: Theirs; several are stacked along the first axis in ours.
        layout: How tensors lie.
        kinds: Ends of the names of a module's tensors; of a tensor, only "".
    """

    names: tuple[str, ...]
    layout: Layout = SAME
    kinds: tuple[str, ...] = (".weight", ".bias")


def tensor(*names: str, layout: Layout = SAME) -> Theirs:
    """Return the tensors of theirs that are one of ours."""
    return Theirs(names, layout, ("",))


Names = Mapping[str, "str | tuple[str, ...] | Theirs"]
"""A map: modules and tensors of ours, and theirs, with `*` for the number of a layer.

Three parts of a `qkv_proj` are queries, keys and values.
"""


@dataclass(frozen=True)
class Pair:
    """One tensor of ours, and theirs, which are stacked in it.

    Attributes:
        ours: Its name.
        theirs: Theirs.
        layout: How it lies.
        rows: Of ours that each of theirs has, where they are not alike.
    """

    ours: str
    theirs: tuple[str, ...]
    layout: Layout = SAME
    rows: tuple[int, ...] = ()


def pairs_of(config: Any, names: Names) -> list[Pair]:
    """Return which tensor is which, of all layers of a configuration of ours, by a map."""
    made = []
    for mine, their in names.items():
        if not isinstance(their, Theirs):
            their = Theirs((their,) if isinstance(their, str) else their)
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
    """Pair queries, keys and values: keys may be fewer than queries, and any without a bias."""
    rows = (config.attention_width, config.key_value_width, config.key_value_width)
    kept = {
        name: size
        for name, size, part in zip(theirs, rows, "qkv", strict=True)
        if ours.endswith("weight") or config.biased(part)
    }
    return [Pair(ours, tuple(kept), layout, tuple(kept.values()))] if kept else []


def read_state(pairs: Iterable[Pair], state: Mapping[str, Tensor], ignored: str = "") -> State:
    """Return our tensors from theirs; what neither has (a bias) is left out.

    What `ignored`, a regular expression, finds in a name of theirs may be left behind.

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
        parts = [state[name] for name in pair.theirs]
        stacked = torch.cat(parts) if len(parts) > 1 else parts[0]
        ours[pair.ours] = pair.layout.read(stacked)
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
        ours, count = pair.layout.write(state[pair.ours]), len(pair.theirs)
        rows = list(pair.rows) or [len(ours) // count] * count if count > 1 else []
        parts = ours.split(rows) if rows else [ours]  # a scalar cannot be split
        theirs |= {name: part.contiguous() for name, part in zip(pair.theirs, parts, strict=True)}
        used.add(pair.ours)
    taken = {state[name].data_ptr() for name in used}
    left = [name for name in state if name not in used and state[name].data_ptr() not in taken]
    if left:
        raise ValueError(f"no place there for our tensor {left[0]!r}")
    return theirs


def fill(model: nn.Module, state: Mapping[str, Tensor], computed: str = "") -> nn.Module:
    """Load a state; a tied tensor may come under one of its names.

    What `computed`, a regular expression, finds need not come: it holds no weights.

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


@dataclass(frozen=True)
class Field:
    """A field of theirs whose values are others in ours: `read` from theirs, `write` back."""

    theirs: str
    read: Callable[[Any], Any] = same
    write: Callable[[Any], Any] = same


Fields = Mapping[str, str | Field]
"""Fields of ours, and theirs: a name alone where the values are the same."""


def _known(fields: Fields) -> list[tuple[str, Field]]:
    return [(mine, Field(f) if isinstance(f, str) else f) for mine, f in fields.items()]


def read_fields(fields: Fields, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return our values of theirs, of those fields that they have."""
    return {
        mine: pair.read(theirs[pair.theirs]) for mine, pair in _known(fields)
        if pair.theirs in theirs
    }  # fmt: skip


def write_fields(fields: Fields, config: Any) -> dict[str, Any]:
    """Return their values of our configuration."""
    return {pair.theirs: pair.write(getattr(config, mine)) for mine, pair in _known(fields)}


def activation(theirs: str, known: Mapping[str, str] = ACTIVATIONS) -> Field:
    """Return the field of an activation; a value that is not known is a ValueError."""

    def read(name: str) -> str:
        if name not in known:
            raise ValueError(f"no activation {name!r} here: there are {', '.join(known)}")
        return known[name]

    def write(name: str) -> str:
        return next((their for their, mine in known.items() if mine == name), name)

    return Field(theirs, read, write)


def scaled(theirs: str) -> Field:
    """Return the field that says whether embeddings are multiplied by the root of the width."""
    return Field(
        theirs, lambda yes: "sqrt_width" if yes else "none", lambda kind: kind == "sqrt_width"
    )


def require(config: Any, **wanted: Any) -> None:
    """Raise ValueError if an option of their configuration is not as we have it."""
    for name, value in wanted.items():
        found = getattr(config, name, value)
        if found != value:
            kind = getattr(config, "model_type", "the model")
            raise ValueError(f"{kind} with {name}={found!r} has no counterpart here "
                             f"(only {value!r})")  # fmt: skip


def check_placement(config: TransformerConfig, wanted: Sequence[str], format_name: str) -> None:
    """Check that a model's placement is one of the table's rows that a format can hold."""
    row = config.row
    if row.name in wanted and replace(config, placement=row.name).row == row:
        return
    found = f"another {row.name!r} than the table's" if row.name in wanted else repr(row.name)
    raise ValueError(f"{format_name} cannot hold this model: placement is {found} here, "
                     f"{' or '.join(map(repr, wanted))} there")  # fmt: skip


def check_same(
    ours: TransformerConfig,
    returned: TransformerConfig,
    format_name: str,
    otherwise: Sequence[str] = (),
) -> None:
    """Check that a configuration of ours survives a format: it comes back as it went.

    Raises:
        ValueError: If a field that says what the model computes does not.
    """
    check_placement(ours, [returned.row.name], format_name)
    theirs = _computed_by(returned)
    for name, mine in _computed_by(ours).items():
        if mine != theirs.get(name) and name not in otherwise:
            raise ValueError(f"{format_name} cannot hold this model: {name} is {mine!r} here, "
                             f"{theirs.get(name)!r} there")  # fmt: skip


def _computed_by(config: TransformerConfig) -> dict[str, Any]:
    """Return the values that say what a model computes, in one form."""
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
    """Return the fields of ours that no format holds. Dropout, of training too, some do."""
    free = {name for name in free_fields(type(config)) if not name.endswith("dropout")}
    return free | {"rotary_base"} | (set() if config.encoder_layers is None else {"layers"})


def nothing(*configs: Any) -> dict[str, Any]:
    """Return no values, or no tensors: names alone say all."""
    return {}


@dataclass(frozen=True)
class Format:
    """One model class of transformers, and ours that computes the same.

    Attributes:
        name: Their `model_type`.
        config: Name of their configuration's class.
        classes: Names of their classes whose weights it reads; the first is what is written.
        model: Our class.
        shape: Our configuration.
        fields: Fields of ours, and theirs.
        fixed: Of our fields, those that are the same in all of theirs.
        required: Of their fields, what has no counterpart by another value.
        read: Other values of ours from their configuration; it may refuse with a ValueError.
        write: Other values of theirs from ours.
        names: Modules and tensors of ours, and theirs.
        prefix: Of their tensors' names, in a model with a head.
        ignored: Of their tensors, what may be left behind, as a regular expression.
        absent: Of their tensors, what is computed and need not be written.
        computed: Tensors of ours that theirs computes.
        options: Of the constructor of their class.
    """

    name: str
    config: str
    classes: tuple[str, ...]
    model: Callable[[Any], nn.Module]
    shape: Callable[..., Any]
    fields: Fields
    names: Names
    fixed: Mapping[str, Any] = field(default_factory=dict)
    required: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[Any], dict[str, Any]] = nothing
    write: Callable[[Any], dict[str, Any]] = nothing
    prefix: str = "model."
    ignored: str = ""
    absent: str = ""
    computed: Callable[[Any, Any], State] = nothing
    options: Mapping[str, Any] = field(default_factory=dict)

    def ours(self, config: Any) -> Any:
        """Return our configuration.

        Raises:
            ValueError: For an option that has no counterpart.
        """
        require(config, **self.required)
        names = {field.theirs for _, field in _known(self.fields)}
        held = {name: getattr(config, name) for name in names if hasattr(config, name)}
        known = read_fields(self.fields, held)
        return self.shape(**{**known, **self.fixed, **self.read(config)})

    def theirs(self, config: Any) -> dict[str, Any]:
        """Return the values of their configuration."""
        return write_fields(self.fields, config) | self.write(config)


class WeightFormat:
    """One kind of model in a library's files of weights, and ours that computes the same.

    Attributes:
        name: Of the format.
        arguments: Name of the file beside the weights, with what they do not show.
        model: Our class.
        placements: Rows of the table that it can be.
        allowed: Values of our fields that it can have.
        refused: Arguments, with the only values that have a counterpart.
        ignored: Of their tensors, what may be left behind, as a regular expression.
        absent: Of our tensors, what holds no weights.
        otherwise: Fields of ours that may come back by another value, which computes the same.
    """

    name: str
    arguments: str
    model: Callable[[Any], nn.Module]
    placements: tuple[str, ...]
    allowed: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    refused: ClassVar[Mapping[str, Any]] = {}
    ignored: str = ""
    absent: str = ""
    otherwise: tuple[str, ...] = ()

    def fits(self, state: Mapping[str, Tensor], args: Mapping[str, Any]) -> bool:
        """Whether tensors of these names, with these arguments, are such a model's."""
        raise NotImplementedError

    def prepared(self, state: State, args: Mapping[str, Any]) -> State:
        """Return their tensors with whole names."""
        return state

    def read(self, state: State, args: Mapping[str, Any]) -> Any:
        """Return our configuration; a ValueError says what has no counterpart."""
        raise NotImplementedError

    def names(self, config: Any, state: State | None) -> Names:
        """Return the map; there is no state where theirs is to be written."""
        raise NotImplementedError

    def computed(self, state: State, config: Any) -> State:
        """Return tensors of ours that theirs computes."""
        return {}

    def write(self, config: Any) -> dict[str, Any]:
        """Return their arguments."""
        raise NotImplementedError

    def finished(self, state: State, config: Any) -> State:
        """Return their tensors as the library has them."""
        return state

    def told(self, config: Any, args: dict[str, Any]) -> dict[str, Any]:
        """Return what the file of arguments holds."""
        return args

    def load(self, weights: Mapping[str, Tensor], args: Mapping[str, Any]) -> nn.Module:
        """Return our model of theirs, in evaluation mode.

        Raises:
            ValueError: If there is no counterpart for what it computes.
        """
        for name, value in self.refused.items():
            if args.get(name, value) != value:
                raise ValueError(f"{self.name} with {name}={args[name]!r} has no counterpart here "
                                 f"(only {value!r})")  # fmt: skip
        state = self.prepared(in_float32(weights), args)
        config = self.read(state, args)
        made = read_state(pairs_of(config, self.names(config, state)), state, self.ignored)
        made |= self.computed(state, config)
        return fill(self.model(config), made, self.absent).eval()

    def save(self, model: nn.Module) -> tuple[State, dict[str, Any]]:
        """Return their tensors of our model, and what the file of arguments holds.

        Raises:
            ValueError: If there is no counterpart; the first difference is named.
        """
        config: Any = model.config
        check_placement(config, self.placements, self.name)
        for name, values in self.allowed.items():
            if (found := getattr(config, name)) not in values:
                raise ValueError(f"{self.name} cannot hold this model: {name} is {found!r} here, "
                                 f"{' or '.join(map(repr, values))} there")  # fmt: skip
        args, own = self.write(config), model.state_dict()
        kept = {key: t for key, t in own.items() if not re.search(self.absent or "^$", key)}
        for key in own.keys() - kept.keys():
            if own[key].any():
                raise ValueError(f"{self.name} has no {key}, and this model has one")
        state = write_state(pairs_of(config, self.names(config, None)), kept)
        state = self.finished(state, config)
        told = self.told(config, args)
        again = self.read(self.prepared(state, args), args)
        check_same(config, again, self.name, self.otherwise)
        return state, told


def in_float32(state: Mapping[str, Tensor]) -> State:
    """Return copies of tensors in single precision."""
    return {name: tensor.detach().clone().float() for name, tensor in state.items()}


def square(patches: int) -> int:
    """Return how many patches a square image of so many is high and wide.

    Raises:
        ValueError: If there is no such image.
    """
    if patches <= 0 or math.isqrt(patches) ** 2 != patches:
        raise ValueError(f"{patches} patches are no square image")
    return math.isqrt(patches)
