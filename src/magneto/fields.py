"""What can be set in a configuration: name, type, choices, default and meaning of every field.

All of it is in the dataclass: types and defaults in its fields, meanings in its docstring.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from magneto.config import field_types

# A line of a docstring's list of attributes that begins one.
ATTRIBUTE = re.compile(r"(\w+): (.*)")
WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "anything"}


@dataclass(frozen=True)
class FieldDescription:
    """A field that a recipe can set.

    Attributes:
        name: With its section, as "training.steps".
        kind: Its type in words; null is none.
        choices: The values there are, where they are a few.
        default: As YAML would have it; None, too, where a value must be given.
        required: Whether there is no default.
        meaning: What it does.
    """

    name: str
    kind: str
    choices: tuple[str, ...]
    default: Any
    required: bool
    meaning: str


def describe_fields(kind: type, section: str) -> Iterator[FieldDescription]:
    """Yield the fields of a dataclass; those of dataclasses inside it after their own field.

    Args:
        kind: The dataclass.
        section: What stands before the names.
    """
    meanings, hints = attribute_meanings(kind), field_types(kind)
    for field in dataclasses.fields(kind):
        hint, name = hints[field.name], f"{section}.{field.name}"
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from describe_fields(hint, name)
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        required = default is dataclasses.MISSING
        yield FieldDescription(
            name, kind_words(hint), choices_of(hint), None if required else default, required,
            meanings.get(field.name, ""),
        )  # fmt: skip


def attribute_meanings(kind: type) -> dict[str, str]:
    """Return what a dataclass's docstring, and those it is made of, say of its attributes."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        found |= _attributes(inspect.cleandoc(each.__dict__.get("__doc__") or ""))
    return found


def _attributes(text: str) -> dict[str, str]:
    _, _, rest = text.partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in rest.splitlines():
        if line and not line.startswith("    "):
            break  # the next part of the docstring
        begins = ATTRIBUTE.fullmatch(line[4:])
        if begins and not line.startswith("     "):
            name = begins[1]
            found[name] = begins[2]
        elif line and name:
            found[name] += f" {line.strip()}"
    return found


def kind_words(hint: Any) -> str:
    """Return a type in words."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        parts = [kind_words(part) for part in inside if part is not type(None)]
        return " or ".join([*parts, *(["null"] if type(None) in inside else [])])
    if origin is Literal:
        return "one of"
    if origin in (tuple, list):
        several = Ellipsis in inside or origin is list
        if several and get_origin(inside[0]) is Literal:
            return "some of"
        return f"list of {kind_words(inside[0])}s" if several else f"{len(inside)} values"
    if origin in (dict, Mapping):
        return f"{kind_words(inside[1])}s by name"
    return WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def choices_of(hint: Any) -> tuple[str, ...]:
    """Return the words that a type allows, of a literal or of a union with one."""
    if get_origin(hint) is Literal:
        return tuple(map(str, get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType, tuple, list):
        return tuple(choice for part in get_args(hint) for choice in choices_of(part))
    return ()


def as_yaml(value: Any) -> str:
    """Write a value as a recipe has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_yaml, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {as_yaml(part)}" for key, part in value.items()) + "}"
    return str(value)


def type_words(field: FieldDescription) -> str:
    """Return a field's type with its choices."""
    return re.sub(r"(one|some) of", rf"\1 of {', '.join(field.choices)}", field.kind)
