"""From YAML and dotted overrides to frozen dataclasses: strict, all errors at once.

A recipe is data. An unknown key, a value of the wrong type or an impossible one is a line of its
own that names the key, and the nearest right one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from reprlib import Repr
from typing import Any, ClassVar

import yaml
from yaml.error import MarkedYAMLError

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
    "seq_len": "max_length", "block_size": "max_length", "context_length": "max_length",
    "max_position_embeddings": "max_length", "path": "source", "dataset": "source",
    "wandb": "tracker",
}  # fmt: skip
"""What fields of `training`, `model` and `data` are called in other programs, for hints alone."""

# Whole numbers are below it: torch and numpy count with 64 bits.
LARGEST = 10**18
# Far beyond what a person writes.
MOST_BYTES = 1 << 20
# What is more than a word, by its tag: no, 010 and 1:30 are words, which YAML 1.1 takes for false,
# 8 and 90.
PLAIN_WORDS = {
    "null": r"~|null|",
    "bool": r"true|false",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?([0-9]+\.[0-9]*([eE][-+][0-9]+)?|\.inf)|\.nan",
}


UNKNOWN = "unknown key "
"""How the line of an error begins that says that nobody knows a key."""


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
    lines = [line.removeprefix(UNKNOWN) for line in error.lines if line.startswith(UNKNOWN)]
    return [line.split(";")[0] for line in lines]


def problem_lines(error: ValueError) -> list[str]:
    """Return what an error says, a line for each problem."""
    return error.lines if isinstance(error, ConfigError) else [str(error)]


def error_line(error: Exception) -> str:
    """Return what an error says as one line; its type too, where it is not one made for users."""
    words = "; ".join(str(error).splitlines())
    made_for_users = isinstance(error, ValueError | OSError) and words
    return words if made_for_users else f"{type(error).__name__}: {words}"


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


class RecipeLoader(yaml.SafeLoader):
    """Reads plain values: no aliases, no tags, no key twice."""

    yaml_implicit_resolvers: ClassVar[Any] = {
        None: [
            (f"tag:yaml.org,2002:{kind}", re.compile(f"(?:{pattern})$"))
            for kind, pattern in PLAIN_WORDS.items()
        ]
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse what stands for another value, and what says its own type: the field has one."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.tag is not None:
            raise MarkedYAMLError(problem="aliases (*) and tags (!) have no place in a recipe",
                                  problem_mark=event.start_mark)  # fmt: skip
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """Refuse a key that is given twice."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if (name := str(key.value)) in lines:
                raise MarkedYAMLError(problem=f"the key {name} is given twice, first in line "
                                      f"{lines[name]}", problem_mark=key.start_mark)  # fmt: skip
            lines[name] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Read a file of YAML as plain values.

    Raises:
        ConfigError: If it is no YAML, has a key twice in one mapping, or is larger or deeper than
            any recipe; names file and line.
        OSError: If it can't be read.
    """
    if path.stat().st_size > MOST_BYTES:
        raise ConfigError([f"{path} is no recipe: it has more than {MOST_BYTES:,} bytes"])
    try:
        return yaml.load(path.read_text(encoding="utf-8"), RecipeLoader)
    except RecursionError as error:
        raise ConfigError([f"{path} is nested too deeply"]) from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigError([f"{path}{line}: not YAML: {problem}"]) from error
