"""Write the published reports anew from their results, docs/reports/*/comparison.json.

    python docs/write_reports.py

What the cells say is judged and summed up again, so that a report says what the lab says today.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from magneto.files import plain, read_json, write_json
from magneto.lab.comparison import conclusions
from magneto.lab.report.report import write_report

REPORTS = Path(__file__).parent / "reports"


def current(folder: Path) -> dict[str, Any]:
    """Return a published comparison with what its cells say."""
    comparison = read_json(folder / "comparison.json")
    return comparison | plain(conclusions(comparison))


if __name__ == "__main__":
    for folder in sorted(path.parent for path in REPORTS.glob("*/comparison.json")):
        write_json(folder / "comparison.json", current(folder))
        print(write_report(current(folder), folder, downloads=False))
