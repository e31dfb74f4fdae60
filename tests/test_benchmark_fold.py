"""The benchmark of folded norms times contenders that write the same tokens."""

import json
from pathlib import Path

import torch

from benchmarks.fold import CONTENDERS, build, main, write


def test_folded_or_not_the_same_tokens_are_written() -> None:
    plain, folded = (build(name, "tiny", 64) for name in ("sub", "sub folded"))
    assert torch.equal(write(plain, 2, 5), write(folded, 2, 5))


def test_it_writes_a_table(tmp_path: Path) -> None:
    words = ["--shapes", "tiny", "--batches", "1", "--tokens", "2", "--rounds", "2"]
    words += ["--vocabulary", "64", "--out"]
    main([*words, str(tmp_path)])
    rows = json.loads((tmp_path / "fold-cpu.json").read_text())["rows"]
    assert [row["contender"] for row in rows] == list(CONTENDERS)
    assert [row["ratio"][1] for row in rows if row["contender"] == "pre"] == [1.0]
    assert "| tiny | 1 | sub folded |" in (tmp_path / "fold-cpu.md").read_text()
