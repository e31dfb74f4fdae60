"""From YAML and dotted overrides to frozen dataclasses: strict, all errors at once.

A recipe is data. An unknown key, a value of the wrong type or an impossible one is a line of its
own that names the key, and the nearest right one.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from reprlib import Repr
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

ELSEWHERE = {
    "lr": "learning_rate", "bs": "batch_size", "batch": "batch_size", "warmup": "warmup_steps",
    "max_steps": "steps", "iterations": "steps", "num_epochs": "epochs",
    "num_train_epochs": "epochs", "grad_clip": "clip_norm", "max_grad_norm": "clip_norm",
    "wd": "weight_decay", "accumulation": "gradient_accumulation_steps", "amp": "precision",
    "dtype": "precision", "fp16": "precision", "bf16": "precision", "workers": "num_workers",
    "optim": "optimizer", "scheduler": "schedule", "eval_every": "evaluate_every",
    "eval_steps": "evaluate_every", "save_steps": "save_every", "logging_steps": "log_every",
    "hidden_size": "width", "hidden_dim": "width", "d_model": "width", "n_embd": "width",
    "embed_dim": "width", "dim": "width", "n_layer": "layers", "num_layers": "layers",
    "num_hidden_layers": "layers", "depth": "layers", "n_head": "heads", "num_heads": "heads",
    "num_attention_heads": "heads", "intermediate_size": "ffn_width", "d_ff": "ffn_width",
    "seq_len": "max_length", "block_size": "max_length",
    "context_length": "max_length", "path": "source", "dataset": "source", "wandb": "tracker",
}  # fmt: skip
"""What fields of `training`, `model` and `data` are called in other programs, for hints alone."""

WHOLE = re.compile(r"[+-]?\d+")
# Whole numbers are below it: torch and numpy count with 64 bits.
LARGEST = 10**18
# Far beyond what a person writes; a few lines of aliases of aliases make billions of values.
MOST_BYTES = 1 << 20
MOST_VALUES = 100_000
MOST_LEVELS = 30
RESOLVER = yaml.resolver.Resolver()
# What a key may be; "<<" merges another mapping.
KEYS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "merge"))

NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# To the base 60, and to the base 8.
ODD_NUMBER = re.compile(r"[-+]?(\d[\d_]*:|0[0-7_]+$)")


class ConfigError(ValueError):
    """Everything that is wrong with a configuration, a line each."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = list(lines)


def nearest(word: str, known: Sequence[str]) -> str:
    """Return "; did you mean ...?" for the known word nearest to `word`, or nothing.

    A word that is usual elsewhere is known by its name here. Else a dotted word is compared with
    its own section first, then as a whole, then by its last part.
    """
    section, _, last = word.rpartition(".")
    if last in ELSEWHERE:
        here = [key for key in known if key.rpartition(".")[2] == ELSEWHERE[last]]
        here.sort(key=lambda key: key.rpartition(".")[0] != section)
        if here:
            return f"; did you mean {here[0]}?"
    beside = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == section}
    anywhere = {key.rpartition(".")[2]: key for key in reversed(known)}
    whole = {key: key for key in known}
    for asked, among, cutoff in ((last, beside, 0.6), (word, whole, 0.8), (last, anywhere, 0.7)):
        if found := get_close_matches(asked, among, n=1, cutoff=cutoff):
            return f"; did you mean {among[found[0]]}?"
    return ""


def unknown_keys(error: ConfigError) -> list[str]:
    """Return the dotted keys that an error says nobody knows."""
    begin = "unknown key "
    lines = [line.removeprefix(begin) for line in error.lines if line.startswith(begin)]
    return [line.split(";")[0] for line in lines]


def build(kind: type, values: Any, where: str = "") -> Any:
    """Build a dataclass from a mapping.

    Args:
        kind: The dataclass.
        values: Its fields; missing ones keep their defaults.
        where: Dotted path of the mapping, for messages.

    Raises:
        ConfigError: With every unknown key, wrong type and impossible value.
    """
    problems: list[str] = []
    result = _dataclass(kind, values, where, problems)
    if problems:
        raise ConfigError(problems)
    return result


@cache
def field_types(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields, by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _dataclass(kind: type, values: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(values, Mapping):
        problems.append(f"{where or 'the recipe'} must hold keys and values, not {values!r}")
        return None
    hints = field_types(kind)
    given: dict[str, Any] = {}
    wrong_values: list[str] = []
    for key, value in values.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in hints:
            known = [f"{where}.{name}" if where else name for name in hints]
            problems.append(f"unknown key {path}{nearest(path, known)}")
        else:
            given[key] = _value(hints[key], value, path, wrong_values)
    problems.extend(wrong_values)
    missing = [
        f"{where}.{field.name}" if where else field.name
        for field in dataclasses.fields(kind)
        if field.init and field.name not in values
        and field.default is field.default_factory is dataclasses.MISSING
    ]  # fmt: skip
    problems.extend(f"{path} is missing: it has no default" for path in missing)
    if wrong_values or missing:
        return None  # what does not convert, or is not there, can't be checked together
    prefix = f"{where}: " if where else ""
    infinite = [
        f"{prefix}{name} must be a finite number, not {shown(value)}"
        for name, value in given.items()
        if not is_finite(value)
    ]
    try:
        made = kind(**given)
    except ValueError as error:
        problems.extend(f"{prefix}{line}" for line in problem_lines(error))
    except ArithmeticError as error:
        problems.extend(infinite or [f"{prefix}a number is too large to compute with: {error}"])
    else:
        problems.extend(infinite)
        return made
    return None


def is_finite(value: Any) -> bool:
    """Return whether a field's value holds neither an infinite number nor a NaN."""
    if isinstance(value, list | tuple):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def problem_lines(error: ValueError) -> list[str]:
    """Return what an error says, a line for each problem."""
    return error.lines if isinstance(error, ConfigError) else [str(error)]


def error_line(error: Exception) -> str:
    """Return what an error says as one line; its type too, where it is not one made for users."""
    words = "; ".join(str(error).splitlines())
    made_for_users = isinstance(error, ValueError | OSError) and words
    return words if made_for_users else f"{type(error).__name__}: {words}"


def _value(kind: Any, value: Any, where: str, problems: list[str]) -> Any:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and not isinstance(value, kind):
        return _dataclass(kind, value, where, problems)
    try:
        return convert(kind, value)
    except ConfigError as error:
        problems.extend(error.lines)
    except (TypeError, ValueError) as error:
        problems.append(f"{where} {error}")
    return None


def convert(kind: Any, value: Any) -> Any:
    """Turn a YAML value or a word of the command line into a field's type.

    Raises:
        ValueError: If it can't be; the message says what was expected.
    """
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _union(get_args(kind), value)
    if origin is Literal:
        return _literal(get_args(kind), value)
    if origin in (tuple, list):
        return _sequence(kind, value)
    if origin in (dict, Mapping):
        return _mapping(kind, value)
    if kind is Any or (value is None and kind is type(None)):
        return value
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return value if isinstance(value, kind) else build(kind, value)
    return _scalar(kind, value)


def _union(kinds: tuple[Any, ...], value: Any) -> Any:
    if type(None) in kinds and (value is None or value in ("null", "none", "None", "")):
        return None
    error: Exception | None = None
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return convert(kind, value)
        except ValueError as failed:
            error = error or failed
    raise error or ValueError(f"cannot be {shown(value)}")


def _literal(choices: tuple[Any, ...], value: Any) -> Any:
    for choice in choices:
        if value == choice or str(value) == str(choice):
            return choice
    words = [str(choice) for choice in choices]
    raise ValueError(
        f"must be one of {', '.join(words)}, not {shown(value)}{nearest(str(value), words)}"
    )


def _sequence(kind: Any, value: Any) -> Any:
    if isinstance(value, str):
        value = [part.strip() for part in value.strip("()[]").split(",") if part.strip()]
    if not isinstance(value, Sequence):
        raise ValueError(f"must be a list, not {shown(value)}")
    kinds = get_args(kind)
    if get_origin(kind) is tuple and Ellipsis not in kinds:
        if len(value) != len(kinds):
            raise ValueError(f"must have {len(kinds)} values, not {len(value)}")
        return tuple(convert(k, v) for k, v in zip(kinds, value, strict=True))
    return get_origin(kind)(convert(kinds[0], part) for part in value)


def _mapping(kind: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"must hold keys and values, not {shown(value)}")
    return {str(key): convert(get_args(kind)[1], part) for key, part in value.items()}


def _scalar(kind: Any, value: Any) -> Any:
    if kind is bool:
        words = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
        if str(value).lower() in words:
            return words[str(value).lower()]
        raise ValueError(f"must be true or false, not {shown(value)}")
    if kind is str and isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    if kind in (int, float) and not isinstance(value, bool):
        return _number(kind, value)
    raise ValueError(f"must be {getattr(kind, '__name__', kind)}, not {shown(value)}")


def _number(kind: Any, value: Any) -> Any:
    number: int | float
    try:
        if isinstance(value, int) or (isinstance(value, str) and WHOLE.fullmatch(value.strip())):
            number = int(value)  # stays exact: a float has no 9007199254740993
        else:
            number = float(value)  # YAML reads 1e-3 as text
        if kind is float:
            return float(number)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"must be a number, not {shown(value)}") from None
    if isinstance(number, float) and not number.is_integer():
        raise ValueError(f"must be a whole number, not {shown(value)}")
    if abs(number) >= LARGEST:
        raise ValueError(f"must be a whole number of at most 18 digits, not {shown(value)}")
    return int(number)


def shown(value: Any) -> str:
    """Return a value as the line of an error shows it: the beginning of a long one."""
    short = Repr()
    short.maxlong, short.maxstring, short.maxother, short.maxlevel = 40, 80, 80, 3
    text = short.repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def override(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings with dotted keys set, making sections that are not there."""
    result = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
    for dotted, value in changes.items():
        *path, last = dotted.split(".")
        section = result
        for part in path:
            inner = section.get(part)
            section[part] = dict(inner) if isinstance(inner, Mapping) else {}
            section = section[part]
        section[last] = value
    return result


def to_mapping(value: Any) -> Any:
    """Return a configuration as plain values that `build` takes again."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_mapping(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_mapping(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [to_mapping(part) for part in value]
    return value


class NotStrict(ValueError):
    """What YAML allows and a recipe does not, with the line where it stands."""

    def __init__(self, node: yaml.Node, why: str) -> None:
        super().__init__(why)
        self.line = node.start_mark.line + 1


def read_yaml(path: Path) -> Any:
    """Read a file of YAML as plain values.

    Raises:
        ConfigError: If it is no YAML, has a key twice in one mapping, refers to itself, or is
            larger or deeper than any recipe; names file and line.
        OSError: If it can't be read.
    """
    if path.stat().st_size > MOST_BYTES:
        raise ConfigError([f"{path} is no recipe: it has more than {MOST_BYTES:,} bytes"])
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check(node, {}, 0)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except NotStrict as error:
        raise ConfigError([f"{path}, line {error.line}: {error}"]) from error
    except RecursionError as error:
        raise ConfigError([f"{path} is nested too deeply"]) from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigError([f"{path}{line}: not YAML: {problem}"]) from error


def _check(node: yaml.Node, sizes: dict[int, int], level: int) -> int:
    """Return how many values a node stands for, where each alias counts as all that it names.

    Args:
        node: Of YAML's graph.
        sizes: Those known; 0 of a node that is being looked at.
        level: How deep it lies.
    """
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise NotStrict(node, "a value holds itself (an alias inside of what it names)")
        return sizes[id(node)]
    if level > MOST_LEVELS:
        raise NotStrict(node, f"nested too deeply (more than {MOST_LEVELS} levels)")
    sizes[id(node)] = 0
    _check_tag(node)
    _check_number(node)
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)
        parts = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        parts = node.value
    size = 1 + sum(_check(part, sizes, level + 1) for part in parts)
    if size > MOST_VALUES:
        raise NotStrict(node, f"stands for more than {MOST_VALUES:,} values")
    sizes[id(node)] = size
    return size


def _check_tag(node: yaml.Node) -> None:
    """Refuse a tag that was written (`!!int`): what its value stands for, the field says."""
    if node.tag != _own_tag(node):
        name = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise NotStrict(node, f"the tag {name} has no place in a recipe: leave it out")


def _check_number(node: yaml.Node) -> None:
    """Refuse numbers that YAML 1.1 reads as nobody means them: 1:30 is 90 to it, and 010 is 8."""
    plain = isinstance(node, yaml.ScalarNode) and node.tag in NUMBERS
    if plain and ODD_NUMBER.match(node.value):
        raise NotStrict(node, f"{node.value} is another number to YAML: write it in figures, with "
                              "no colon and no zero before it")  # fmt: skip


def _own_tag(node: yaml.Node) -> str:
    """Return the tag that a node has where none is written."""
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    return RESOLVER.resolve(type(node), node.value if plain else None, (plain, not plain))


def _check_keys(node: yaml.MappingNode) -> None:
    lines: dict[Any, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise NotStrict(key, "a key must be a word")
        if _own_tag(key) not in KEYS:
            raise NotStrict(key, f"the key {key.value} is no word to YAML: write '{key.value}'")
        if key.value in lines:
            raise NotStrict(key, f"the key {key.value} is given twice, first in line "
                                 f"{lines[key.value]}")  # fmt: skip
        lines[key.value] = key.start_mark.line + 1
