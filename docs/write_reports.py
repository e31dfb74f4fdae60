"""Rewrite the published reports from their results, docs/reports/*/comparison.json.

    python docs/write_reports.py

The cells are judged and summarised again by the rules of the lab as they are now.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from magneto.files import plain, read_json, write_json
from magneto.lab.comparison import conclusions
from magneto.lab.report.report import write_report

REPORTS = Path(__file__).parent / "reports"


def current(folder: Path) -> dict[str, Any]:
    """Return a published comparison with the present conclusions from its cells."""
    comparison = read_json(folder / "comparison.json")
    return comparison | plain(conclusions(comparison))


if __name__ == "__main__":
    for folder in sorted(path.parent for path in REPORTS.glob("*/comparison.json")):
        write_json(folder / "comparison.json", current(folder))
        print(write_report(current(folder), folder, downloads=False))
