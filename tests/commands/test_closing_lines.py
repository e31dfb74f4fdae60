"""What a run prints as its next command is one that the command line takes."""

import shlex
from pathlib import Path

import pytest

from magneto.cli import command_parser
from magneto.recipe import load_recipe
from magneto.runs import run_task
from magneto.tasks import TASKS, command


@pytest.mark.parametrize("name", TASKS)
def test_next_commands_are_those_of_the_command_line(name: str, tmp_path: Path) -> None:
    load_recipe(f"{name}/tiny").save(tmp_path / "recipe.yaml")
    for verb in ("evaluate", "report", *TASKS[name].verbs):
        magneto, first, *words = shlex.split(command(verb, tmp_path))
        given, _ = command_parser(first).parse_with_overrides(words)
        assert magneto == "magneto"
        if first != "train":
            assert given.run == tmp_path
            assert verb in ("evaluate", "report") or run_task(tmp_path, {}, verb.split()[0])
