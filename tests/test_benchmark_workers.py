"""The benchmark of worker processes measures every case and writes it down."""

import json
from pathlib import Path

from benchmarks.workers import CASES, COUNTS, main


def test_it_measures_every_case(tmp_path: Path) -> None:
    words = ["--rounds", "1", "--batches", "2", "--memory", "0", "--out", str(tmp_path)]
    main([*words, "--name", "check"])
    result = json.loads((tmp_path / "check.json").read_text())
    cases = [(row["case"], row["num_workers"]) for row in result["rows"]]
    assert cases == [(case, count) for case in CASES for count in COUNTS]
    assert all(row["seconds"] > 0 and row["processor_seconds"] > 0 for row in result["rows"])
    assert 0 < result["start"][0]["started"] <= result["start"][0]["first_batches"]
    assert "| streaming text | 2 | 1 |" in (tmp_path / "check.md").read_text()
