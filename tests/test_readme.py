"""What the README and the documentation say is true."""

import ast
import re
from pathlib import Path

import pytest

from magneto import PLACEMENTS
from magneto.cli import COMMANDS
from magneto.theory.placement import SLOTS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_map_has_every_room_and_no_other() -> None:
    source = ROOT / "src" / "magneto"
    block = next(b for b in README.split("```") if "theory/" in b and "commands/" in b)
    named = re.findall(r"(?:^|(?<=/ ))(\w+/)(?= )", block, re.MULTILINE)
    there = {f"{path.parent.name}/" for path in source.glob("*/__init__.py")} | {"recipes/"}
    assert len(named) == len(set(named)) and set(named) == there


@pytest.mark.parametrize("page", ["README.md", "docs/concepts/placements.md"])
def test_tables_of_placements_agree_with_the_table(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| \**`([a-z0-9-]+)`\** \| ([^|]*) \|", text, re.MULTILINE))
    assert list(rows) == list(PLACEMENTS)
    for name, said in rows.items():
        slots = {word for word in re.split(r"[,; ]+", said) if word in SLOTS}
        assert slots == set(PLACEMENTS[name].self_attention), name


def test_python_in_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        names: dict = {}
        exec(compile(ast.parse(block), "README.md", "exec"), names)
        assert names["features"].shape == (2, 128, 512)


def test_commands_that_are_named_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        word
        for page in pages
        for word in re.findall(r"^(?:.*-m )?magneto ([a-z]+)", page.read_text(), re.MULTILINE)
    }
    assert "train" in named
    assert named <= set(COMMANDS)
