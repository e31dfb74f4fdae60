"""The benchmark of beam search refuses contenders whose hypotheses differ."""

from typing import Any

import pytest

pytest.importorskip("transformers")

from benchmarks.decoding import Entry, check


class Scorer:
    def score(self, sources: list, found: Any) -> Any:
        return found


def test_other_scores_are_an_error() -> None:
    def entries(difference: float) -> list[Entry]:
        names = {"transformers Marian": 0.0, "magneto": difference}
        return [Entry(name, 1, Scorer(), [[0]], found=[[-1.0 - d]]) for name, d in names.items()]

    check(entries(0.0))
    check(entries(1e-6))
    with pytest.raises(RuntimeError, match="differ in score by"):
        check(entries(1e-3))
