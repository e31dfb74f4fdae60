"""The figure of the README is drawn from the committed comparison, for both kinds of page."""

import importlib
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def test_the_committed_figures_are_of_the_committed_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    drawer = importlib.import_module("draw_scores")
    made = drawer.figures()
    assert set(made) == {"-light.svg", "-dark.svg"}
    for ending, text in made.items():
        held = drawer.FIGURE.with_name(drawer.FIGURE.name + ending).read_text(encoding="utf-8")
        assert f"comparison {drawer.digest()} " in held, "python docs/draw_scores.py"
        assert words(held) == words(text)
    assert re.findall(r"#\w{6}", made["-light.svg"]) != re.findall(r"#\w{6}", made["-dark.svg"])
    assert "var(" not in "".join(made.values())


def words(svg: str) -> list[str | None]:
    """Return the texts of a figure; where they stand may differ between versions of matplotlib."""
    return [node.text for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("text")]
