"""Write docs/reference/fields/*.md: every field of every recipe, from docstrings.

`magneto recipes NAME --all` says the same beside a recipe's own values. Imports no torch:
python docs/generate_fields.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from write_pages import write_or_check

from magneto.fields import FieldDescription, as_yaml, describe_fields, type_words
from magneto.recipe import config_classes
from magneto.tasks import TASKS
from magneto.training.config import TrainingConfig

DOCS = Path(__file__).parent

PAGE = """# {title}

Written by `python docs/generate_fields.py`, which `make docs` runs, from the docstrings of the
configurations. {what} `magneto recipes NAME --all` lists the same beside a recipe's own values.

{tables}
"""
TRAINING = """The `training` section is the same for every task."""
TASK = """The `training` section is on [a page of its own](training.md)."""


def table(found: Iterable[FieldDescription]) -> Iterator[str]:
    """Yield the lines of a table of fields."""
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    for field in found:
        default = "" if field.required else f"`{as_yaml(field.default)}`"
        cells = (f"`{field.name}`", type_words(field), default, meaning(field.meaning))
        yield f"| {' | '.join(cells)} |"


def meaning(text: str) -> str:
    """Return a docstring's words as a cell: what is between signs stays as it is."""
    for sign in "|<>*[]{}":
        text = text.replace(sign, f"&#{ord(sign)};")
    return text


def generated() -> dict[Path, str]:
    """Return the pages and what is to stand in them."""
    lines = "\n".join(table(describe_fields(TrainingConfig, "training")))
    pages = {"training": PAGE.format(title="Fields: training", what=TRAINING, tables=lines)}
    for task in TASKS:
        parts = []
        for section, kind in zip(("model", "data"), config_classes(task), strict=True):
            parts += [f"## {section}", "", *table(describe_fields(kind, section)), ""]
        tables = "\n".join(parts).rstrip()
        pages[task] = PAGE.format(title=f"Fields: {task}", what=TASK, tables=tables)
    return {DOCS / "reference" / "fields" / f"{name}.md": text for name, text in pages.items()}


def main(words: list[str]) -> int:
    """Write the pages; or, with --check, only say whether they are as they would be written."""
    return write_or_check(generated(), DOCS, "generate_fields.py", words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
