"""The published comparisons say what the lab says today of their runs, and lead nowhere wrong."""

import importlib
import re
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
    links = re.findall(r'(?:href|src)="(?!#|https:)([^"]+)"', page)
    assert [link for link in links if not (folder / link).is_file()] == []
