"""Limits that no linter holds: on size, and on clocks in tests."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "examples", "benchmarks")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 500
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, functions)
        and node.end_lineno - node.lineno >= 60 + docstring_lines(node)
    }
    assert not long


CLOCKS = {"perf_counter", "monotonic", "process_time"}


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda p: p.stem)
def test_no_test_reads_a_clock(path: Path) -> None:
    """A busy machine must not fail a test: count operations, or let a false clock tick."""
    assert not clocks_read(path.read_text(encoding="utf-8"))


def clocks_read(text: str) -> list[int]:
    """Return the lines on which a clock is called."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    names = [(call.lineno, getattr(call.func, "attr", None) or getattr(call.func, "id", None))
             for call in calls]  # fmt: skip
    return [line for line, name in names if name in CLOCKS]


def test_the_check_for_clocks_can_fail() -> None:
    assert clocks_read("x = 1\nassert time.perf_counter() < 3") == [2]
    assert clocks_read("from time import monotonic\nmonotonic()") == [2]
    assert not clocks_read("clock.perf_counter = tick")


def docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a docstring: saying more is no fault."""
    first = function.body[0]
    if ast.get_docstring(function) is None:
        return 0
    return first.end_lineno - first.lineno + 1


def test_no_code_of_a_model_folder_is_run() -> None:
    """Where nothing is said, transformers asks on standard input, and takes a "y"."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")}
    calls = {
        f"{path.relative_to(ROOT)}:{node.lineno}": ast.unparse(node)
        for path, text in texts.items()
        if ".from_pretrained(" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "from_pretrained"
    }
    assert calls
    assert not [place for place, call in calls.items() if "trust_remote_code=False" not in call]
