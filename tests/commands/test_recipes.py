"""`magneto recipes` lists every recipe, and prints one that can be trained as it is."""

import json
from pathlib import Path

import pytest

from magneto.cli import main
from magneto.recipe import load_recipe, recipe_names


def test_it_lists_every_recipe_with_its_first_line(capsys: pytest.CaptureFixture) -> None:
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == recipe_names()
    assert all(len(line.split()) > 3 and "#" not in line for line in lines)
    assert main(["recipes", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == recipe_names()


def test_what_it_prints_is_the_recipe(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert main(["recipes", "causal-lm/tiny"]) == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
    mine = load_recipe(str(tmp_path / "mine.yaml")).to_mapping()
    assert mine == load_recipe("causal-lm/tiny").to_mapping()
    assert main(["recipes", "causal-lm/tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(mine))


def test_a_name_that_is_none_is_answered(capsys: pytest.CaptureFixture) -> None:
    assert main(["recipes", "causal-lm/tinny"]) == 2
    assert "causal-lm/tiny" in capsys.readouterr().err
