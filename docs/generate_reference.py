"""Write docs/reference/commands.md and docs/reference/fields/*.md.

The pages describe the commands' parsers and the configurations of recipes.

python docs/generate_reference.py
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from write_pages import write_or_check

from magneto.cli import COMMANDS, command_parser
from magneto.fields import FieldDescription, as_yaml, describe_fields, type_words
from magneto.recipe import config_classes
from magneto.tasks import TASKS
from magneto.training.config import TrainingConfig

DOCS = Path(__file__).parent
BY = "`make docs` writes this page with `docs/generate_reference.py`."

FIELDS = """# Fields: {title}

{by} The descriptions come from the configurations' docstrings. {what} `magneto recipes NAME --all`
prints the descriptions beside a recipe's own values.

{tables}
"""
TRAINING = "The section `training` is the same for every task."
TASK = "The section `training` has [its own page](training.md)."
COMMANDS_PAGE = """# Commands

{by} `magneto COMMAND --help` prints a section of this page.

| exit code | meaning |
|--:|---|
| 0 | finished |
| 1 | a comparison or ladder is unfinished. Its runs were stopped, or another process locked them |
| 2 | a mistake in the command, the recipe or the data |
| 3 | the run diverged |
| 130 | Ctrl-C |

{commands}
"""


def field_table(found: Iterable[FieldDescription]) -> Iterator[str]:
    """Yield the lines of a table of fields."""
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    for field in found:
        default = "" if field.required else f"`{as_yaml(field.default)}`"
        cells = (f"`{field.name}`", type_words(field, "`{}`"), default, escape(field.meaning))
        yield f"| {' | '.join(cells)} |"


def command_section(name: str) -> Iterator[str]:
    """Yield the lines about a command: its description, options and examples."""
    parser = command_parser(name)
    text, _, example = (parser.epilog or "").partition("example:")
    yield from (f"## magneto {name}", "", escape(" ".join((parser.description or "").split())), "")
    rows: dict[str, list[str]] = {}
    for group in parser._action_groups:  # argparse has no public list of them
        title = group.title or ""
        head = "argument or option" if title in ("positional arguments", "options") else title
        found = (each for each in group._group_actions if "-h" not in each.option_strings)
        rows.setdefault(head, []).extend(option_row(parser, each) for each in found)
    for head, lines in rows.items():
        yield from (f"| {head} | meaning |", "|---|---|", *lines, "")
    if text.strip():
        yield "Any field of the recipe is an option too, for example `--training.steps 200`."
        yield ""
    lines = [line.strip() for line in example.strip().splitlines()]
    yield from ("```", *lines, "```", "")


def option_row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the row of a table for an argument or option."""
    formatter = parser._get_formatter()
    usual = "" if action.choices else formatter._get_default_metavar_for_optional(action)
    value = action.metavar or usual
    if action.option_strings:
        shown = f"{', '.join(action.option_strings)} {value if action.nargs != 0 else ''}".strip()
    else:
        shown = str(action.metavar or action.dest)
    words = [formatter._expand_help(action)]
    words += [f"one of {', '.join(map('`{}`'.format, action.choices))}"] if action.choices else []
    return f"| `{shown}` | {escape('; '.join(words))} |"


def escape(text: str) -> str:
    """Return text as Markdown that shows it unchanged."""
    parts = re.split("(`[^`]*`)", text)  # in code, a page would show `&#60;` itself
    return "".join(part if part.startswith("`") else escape_prose(part) for part in parts)


def escape_prose(text: str) -> str:
    for sign in "|<>*[]{}":
        text = text.replace(sign, f"&#{ord(sign)};")
    return text


def generated() -> dict[Path, str]:
    """Return the text of each page by its path."""
    tables = in_div(field_table(describe_fields(TrainingConfig, "training")))
    pages = {"training": FIELDS.format(by=BY, title="training", what=TRAINING, tables=tables)}
    for task in TASKS:
        parts: list[str] = []
        for section, kind in zip(("model", "data"), config_classes(task), strict=True):
            parts += [f"## {section}", "", in_div(field_table(describe_fields(kind, section))), ""]
        tables = "\n".join(parts).rstrip()
        pages[task] = FIELDS.format(by=BY, title=task, what=TASK, tables=tables)
    commands = "\n".join(line for name in COMMANDS for line in command_section(name))
    page = COMMANDS_PAGE.format(by=BY, commands=in_div(commands.rstrip().splitlines()))
    reference = DOCS / "reference"
    found = {reference / "fields" / f"{name}.md": text for name, text in pages.items()}
    return {reference / "commands.md": page, **found}


def in_div(lines: Iterable[str]) -> str:
    """Return lines within an element whose tables a narrow page shows as lists."""
    return "\n".join(('<div class="stacked" markdown>', "", *lines, "", "</div>"))


def main(words: list[str]) -> int:
    """Write the pages; with --check only report whether they are current."""
    return write_or_check(generated(), DOCS, "generate_reference.py", words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
