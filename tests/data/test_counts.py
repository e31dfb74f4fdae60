"""Counts are plain JSON, add up, and say in words what was met."""

import json

import pytest

from magneto.data.counts import EMPTY, MALFORMED, Counts, NothingWrong


def test_counts_add_up_and_are_plain_json() -> None:
    counts = Counts({"rows": 2, MALFORMED: 1})
    counts.update(Counts({"rows": 3, EMPTY: 1}))
    counts.met(MALFORMED, "a.csv, line 3", "too few cells")
    assert counts == {"rows": 5, MALFORMED: 2, EMPTY: 1}
    assert Counts(json.loads(json.dumps(counts))) == counts
    assert counts["never met"] == 0


def test_words() -> None:
    assert Counts().describe("rows") == "0 rows"
    counts = Counts({EMPTY: 1, "rows": 1234, MALFORMED: 7, "long lines cut": 0})
    assert counts.describe("rows") == f"1,234 rows (7 {MALFORMED}, 1 {EMPTY})"
    assert counts.describe("rows", EMPTY) == f"1,234 rows, 1 {EMPTY} (7 {MALFORMED})"


def test_names_in_caches_made_before_are_words() -> None:
    before = {"documents": 9, "empty": 0, "invalid_utf8": 2, "bad_records": 3}
    assert Counts(before).describe("documents") == "9 documents (3 bad records, 2 invalid utf8)"


def test_where_nothing_may_be_wrong_the_place_is_said() -> None:
    with pytest.raises(ValueError, match=r"^a\.csv, line 3: too few cells$"):
        NothingWrong().met(MALFORMED, "a.csv, line 3", "too few cells")
