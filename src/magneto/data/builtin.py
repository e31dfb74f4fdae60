"""Built-in text: the documentation strings of Python's standard library. Needs no network."""

from __future__ import annotations

import ast
import json
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from magneto.data.cache import cache_directory, fingerprint, is_kept, made_whole

# Not prose that people read: tests, vendored packages, and tools that are being removed.
LEFT_OUT = {
    "test",
    "tests",
    "site-packages",
    "dist-packages",
    "lib2to3",
    "__pycache__",
    "ensurepip",
}
NAMES = ("docstrings",)


def docstrings() -> list[str]:
    """Return the prose of the Python library's documentation strings, a module a document.

    Sources are parsed, never imported; the order is that of the modules' paths. The result is
    cached per Python version.
    """
    version = sys.version_info[:3]
    held = cache_directory() / f"docstrings-{fingerprint(version)}"
    if not is_kept(held):
        with made_whole(held) as aside:
            lines = (json.dumps(document) for document in _extract())
            (aside / "documents.jsonl").write_text("\n".join(lines), encoding="utf-8")
    content = (held / "documents.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in content.splitlines()]


def _extract() -> Iterator[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if LEFT_OUT.isdisjoint(path.relative_to(root).parts[:-1]):
            prose = list(dict.fromkeys(_prose(path)))
            if prose:
                yield "\n\n".join(prose)


def _prose(path: Path) -> Iterator[str]:
    """Yield the paragraphs of prose in a module's documentation strings."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                if is_prose(paragraph):
                    yield " ".join(paragraph.split())


def is_prose(paragraph: str) -> bool:
    """Return whether a paragraph reads as sentences, not as code, a table or a list of names."""
    if ">>>" in paragraph or any(
        line.startswith(("    ", "\t", "|")) for line in paragraph.split("\n")
    ):
        return False
    letters = sum(c.isalpha() or c.isspace() for c in paragraph)
    return len(paragraph.split()) >= 5 and letters >= 0.85 * len(paragraph)
