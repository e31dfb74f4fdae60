"""Reading and checking of configurations.

An error message has one line for each mistake. For an unknown key, the error message suggests a
valid key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from reprlib import Repr
from typing import Any, ClassVar

import yaml
from yaml.error import MarkedYAMLError

FOREIGN_NAMES = {
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
    "seq_len": "max_length", "block_size": "max_length", "context_length": "max_length",
    "max_position_embeddings": "max_length", "path": "source", "dataset": "source",
    "wandb": "tracker",
}  # fmt: skip
"""Field names of other programs, each with Magneto's name for the field."""

# Limit of integers, which torch and numpy store in 64 bits.
LARGEST = 10**18
# Largest YAML file.
MAX_BYTES = 1 << 20
# Patterns of values that are not text, by YAML's tag. `no`, `010` and `1:30` are text, unlike in
# YAML 1.1.
SCALARS = {
    "null": r"~|null|",
    "bool": r"true|false",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?([0-9]+\.[0-9]*([eE][-+][0-9]+)?|\.inf)|\.nan",
}


# Beginning of a message.
UNKNOWN = "unknown key "


class ConfigError(ValueError):
    """Error that lists all mistakes in a configuration, one per line."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = list(lines)


def nearest(word: str, known: Sequence[str]) -> str:
    """Return "; did you mean WORD?" with the nearest known word, or "" if none is near.

    Field names of other programs are translated to Magneto's names.
    """
    section, _, last = word.rpartition(".")
    if last in FOREIGN_NAMES:
        here = [key for key in known if key.rpartition(".")[2] == FOREIGN_NAMES[last]]
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
    lines = [line.removeprefix(UNKNOWN) for line in error.lines if line.startswith(UNKNOWN)]
    return [line.split(";")[0] for line in lines]


def problem_lines(error: ValueError) -> list[str]:
    return error.lines if isinstance(error, ConfigError) else [str(error)]


def error_line(error: Exception) -> str:
    """Return an error as one line.

    The line begins with the error's type, except for a ValueError or OSError with a message.
    """
    words = "; ".join(str(error).splitlines())
    made_for_users = isinstance(error, ValueError | OSError) and words
    return words if made_for_users else f"{type(error).__name__}: {words}"


def abbreviate(value: Any) -> str:
    """Return a value as text for a message, shortened to about 200 characters."""
    short = Repr()
    short.maxlong, short.maxstring, short.maxother, short.maxlevel = 40, 80, 80, 3
    text = short.repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def override(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `values` with the new values in `changes`, whose keys are dotted names."""
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


class RecipeLoader(yaml.SafeLoader):
    """YAML loader that refuses aliases, tags and duplicate keys."""

    yaml_implicit_resolvers: ClassVar[Any] = {
        None: [
            (f"tag:yaml.org,2002:{kind}", re.compile(f"(?:{pattern})$"))
            for kind, pattern in SCALARS.items()
        ]
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.tag is not None:
            raise MarkedYAMLError(problem="aliases (*) and tags (!) are not allowed in a recipe",
                                  problem_mark=event.start_mark)  # fmt: skip
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if (name := str(key.value)) in lines:
                raise MarkedYAMLError(problem=f"duplicate key {name}, already in line "
                                      f"{lines[name]}", problem_mark=key.start_mark)  # fmt: skip
            lines[name] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


@lru_cache(maxsize=16)  # a sweep reads one recipe for each of its cells
def parse_yaml(text: str) -> Any:
    return yaml.load(text, RecipeLoader)


def read_yaml(path: Path) -> Any:
    """Return the plain values of a YAML file.

    Raises:
        ConfigError: If the file is too large or is not valid YAML. The message names file and line.
        OSError: If the file can't be opened.
    """
    if path.stat().st_size > MAX_BYTES:
        raise ConfigError([f"{path} is not a recipe: it is larger than {MAX_BYTES:,} bytes"])
    try:
        return deepcopy(parse_yaml(path.read_text(encoding="utf-8")))
    except RecursionError as error:
        raise ConfigError([f"{path} is nested too deeply"]) from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigError([f"{path}{line}: not YAML: {problem}"]) from error


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], section: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted name, old value, new value) for each field that differs."""
    for key in before:
        if key not in after or before[key] == after[key]:
            continue
        if isinstance(before[key], Mapping) and isinstance(after[key], Mapping):
            yield from differences(before[key], after[key], f"{section}{key}.")
        else:
            yield f"{section}{key}", before[key], after[key]
