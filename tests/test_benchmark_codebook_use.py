"""The benchmark of the codebook's use compares rules, and writes what it measured."""

import json
from pathlib import Path

import pytest

from benchmarks.codebook_use import RULES, main


@pytest.mark.slow
def test_every_rule_has_a_row_for_every_evaluation(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    words = ["--shape", "check", "--steps", "4", "--every", "2", "--seeds", "1"]
    main([*words, "--name", "check", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "check.json").read_text())
    assert [(row["rule"], row["step"]) for row in result["rows"]] == [
        (rule, step) for rule in RULES for step in (2, 4)
    ]
    assert all(0 < row["codebook_use"] <= 1 for row in result["rows"])
    page = (tmp_path / "check.md").read_text()
    assert page.count("\n| ") == 4 and "16 codes" in page
