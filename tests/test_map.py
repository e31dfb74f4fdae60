"""The map in the documentation is as its generator writes it from the code of today."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.test_imports import ALLOWED, FIELDS, FILES, SOURCE

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def generate_map(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The generator, a script beside the pages."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("generate_map")


def test_the_committed_map_is_up_to_date() -> None:
    command = [sys.executable, str(DOCS / "generate_map.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_map_that_is_old_is_written_anew(generate_map, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "map.md").write_text("old")
    monkeypatch.setattr(generate_map, "DOCS", tmp_path)
    assert generate_map.main(["--check"]) == 1
    assert "docs/map.md is out of date" in capsys.readouterr().out
    assert generate_map.main([]) == 0 and generate_map.main(["--check"]) == 0


def test_every_module_and_every_room_is_on_the_page(generate_map: ModuleType) -> None:
    text = generate_map.page(generate_map.read_table())
    for path in FILES:
        room, *rest = path.relative_to(SOURCE).parts
        if rest and path.name != "__init__.py":
            section = text.split(f"## {room}/")[1].split("\n## ")[0]
            assert f"| `{'/'.join(rest)}` | " in section, path
    assert all(f"\n| `{room}` | " in text for room in ALLOWED)


def test_the_drawing_has_the_tables_arrows(generate_map: ModuleType) -> None:
    table = generate_map.read_table()
    assert table["ALLOWED"] == ALLOWED and set(generate_map.fields(table)) == FIELDS
    whole, part = generate_map.arrows(table)
    assert ("hf", "fields") in whole and ("fields", "nn") in whole
    assert ("cli", "hf") not in whole, "it follows from cli to commands to hf"
    assert part == {("recipe", "nn"), ("recipe", "training"), ("recipe", "fields")}
    picture = ElementTree.fromstring((DOCS / "map.svg").read_text(encoding="utf-8"))
    drawn = [path for path in picture.iter() if "arrow" in path.get("class", "")]
    assert len(drawn) == len(whole) + len(part) + 1
    titles = {text.text for text in picture.iter() if text.get("class") == "title"}
    assert titles == {*ALLOWED, "cli", "commands"}
