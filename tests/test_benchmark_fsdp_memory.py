"""The benchmark of memory starts ranks, and writes what they measured."""

import json
from pathlib import Path

import pytest

from benchmarks.fsdp_memory import PHASES, main


@pytest.mark.distributed
def test_two_ranks_hold_half_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    main(["--shape", "tiny", "--ranks", "2", "--name", "check", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "check.json").read_text())["rows"]
    assert [row["way"] for row in rows] == ["module", "whole"]
    for row in rows:
        assert row["share"] == pytest.approx(row["whole"] / 2, rel=0.01)
        assert all(row[phase] > 0 for phase in PHASES)
    assert "| 2 | drawn module by module |" in (tmp_path / "check.md").read_text()
