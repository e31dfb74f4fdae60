"""The benchmark of decoding compares equal work."""

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks.decoding import Entry, beam_search, check

CPU = torch.device("cpu")


def test_rows_are_of_the_same_hypotheses() -> None:
    rows = beam_search("tiny", CPU, ["BART", "Marian"], [1, 3], tokens=4)
    assert [(r["model"], r["contender"], r["batch"]) for r in rows] == [
        (kind, name, batch)
        for kind in ("BART", "Marian")
        for batch in (1, 3)
        for name in (f"transformers {kind}", "magneto")
    ]
    for row in rows:
        low, high = row["quartiles"]
        assert row["turns"] == 2 and 0 < low <= row["sentences_per_second"] <= high


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
