"""How heavy the house is, so that weight does not come back: what it was when counted last, and a
tenth more."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.unit.test_imports import FILES, module_name, modules_after

ROOT = Path(__file__).parents[2]
AIR = 1.1
COUNTED = {
    "lines of source": 46_170,
    "lines of tests": 31_390,
    "lines of benchmarks": 4_510,
    "modules": 154,
    "modules with one importer": 23,
    "modules that causal_lm loads": 25,
    "modules that vision-language pre-training loads": 42,
}


def lines(folder: str) -> int:
    return sum(len(p.read_text("utf-8").splitlines()) for p in (ROOT / folder).rglob("*.py"))


def module_files() -> dict[str, Path]:
    """Return the files of modules by name; those of packages, which hold a line, are left out."""
    return {module_name(path): path for path in FILES if path.name != "__init__.py"}


def single_importers(files: dict[str, Path]) -> int:
    users = defaultdict(set)
    for user, path in files.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                for name in files.keys() & {*named} - {user}:
                    users[name].add(user)
    return sum(len(each) == 1 for each in users.values())


def loaded(module: str) -> int:
    return len(module_files().keys() & modules_after(f"import {module}"))


@pytest.mark.parametrize("what", COUNTED)
def test_no_weight_comes_back(what: str) -> None:
    files = module_files()
    count = {
        "lines of source": lambda: lines("src"),
        "lines of tests": lambda: lines("tests"),
        "lines of benchmarks": lambda: lines("benchmarks"),
        "modules": lambda: len(files),
        "modules with one importer": lambda: single_importers(files),
        "modules that causal_lm loads": lambda: loaded("magneto.language.causal_lm"),
        "modules that vision-language pre-training loads": lambda: loaded(
            "magneto.vision_language.pretraining"
        ),
    }[what]()
    print(f"{count:,} {what}")
    assert count <= AIR * COUNTED[what], f"{count:,} {what}: {COUNTED[what]:,} when counted last"
    assert count > COUNTED[what] / 2, "the table is old"
