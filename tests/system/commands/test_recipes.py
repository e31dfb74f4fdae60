"""`magneto recipes` lists, prints and explains every recipe, and so do pages that are current."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import pytest
from annotated_types import Interval

from magneto.cli import main
from magneto.commands.recipes import task_fields
from magneto.fields import FieldDescription, PositiveInt, configuration, describe_fields, type_words
from magneto.recipe import load_recipe, recipe_names
from magneto.tasks import TASKS

DOCS = Path(__file__).parents[3] / "docs"


@configuration
class Base:
    width: PositiveInt
    """In the
    base: two lines."""
    kind: Literal["a", "b"] | None = "a"
    """Of it."""


@configuration
class Inner:
    depth: Annotated[float, Interval(ge=0, lt=2)] = 0.5
    """How deep."""


@configuration
class Whole(Base):
    inner: Inner = Inner()
    """Not shown."""
    kind: Literal["a", "b"] | None = "a"
    """Of the whole."""
    names: tuple[str, ...] = ("x",)
    """Several."""


def test_fields_of_a_dataclass() -> None:
    found = {each.name: each for each in describe_fields(Whole, "data")}
    assert list(found) == ["data.width", "data.kind", "data.inner.depth", "data.names"]
    first = FieldDescription(
        "data.width", "whole number, 1 or more", (), None, True, "In the base: two lines."
    )
    assert found["data.width"] == first
    assert found["data.kind"].meaning == "Of the whole." and found["data.kind"].default == "a"
    assert type_words(found["data.kind"]) == "one of a, b or null"
    assert found["data.inner.depth"].meaning == "How deep."
    assert found["data.inner.depth"].kind == "number in [0, 2)"
    assert found["data.names"].kind == "list of texts"


def test_every_field_of_a_task_says_what_it_means() -> None:
    assert not [(task, f.name) for task in TASKS for f in task_fields(task) if not f.meaning]


def test_recipes_all(capsys: pytest.CaptureFixture) -> None:
    assert main(["recipes", "causal-lm/tiny", "--all"]) == 0
    text = capsys.readouterr().out
    assert "(number above 0 or null; default null)\n    Largest gradient norm, or None." in text
    assert "training.schedule: cosine  (one of constant, linear," in text
    assert main(["recipes", "causal-lm/tiny", "--all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model.width"]["value"] == 128 and found["model.width"]["default"] == 768
    assert found["training.optimizer"]["choices"] == ["adamw", "sgd"]
    assert main(["recipes", "--all"]) == 2
    assert "of one recipe" in capsys.readouterr().err


@pytest.fixture
def generate_fields(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The generator, a script beside the pages."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("generate_fields")


def test_the_committed_pages_are_up_to_date() -> None:
    command = [sys.executable, str(DOCS / "generate_fields.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_old_pages_are_written_anew(generate_fields, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(generate_fields, "DOCS", tmp_path)
    assert generate_fields.main(["--check"]) == 1
    assert "docs/fields/training.md is out of date" in capsys.readouterr().out
    assert generate_fields.main([]) == 0 and generate_fields.main(["--check"]) == 0
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    pages = (tmp_path / "fields").iterdir()
    assert not [page.name for page in pages if f"fields/{page.name}" not in navigation]


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
