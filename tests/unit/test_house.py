"""How heavy the house is, so that weight does not come back: what it was when counted last, and a
tenth more."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "magneto"
AIR = 1.1
COUNTED = {
    "lines of source": 47_730,
    "lines of tests": 31_360,
    "lines of benchmarks": 4_700,
    "modules": 160,
    "modules with one importer": 25,
    "modules that causal_lm loads": 25,
    "modules that vision-language pre-training loads": 44,
}


def lines(folder: str) -> int:
    return sum(len(p.read_text("utf-8").splitlines()) for p in (ROOT / folder).rglob("*.py"))


def module_files() -> dict[str, Path]:
    """Return the files of modules by name; those of packages, which hold a line, are left out."""
    files = [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]
    return {".".join(["magneto", *p.relative_to(SOURCE).with_suffix("").parts]): p for p in files}


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
    words = f"import sys, {module}; print(*[m for m in sys.modules if m.startswith('magneto.')])"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    return len(module_files().keys() & {*done.stdout.split()})


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
