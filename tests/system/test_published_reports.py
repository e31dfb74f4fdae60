"""Published comparisons, results pages and figures agree with the files of their numbers."""

import importlib
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from magneto.lab.report.report import as_markdown

DOCS = Path(__file__).parents[2] / "docs"
FOLDERS = sorted(path.parent for path in DOCS.glob("reports/*/comparison.json"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_published_report_is_of_its_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    writer = importlib.import_module("write_reports")
    now = writer.current(folder)
    assert writer.read_json(folder / "comparison.json") == now, "python docs/write_reports.py"
    assert (folder / "report.md").read_text() == as_markdown(now), "python docs/write_reports.py"
    page = (folder / "report.html").read_text()
    assert all(sentence in page for sentence in now["answer"] if "'" not in sentence)


def test_results_pages_and_their_figures_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    generator = importlib.import_module("generate_results")
    assert generator.main(["--check"]) == 0, "python docs/generate_results.py"


def test_the_readmes_figure_is_of_its_comparison_for_light_and_dark_pages(
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
