"""The benchmark of decoding compares equal work, says so, and writes what it measured."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks.decoding import SHAPES, Entry, build, check, main


def test_a_run_writes_medians_and_that_hypotheses_are_the_same(tmp_path: Path) -> None:
    words = ["--shape", "tiny", "--rounds", "2", "--tokens", "4", "--batches", "1", "3"]
    result = main([*words, "--least", "2", "--out", str(tmp_path), "--name", "check"])
    assert json.loads((tmp_path / "check.json").read_text()) == result
    assert [(r["model"], r["contender"], r["batch"]) for r in result["rows"]] == [
        (kind, name, batch)
        for kind in ("BART", "Marian")
        for batch in (1, 3)
        for name in (f"transformers {kind}", "magneto")
    ]
    assert result["compared"] == result["same"] == 2 * (2 + 3) * 5
    for row in result["rows"]:
        low, high = row["quartiles"]
        assert row["turns"] == 2 and 0 < low <= row["sentences_per_second"] <= high
    page = (tmp_path / "check.md").read_text()
    assert "| Marian | magneto | 3 |" in page and "All 50 hypotheses compared" in page


def test_contenders_have_the_same_weights() -> None:
    theirs, ours = build("Marian", SHAPES["tiny"], torch.device("cpu")).values()
    count = [
        sum(p.numel() for n, p in m.named_parameters() if "embed_positions" not in n)
        for m in (theirs, ours)
    ]
    assert count[0] == count[1]


def test_other_scores_are_an_error() -> None:
    class Scorer:
        def score(self, sources: list, found: list) -> list:
            return found

    def entries(difference: float) -> list[Entry]:
        names = {"transformers M": 0.0, "magneto": difference}
        return [Entry("M", n, 1, Scorer(), [[0]], found=[[-1.0 - d]]) for n, d in names.items()]

    assert check(entries(0.0))["same"] == 1
    rounding = check(entries(1e-6))
    assert rounding["same"] == 0 and 0 < rounding["largest_score_difference"] < 2e-6
    with pytest.raises(RuntimeError, match="differ in score by"):
        check(entries(1e-3))
