"""The benchmark of the plan measures what the plan says, in a process of its own."""

import json
from pathlib import Path

import pytest

from benchmarks.plan_memory import GOAL, main


@pytest.mark.slow
def test_the_plan_is_what_is_allocated(tmp_path: Path) -> None:
    main(["--only", "masked-lm/small", "--examples", "2", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "plan-memory-cpu.json").read_text())["rows"]
    assert [bool(row["changes"]) for row in rows] == [False, True]
    assert all(abs(row["error"]) < GOAL for row in rows)
    assert rows[1]["allocated"] < rows[0]["allocated"]
    assert "2 of 2 within 10%" in (tmp_path / "plan-memory-cpu.md").read_text()
