"""Limits that no linter holds: on size, and on clocks in tests."""

import ast
from pathlib import Path
from typing import Any

from tests.unit.test_imports import statements

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "examples", "benchmarks")
FILE_LINES = 500
FUNCTION_LINES = 60
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def test_files_and_functions_are_short() -> None:
    long = []
    for path in FILES:
        tree = ast.parse(text := path.read_text(encoding="utf-8"))
        documented = [tree, *(node for node, _ in statements(tree) if isinstance(node, DOCUMENTED))]
        lines = len(text.splitlines()) - sum(map(docstring_lines, documented))
        found = [("the file", lines)] if lines > FILE_LINES else []
        found += [(name, lines) for name, lines in function_lines(documented)
                  if lines > FUNCTION_LINES]  # fmt: skip
        long += [f"{path.relative_to(ROOT)}: {name} has {lines} lines" for name, lines in found]
    assert not long, "\n".join(long)


def function_lines(documented: list[Any]) -> list[tuple[str, int]]:
    """Return the names of functions and how many lines each has besides its docstring."""
    return [
        (node.name, (node.end_lineno or 0) - node.lineno + 1 - docstring_lines(node))
        for node in documented
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


CLOCKS = {"perf_counter", "monotonic", "process_time"}


def test_no_test_reads_a_clock() -> None:
    """A busy machine must not fail a test: count operations, or let a false clock tick."""
    assert not [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in clocks_read(path.read_text(encoding="utf-8"))
    ]


def clocks_read(text: str) -> list[int]:
    """Return the lines on which a clock is called."""
    if not any(name in text for name in CLOCKS):
        return []
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    names = [(call.lineno, getattr(call.func, "attr", None) or getattr(call.func, "id", None))
             for call in calls]  # fmt: skip
    return [line for line, name in names if name in CLOCKS]


def docstring_lines(node: Any) -> int:
    """Count the lines of a docstring: saying more is no fault."""
    if ast.get_docstring(node, clean=False) is None:
        return 0
    first = node.body[0]
    return (first.end_lineno or 0) - first.lineno + 1


def test_no_code_of_a_model_folder_is_run() -> None:
    """Where nothing is said, transformers asks on standard input, and takes a "y"."""
    calls = {
        f"{path.relative_to(ROOT)}:{node.lineno}": ast.unparse(node)
        for path in (ROOT / "src").rglob("*.py")
        if b".from_pretrained(" in path.read_bytes()
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "from_pretrained"
    }
    assert calls
    assert not [place for place, call in calls.items() if "trust_remote_code=False" not in call]
