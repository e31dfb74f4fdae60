"""`magneto recipes`: list all recipes, print one, or describe the fields of one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from magneto.commands.shared import Parser, answer
from magneto.fields import FieldDescription, as_yaml, describe_fields, type_words
from magneto.recipe import config_classes, load_recipe, recipe_names, recipe_path
from magneto.training.config import TrainingConfig


def parser() -> Parser:
    made = Parser(
        "recipes",
        "List the recipes, or print one. A printed recipe can be saved, edited and trained. With "
        "--all, print every field with value, type, default, choices and meaning.",
        "magneto recipes causal-lm/tiny > mine.yaml\n  magneto recipes causal-lm/tiny --all",
    )
    made.add_argument("name", nargs="?", help="recipe to print")
    made.add_argument("--all", action="store_true", help="describe every field of the recipe")
    return made.with_json()


def main(words: Sequence[str]) -> int:
    made = parser()
    args = made.parse(words)
    if args.all and args.name is None:
        made.error("--all needs a recipe: magneto recipes causal-lm/tiny --all")
    if args.name is None:
        rows = {name: headline(name) for name in recipe_names()}
        width = max(map(len, rows))
        return answer(args, rows, (f"{name:<{width}}  {line}" for name, line in rows.items()))
    recipe = load_recipe(args.name)
    if not args.all:
        text = recipe_path(args.name).read_text(encoding="utf-8")
        return answer(args, recipe.to_mapping(), text.splitlines())
    found = [(field, attrgetter(field.name)(recipe)) for field in task_fields(recipe.task)]
    described = {field.name: {**asdict(field), "value": value} for field, value in found}
    return answer(args, described, (line for each in found for line in lines(*each)))


def headline(name: str) -> str:
    first = recipe_path(name).read_text(encoding="utf-8").splitlines()[0]
    return first.lstrip("# ")


def task_fields(task: str) -> Iterator[FieldDescription]:
    model, data = config_classes(task)
    words = "Name of the task, or module:Class of your own task."
    yield FieldDescription("task", "text", (), None, True, words)
    words = "Seed of weights, data order, dropout and splits."
    yield FieldDescription("seed", "whole number", (), 1, False, words)
    for section, kind in (("model", model), ("data", data), ("training", TrainingConfig)):
        yield from describe_fields(kind, section)
    words = "Peak learning rate of each placement, used if training.learning_rate is not set."
    yield FieldDescription("learning_rates", "numbers by name", (), {}, False, words)


def lines(field: FieldDescription, value: Any) -> Iterator[str]:
    default = "no default" if field.required else f"default {as_yaml(field.default)}"
    yield f"{field.name}: {as_yaml(value)}  ({type_words(field)}; {default})"
    yield from textwrap.wrap(field.meaning, 96, initial_indent="    ", subsequent_indent="    ")
