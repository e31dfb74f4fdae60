"""Published comparisons and results pages agree with the files of their numbers."""

import importlib
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from magneto.files import read_json, write_json
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
    links = re.findall(r'(?:href|src)="(?!#|https:)([^"]+)"', page)
    assert [link for link in links if not (folder / link).is_file()] == []


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that writes the tables and figures of the results pages."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("generate_results")


def test_results_pages_and_their_figures_are_current(generator: ModuleType) -> None:
    assert generator.main(["--check"]) == 0, "python docs/generate_results.py"


def test_a_changed_number_reaches_the_page_and_its_figure(
    generator: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("docs/results", "docs/figures", "benchmarks/results"):
        shutil.copytree(DOCS.parent / folder, tmp_path / folder)
    results, pages = tmp_path / "benchmarks" / "results", tmp_path / "docs" / "results"
    monkeypatch.setattr(generator, "RESULTS", results)
    monkeypatch.setattr(generator, "DOCS", tmp_path / "docs")
    language, curves = pages / "language.md", results / "scaling-cpu.json"
    language.write_text(language.read_text().replace("| 3.706 |", "| 9.876 |"))
    found = read_json(curves)
    found["curves"]["depth"]["slopes"]["seconds"] = 7.89
    write_json(curves, found)
    made = generator.generated()
    assert {path.name for path, text in made.items() if path.read_text() != text} == {
        "speed.md", "scaling-light.svg", "scaling-dark.svg", "language-light.svg",
        "language-dark.svg",
    }  # fmt: skip
    assert "| depth | 7.89 |" in made[pages / "speed.md"]
    light, dark = (made[tmp_path / "docs" / "figures" / f"scaling-{theme}.svg"]
                   for theme in ("light", "dark"))  # fmt: skip
    assert "depth: 7.89" in light and "#0067b1" in light and "#0067b1" not in dark
