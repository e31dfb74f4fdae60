"""Configurations with typed and described fields.

A field's annotation gives the type and the bounds. The docstring below a field describes the field.
The documentation's reference tables are generated from the annotations and the docstrings.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from itertools import pairwise
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Interval

from magneto.config import LARGEST, UNKNOWN, ConfigError, abbreviate, nearest, problem_lines

PositiveInt = Annotated[int, Interval(ge=1, lt=LARGEST)]
NonNegativeInt = Annotated[int, Interval(ge=0, lt=LARGEST)]
PositiveFloat = Annotated[float, Interval(gt=0)]
NonNegativeFloat = Annotated[float, Interval(ge=0)]
Probability = Annotated[float, Interval(ge=0, le=1)]
Share = Annotated[float, Interval(gt=0, lt=1)]
"""Number above 0 and below 1."""
Part = Annotated[float, Interval(gt=0, le=1)]
"""Number above 0 and at most 1."""
Dropout = Annotated[float, Interval(ge=0, lt=1)]
"""Probability below 1."""

# Mark of a field that does not change what a model computes (dropout, device, initialisation). Its
# value may differ between compared runs, and between a run and the one that it starts from.
FREE = "free"
NOUNS = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "anything"}
BOOLEANS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
NULLS = ("null", "none", "None")
# pydantic's ConfigDict.
STRICT = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
INTEGER = re.compile(r"[+-]?\d+")

Kind = TypeVar("Kind")
Free = Annotated[Kind, FREE]
Rule = TypeVar("Rule", bound=Callable[[Any], Iterator[str]])


def rule(check: Rule) -> Rule:
    """Mark a method that checks several fields together.

    The method yields a message for each mistake. A message starts with the name of a field. The
    method runs only if every single field is valid.
    """
    check.is_rule = True  # type: ignore[attr-defined]
    return check


@dataclass_transform(kw_only_default=True, frozen_default=True)
def configuration(kind: type[Kind]) -> type[Kind]:
    """Turn a class into a frozen dataclass that checks its fields.

    Text is not converted to numbers, and numbers must be finite. One ConfigError lists all wrong
    fields. If all single fields are valid, methods marked with `rule` are called, and the error
    lists their messages.
    """
    made: Any = dataclass(frozen=True, kw_only=True)(kind)

    @wraps(made.__init__)
    def __init__(self: Any, **values: Any) -> None:
        if lines := _fill(self, values, "", (), words=False):
            raise ConfigError(lines)

    made.__init__ = __init__
    made.__pydantic_config__ = STRICT
    return made


def is_configuration(kind: Any) -> bool:
    return isinstance(kind, type) and "__pydantic_config__" in vars(kind)


@cache
def _validator(kind: type) -> Any:
    from pydantic import TypeAdapter  # imported late, because it is slow

    return TypeAdapter(kind).validator


def build(kind: type[Kind], values: Any, where: str = "", known: Sequence[str] = ()) -> Kind:
    """Build a configuration from YAML values or from text of the command line.

    Args:
        kind: Class of the configuration.
        values: Values by field. Missing fields get the default.
        where: Dotted path of the section, for messages.
        known: Dotted names to suggest for an unknown key, by default those of the class's fields.

    Raises:
        ConfigError: If a key is unknown, a field without a default is missing, or a value is
            invalid. The error lists all mistakes.
    """
    if not isinstance(values, Mapping):
        raise ConfigError([f"{where or 'the recipe'} must be a mapping, not {values!r}"])
    made = object.__new__(kind)
    if lines := _fill(made, values, where, known, words=True):
        raise ConfigError(lines)
    return made


def _fill(
    made: Any, values: Mapping[Any, Any], where: str, known: Sequence[str], *, words: bool
) -> list[str]:
    from pydantic_core import ArgsKwargs, ValidationError

    kind, hints, dot = type(made), field_types(type(made)), f"{where}." if where else ""
    lines: list[str] = []
    given: dict[str, Any] = {}
    wrong: set[str] = set()
    for key, value in values.items():
        if key not in hints:
            near = nearest(f"{dot}{key}", known or [dot + name for name in hints])
            lines.append(f"{UNKNOWN}{dot}{key}{near}")
        elif is_configuration(hints[key]) and isinstance(value, Mapping):
            given[key] = object.__new__(hints[key])
            if found := _fill(given[key], value, dot + key, known, words=words):
                lines += found
                wrong.add(key)
        else:
            given[key] = _read(hints[key], value, words)

    right = {key: value for key, value in given.items() if key not in wrong}
    try:
        _validator(kind).validate_python(ArgsKwargs((), right), self_instance=made)
    except ValidationError as error:
        for mistake in error.errors(include_url=False):
            name = str(next(iter(mistake["loc"]), ""))
            if name not in wrong:  # of a list's mistakes, only the first
                lines += _mistake_lines(mistake, kind, where)
            wrong.add(name)
    return lines or [_placed(line, kind, where) for line in _broken_rules(kind, made)]


def _placed(line: str, kind: type, where: str) -> str:
    if not where:
        return line
    first = re.split(r"\W", line)[0]
    return f"{where}.{line}" if first in field_types(kind) else f"{where}: {line}"


def _broken_rules(kind: type, made: Any) -> Iterator[str]:
    for name in _rules(kind):
        try:
            yield from getattr(made, name)()
        except ValueError as error:
            yield from problem_lines(error)


@cache
def _rules(kind: type) -> list[str]:
    methods = {name: m for each in reversed(kind.__mro__) for name, m in vars(each).items()}
    return [name for name, m in methods.items() if inspect.isfunction(m) and hasattr(m, "is_rule")]


def _mistake_lines(mistake: Any, made: type, where: str) -> list[str]:
    kind, place = mistake["type"], mistake["loc"]
    if not place:  # of `__post_init__`
        return [_placed(line, made, where) for line in problem_lines(mistake["ctx"]["error"])]
    path = f"{where}.{place[0]}" if where else place[0]
    if kind == "missing" and len(place) == 1:
        return [f"{path} is missing and has no default"]
    return [f"{path} {_wanted(field_types(made)[place[0]], mistake, place[1:])}"]


def _wanted(hint: Any, mistake: Any, inside: Sequence[Any]) -> str:
    kind, value = mistake["type"], mistake["input"]
    if inside and kind != "missing" and get_args(Annotation.of(hint).kind):
        hint = part_of(hint)
    about = Annotation.of(hint)
    if kind == "finite_number":
        wanted = "a finite number"
    elif not kind.startswith(("greater_than", "less_than")):
        wanted = about.words
        wanted = f"a {wanted}" if wanted.startswith(("number", "whole", "list")) else wanted
        wanted = wanted.replace("one of", f"one of {', '.join(choices_of(hint))}")
    elif isinstance(value, int) and abs(value) >= LARGEST:
        wanted = "a whole number of at most 18 digits"
    else:
        wanted = about.bounds
    null = " (or null)" if about.optional else ""
    near = nearest(str(value), choices_of(hint)) if kind == "literal_error" else ""
    return f"must be {wanted}{null}, not {abbreviate(value)}{near}"


def read_text(hint: Any, text: str) -> Any:
    """Convert text of the command line to a type, such as `PositiveInt`.

    Raises:
        ValueError: If the text can't be converted.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    checks = TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))
    try:
        return checks.validate_python(_read(hint, text, words=True))
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        raise ValueError(_wanted(hint, mistake, mistake["loc"])) from error


def _read(hint: Any, value: Any, words: bool) -> Any:
    about = Annotation.of(hint)
    origin, parts = get_origin(about.kind), get_args(about.kind)
    no_number = value == "" and about.kind is not str
    if words and about.optional and (value is None or value in NULLS or no_number):
        return None
    if origin in (tuple, list):
        if words and isinstance(value, str):
            value = [part.strip() for part in value.strip("()[]").split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            return value
        return origin(_read(parts[0], part, words) for part in value)
    if not words:  # YAML reads 1e-3 as text, and the command line has only text
        return value
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {str(key): _read(parts[1], part, words) for key, part in value.items()}
    if origin is Literal:
        return next((choice for choice in parts if str(choice) == str(value)), value)
    return _read_word(about.kind, value)


def _read_word(kind: Any, value: Any) -> Any:
    if kind is bool:
        return BOOLEANS.get(str(value).lower(), value)
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if kind not in (int, float) or not isinstance(value, str | float):
        return value
    try:
        if kind is float:
            return float(value)
        if INTEGER.fullmatch(str(value).strip()):
            return int(value)  # exact, unlike a float
        return int(float(value)) if float(value).is_integer() else value
    except ValueError:
        return value


@dataclass(frozen=True)
class Annotation:
    """Parsed annotation of a field."""

    # Type without None and bounds.
    kind: Any
    # Whether None is allowed.
    optional: bool
    # Bounds of the numbers in words, or "".
    bounds: str
    # Whether the type is `Free`.
    free: bool = False

    @classmethod
    @cache
    def of(cls, hint: Any) -> Annotation:
        optional, bounds, free = False, "", False
        while True:
            parts = get_args(hint)
            if get_origin(hint) in (Union, types.UnionType):
                optional = optional or type(None) in parts
                hint = next(part for part in parts if part is not type(None))
            elif get_origin(hint) is Annotated:
                bounds = next((range_words(p) for p in parts if isinstance(p, Interval)), bounds)
                free = free or FREE in parts
                hint = parts[0]
            else:
                return cls(hint, optional, bounds, free)

    @property
    def words(self) -> str:
        """Type with its bounds, as text such as "whole number, 0 or more"."""
        origin, parts = get_origin(self.kind), get_args(self.kind)
        if origin is Literal:
            return "one of"
        if origin in (tuple, list, dict, Mapping):
            part = Annotation.of(part_of(self.kind))
            if get_origin(part.kind) is Literal:
                return "some of"
            noun = f"{part.noun}s" + " or nulls" * part.optional
            if origin in (dict, Mapping):
                noun = f"{noun} by name"
            elif origin is list or Ellipsis in parts:
                noun = f"list of {noun}"
            else:
                noun = f"{len(parts)} {noun}"
            return f"{noun}, each {part.bounds}" if part.bounds else noun
        separator = ", " if self.bounds[:1].isdigit() else " "
        return f"{self.noun}{separator}{self.bounds}" if self.bounds else self.noun

    @property
    def noun(self) -> str:
        return NOUNS.get(self.kind) or getattr(self.kind, "__name__", str(self.kind))


def range_words(bounds: Interval) -> str:
    low: Any = bounds.ge if bounds.gt is None else bounds.gt
    high: Any = bounds.le if bounds.lt is None else bounds.lt
    if high is None or high == LARGEST:
        return f"{low} or more" if bounds.gt is None else f"above {low}"
    if bounds.gt is None and bounds.lt is None:
        return f"{low:,} to {high:,}"
    return f"in {'[' if bounds.gt is None else '('}{low}, {high}{']' if bounds.lt is None else ')'}"


@cache
def field_types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def free_fields(kind: type) -> set[str]:
    """Return the names of the fields of type `Free`."""
    return {name for name, hint in field_types(kind).items() if Annotation.of(hint).free}


def part_of(hint: Any) -> Any:
    kind = Annotation.of(hint).kind
    return get_args(kind)[1 if get_origin(kind) in (dict, Mapping) else 0]


def choices_of(hint: Any) -> tuple[str, ...]:
    kind = Annotation.of(hint).kind
    if get_origin(kind) is Literal:
        return tuple(map(str, get_args(kind)))
    return choices_of(get_args(kind)[0]) if get_origin(kind) in (tuple, list) else ()


@dataclass(frozen=True)
class FieldDescription:
    """Description of a recipe's field, such as "training.steps"."""

    name: str
    kind: str
    choices: tuple[str, ...]
    default: Any
    required: bool
    meaning: str


def describe_fields(kind: type, section: str) -> Iterator[FieldDescription]:
    """Yield the fields of a configuration and of its nested configurations."""
    hints, found = field_types(kind), meanings(kind)
    for field in dataclasses.fields(kind):
        hint, name = hints[field.name], f"{section}.{field.name}"
        if is_configuration(hint):
            yield from describe_fields(hint, name)
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        required = default is dataclasses.MISSING
        about = Annotation.of(hint)
        yield FieldDescription(
            name, about.words + (" or null" if about.optional else ""), choices_of(hint),
            None if required else default, required, found.get(field.name, ""),
        )  # fmt: skip


@cache
def meanings(kind: type) -> dict[str, str]:
    """Return the docstrings below a configuration's fields, by field name."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__[:-1]):
        source = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        for field, below in pairwise(source.body if isinstance(source, ast.ClassDef) else ()):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = " ".join(text.split())
    return found


def as_yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_yaml, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {as_yaml(part)}" for key, part in value.items()) + "}"
    return str(value)


def type_words(field: FieldDescription, choice: str = "{}") -> str:
    """Describe a field's type. `choice` is a format string for each allowed value."""
    choices = ", ".join(map(choice.format, field.choices))
    return re.sub(r"(one|some) of", rf"\1 of {choices}", field.kind)
