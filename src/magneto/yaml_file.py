"""A file of YAML, read strictly: no key twice, nothing that grows without end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from magneto.config import ConfigError

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
