"""How heavy the house is, so that weight does not come back: what it was when counted last, and a
tenth more."""

import ast
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.unit.test_imports import FILES, module_name, statements
from tests.unit.test_style import tree_of

ROOT = Path(__file__).parents[2]
AIR = 1.1
COUNTED = {
    "lines of source": 46_560,
    "lines of tests": 31_930,
    "lines of benchmarks": 4_510,
    "modules": 154,
    "modules with one importer": 23,
    "modules that causal_lm loads": 25,
    "modules that vision-language pre-training loads": 42,
}


def lines(folder: str) -> int:
    return sum(len(p.read_text("utf-8").splitlines()) for p in (ROOT / folder).rglob("*.py"))


@cache
def module_files() -> dict[str, Path]:
    """Return the files of modules by name; those of packages, which hold a line, are left out."""
    return {module_name(path): path for path in FILES if path.name != "__init__.py"}


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the modules of this package that statements import."""
    named = {
        name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    }
    return module_files().keys() & named


def single_importers() -> int:
    users = Counter()
    for user, path in module_files().items():
        users.update(imported(node for node, _ in statements(tree_of(path))) - {user})
    return sum(count == 1 for count in users.values())


def loaded(name: str) -> int:
    """Count the modules that one loads: those that it imports at its top, and so on."""
    found, new = set(), {name}
    while new:
        found |= new
        new = set().union(*(imported(tree_of(module_files()[one]).body) for one in new)) - found
    return len(found)


@pytest.mark.parametrize("what", COUNTED)
def test_no_weight_comes_back(what: str) -> None:
    count = {
        "lines of source": lambda: lines("src"),
        "lines of tests": lambda: lines("tests"),
        "lines of benchmarks": lambda: lines("benchmarks"),
        "modules": lambda: len(module_files()),
        "modules with one importer": lambda: single_importers(),
        "modules that causal_lm loads": lambda: loaded("magneto.language.causal_lm"),
        "modules that vision-language pre-training loads": lambda: loaded(
            "magneto.vision_language.pretraining"
        ),
    }[what]()
    print(f"{count:,} {what}")
    assert count <= AIR * COUNTED[what], f"{count:,} {what}: {COUNTED[what]:,} when counted last"
    assert count > COUNTED[what] / 2, "the table is old"
