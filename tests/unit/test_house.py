"""How heavy the house is, so that weight does not come back: what it was when counted last, and a
tenth more."""

import ast
import json
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.unit.test_imports import FILES, module_name, statements

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


def module_files() -> dict[str, Path]:
    """Return the files of modules by name; those of packages, which hold a line, are left out."""
    return {module_name(path): path for path in FILES if path.name != "__init__.py"}


def single_importers(files: dict[str, Path]) -> int:
    users = defaultdict(set)
    for user, path in files.items():
        for node, _ in statements(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                for name in files.keys() & {*named} - {user}:
                    users[name].add(user)
    return sum(len(each) == 1 for each in users.values())


# One process loads torch, and a copy of it each module.
LOADING = """import json, os, sys, torch
for name in sys.argv[1:]:
    if not os.fork():
        __import__(name)
        print(json.dumps(list(sys.modules)), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0"""


@cache
def loaded() -> list[int]:
    names = ("magneto.language.causal_lm", "magneto.vision_language.pretraining")
    words = [sys.executable, "-c", LOADING, *names]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [len(module_files().keys() & {*json.loads(line)}) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("what", COUNTED)
def test_no_weight_comes_back(what: str) -> None:
    files = module_files()
    count = {
        "lines of source": lambda: lines("src"),
        "lines of tests": lambda: lines("tests"),
        "lines of benchmarks": lambda: lines("benchmarks"),
        "modules": lambda: len(files),
        "modules with one importer": lambda: single_importers(files),
        "modules that causal_lm loads": lambda: loaded()[0],
        "modules that vision-language pre-training loads": lambda: loaded()[1],
    }[what]()
    print(f"{count:,} {what}")
    assert count <= AIR * COUNTED[what], f"{count:,} {what}: {COUNTED[what]:,} when counted last"
    assert count > COUNTED[what] / 2, "the table is old"
