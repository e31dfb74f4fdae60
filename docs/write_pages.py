"""Write generated pages, or list those that are out of date."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_or_check(pages: Mapping[Path, str], docs: Path, program: str, words: list[str]) -> int:
    """Write the pages that are out of date; with --check, only list them.

    Args:
        pages: Files and their contents.
        docs: Folder of the documentation.
        program: Name of the generating script in docs/.
        words: Arguments of its command line.

    Returns:
        The exit code: 1 if --check found a page that is out of date.
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
