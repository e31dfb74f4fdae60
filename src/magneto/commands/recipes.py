"""`magneto recipes`: list the recipes, or print one."""

from __future__ import annotations

from collections.abc import Sequence

from magneto.commands.arguments import Parser, print_json
from magneto.recipe import load_recipe, recipe_names, recipe_path


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "recipes",
        "List the recipes, or print one; save it, change it, and train it by its path.",
        "magneto recipes causal-lm/tiny > mine.yaml",
    )
    made.add_argument("name", nargs="?", help="recipe to print")
    return made.with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given = parser().parse(words)
    if given.name is None:
        rows = {name: headline(name) for name in recipe_names()}
        if given.json:
            print_json(rows)
        else:
            width = max(map(len, rows))
            print("\n".join(f"{name:<{width}}  {line}" for name, line in rows.items()))
    elif given.json:
        print_json(load_recipe(given.name).to_mapping())
    else:
        print(recipe_path(given.name).read_text(encoding="utf-8"), end="")
    return 0


def headline(name: str) -> str:
    """Return the first comment line of a recipe."""
    first = recipe_path(name).read_text(encoding="utf-8").splitlines()[0]
    return first.lstrip("# ")
