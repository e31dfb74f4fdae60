"""`magneto recipes` lists, prints and describes every recipe; generated pages are current."""

import importlib
import json
from pathlib import Path

import pytest

from magneto.commands.recipes import task_fields
from magneto.recipe import load_recipe, recipe_names
from magneto.tasks import TASKS
from tests.commands import answer, printed, refused

DOCS = Path(__file__).parents[3] / "docs"


def test_every_field_of_a_task_says_what_it_means() -> None:
    assert not [(task, f.name) for task in TASKS for f in task_fields(task) if not f.meaning]


def test_recipes_all(capsys: pytest.CaptureFixture) -> None:
    text = printed(capsys, "recipes", "causal-lm/tiny", "--all")
    assert "(number above 0 or null; default null)\n    " in text
    assert "training.schedule: cosine  (one of constant, linear," in text
    found = answer(capsys, "recipes", "causal-lm/tiny", "--all")
    assert found["model.width"]["value"] == 128 and found["model.width"]["default"] == 768
    assert found["training.optimizer"]["choices"] == ["adamw", "sgd"]
    assert "--all needs a recipe" in refused(capsys, "recipes", "--all")


def test_the_committed_pages_are_up_to_date(tmp_path: Path, monkeypatch, capsys) -> None:
    """They list every command's options and every field; outdated pages are rewritten."""
    monkeypatch.syspath_prepend(str(DOCS))
    generate_reference = importlib.import_module("generate_reference")
    assert generate_reference.main(["--check"]) == 0, capsys.readouterr().out
    monkeypatch.setattr(generate_reference, "DOCS", tmp_path)
    assert generate_reference.main(["--check"]) == 1
    assert "docs/reference/fields/training.md is out of date" in capsys.readouterr().out
    assert generate_reference.main([]) == 0 and generate_reference.main(["--check"]) == 0
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    pages = (tmp_path / "reference" / "fields").iterdir()
    assert not [page.name for page in pages if f"reference/fields/{page.name}" not in navigation]


def test_it_lists_every_recipe_with_its_first_line(capsys: pytest.CaptureFixture) -> None:
    lines = printed(capsys, "recipes").splitlines()
    assert [line.split()[0] for line in lines] == [*recipe_names()]
    assert all(len(line.split()) > 3 and "#" not in line for line in lines)


def test_what_it_prints_is_the_recipe(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(printed(capsys, "recipes", "causal-lm/tiny"))
    mine = load_recipe(str(tmp_path / "mine.yaml")).to_mapping()
    assert mine == load_recipe("causal-lm/tiny").to_mapping()
    assert answer(capsys, "recipes", "causal-lm/tiny") == json.loads(json.dumps(mine))
