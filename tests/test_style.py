"""Limits on size that no linter holds."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "examples", "benchmarks")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, functions)
        and node.end_lineno - node.lineno >= 50 + docstring_lines(node)
    }
    assert not long


def docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a docstring: saying more is no fault."""
    first = function.body[0]
    if ast.get_docstring(function) is None:
        return 0
    return first.end_lineno - first.lineno + 1
