"""Published comparisons and results pages agree with the files of their numbers."""

import importlib
from pathlib import Path

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
