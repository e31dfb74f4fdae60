"""Write pages that are made by a program, or say which of them are old."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_or_check(pages: Mapping[Path, str], docs: Path, program: str, words: list[str]) -> int:
    """Write the pages that are old; or, with --check, only say which they are.

    Args:
        pages: Files, and what is to stand in them.
        docs: The folder of the documents, in which they are.
        program: That makes them, as it is called in docs/.
        words: Of its command line.

    Returns:
        Its exit code: 1 if --check found an old one.
    """
    old = [path for path, text in pages.items()
           if not path.is_file() or path.read_text(encoding="utf-8") != text]  # fmt: skip
    if words == ["--check"]:
        for path in old:
            print(f"docs/{path.relative_to(docs)} is out of date: python docs/{program}")
        return 1 if old else 0
    for path in old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages[path], encoding="utf-8")
    return 0
