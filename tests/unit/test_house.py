"""How heavy the house is, so that weight does not come back: what it was when counted last, and a
tenth more."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.unit.test_imports import FILES, module_name

ROOT = Path(__file__).parents[2]
AIR = 1.1
COUNTED = {
    "lines of source": 47_543,
    "lines of tests": 34_733,
    "lines of benchmarks": 4_707,
    "modules": 155,
    "modules with one importer": 22,
    "modules that causal_lm loads": 25,
    "modules that vision-language pre-training loads": 42,
}


def lines(folder: str) -> int:
    return sum(len(p.read_text("utf-8").splitlines()) for p in (ROOT / folder).rglob("*.py"))


@cache
def texts() -> dict[str, str]:
    """Return modules by name; those of packages, which hold a line, are left out."""
    return {module_name(path): path.read_text("utf-8") for path in FILES
            if path.name != "__init__.py"}  # fmt: skip


def imported(module: str, before: str = "") -> set[str]:
    """Return the modules that one imports on lines that begin with so many spaces."""
    pattern = rf"^{before}from (magneto[.\w]*) import (\([^)]*\)|.*)$"
    found = set()
    for base, names in re.findall(pattern, texts()[module], re.MULTILINE):
        found |= {base, *(f"{base}.{name}" for name in re.findall(r"\w+", names))}
    return (texts().keys() & found) - {module}


def single_importers() -> int:
    users = Counter(name for module in texts() for name in imported(module, " *"))
    return sum(count == 1 for count in users.values())


def loaded(name: str) -> int:
    """Count the other modules that one loads: those that it imports at its top, and so on."""
    found, new = set(), {name}
    while new:
        found |= new
        new = set().union(*map(imported, new)) - found
    return len(found - {name})


@pytest.mark.parametrize("what", COUNTED)
def test_no_weight_comes_back(what: str) -> None:
    count = {
        "lines of source": lambda: lines("src"),
        "lines of tests": lambda: lines("tests"),
        "lines of benchmarks": lambda: lines("benchmarks"),
        "modules": lambda: len(texts()),
        "modules with one importer": lambda: single_importers(),
        "modules that causal_lm loads": lambda: loaded("magneto.language.causal_lm"),
        "modules that vision-language pre-training loads": lambda: loaded(
            "magneto.vision_language.pretraining"
        ),
    }[what]()
    print(f"{count:,} {what}")
    assert count <= AIR * COUNTED[what], f"{count:,} {what}: {COUNTED[what]:,} when counted last"
    assert count > COUNTED[what] / 2, "the table is old"
