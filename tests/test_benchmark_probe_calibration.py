"""The probe's calibration: its design, its rows, and that no page says other than the rows do."""

from pathlib import Path

import pytest

from benchmarks import probe_calibration, probe_confusion
from benchmarks.probe_calibration import append_row, verdict_before
from benchmarks.probe_confusion import (
    PAGE,
    RESULTS,
    best_rate,
    confusion,
    level_now,
    measured_of,
    read_rows,
    results,
    section,
    with_section,
)
from benchmarks.probe_design import CHOSEN_ON, KINDS, Configuration, design
from magneto.theory.placement import PLACEMENTS

ROWS = read_rows()


def test_the_design_is_drawn_alike_and_grows_at_its_end() -> None:
    assert design(60) == design(60) == design(90)[:60]
    drawn = design(200)
    assert len({made.name for made in drawn}) == 200
    assert {made.task for made in drawn} == set(KINDS)
    assert {made.placement for made in drawn} == set(PLACEMENTS)


def test_every_recipe_of_the_design_is_one() -> None:
    for made in design(60):
        recipe = made.recipe()
        assert recipe.training.learning_rate == made.learning_rate
        assert recipe.model.row.name == made.placement and recipe.model.width == made.width


def test_rows_are_those_of_the_design_in_its_order() -> None:
    """So none was left out, and what is held out is what was drawn last."""
    assert len(ROWS) >= CHOSEN_ON + 60
    assert [row["name"] for row in ROWS] == [made.name for made in design(len(ROWS))]


def test_what_was_recorded_before_follows_from_the_numbers() -> None:
    for row in ROWS:
        moved = float(row["moved_first"]) if row["moved_first"] else None
        assert verdict_before(measured_of(row), moved) == row["verdict_before"], row["name"]


def test_the_pages_are_made_of_the_rows_and_of_the_verdict_in_the_code() -> None:
    again = "write it anew: python -m benchmarks.probe_confusion"
    assert RESULTS.read_text(encoding="utf-8") == results(ROWS), again
    page = PAGE.read_text(encoding="utf-8")
    assert section(ROWS) in page and with_section(page, section(ROWS)) == page, again


def row(outcome: str, rate: float = 0.1, **numbers: float) -> dict[str, str]:
    empty = dict.fromkeys(probe_confusion.Measured.names(), "")
    return {**empty, "outcome": outcome, "learning_rate": str(rate)} | {
        name: str(value) for name, value in numbers.items()
    }


def test_a_table_by_hand() -> None:
    rows = [row("learned"), row("diverged"), row("learned"), row("diverged", rise=9.0)]
    lines = confusion(rows, level_now, ("sound", "not decided", "likely to fail"))
    assert lines[2:] == [
        "| sound | 2 | 0 | 1 | 67% |",
        "| not decided | 0 | 0 | 0 | - |",
        "| likely to fail | 0 | 0 | 1 | 0% |",
    ]


def test_the_best_single_rate() -> None:
    rows = [row("learned", 0.01), row("learned", 0.03), row("diverged", 0.1), row("learned", 0.2)]
    assert best_rate([*rows, row("did not learn", 0.3)]) == 0.1


def test_a_row_that_a_kill_cut_short_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    append_row(path, {"name": "a", "value": 1})
    append_row(path, {"name": "b", "value": 2})
    path.write_text(path.read_text() + "c,")
    assert [row["name"] for row in read_rows(path)] == ["a", "b"]
    append_row(path, {"name": "c", "value": 3})
    assert [row["value"] for row in read_rows(path)] == ["1", "2", "3"]


def test_one_configuration_is_probed_trained_and_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    kind = KINDS["image-classification"]
    monkeypatch.setitem(kind.settings, "training.steps", 2)
    drawn = [Configuration("image-classification", "pre", 2, 32, 0.01, 0)]
    path = tmp_path / "rows.csv"
    assert len(list(probe_calibration.measure_all(drawn, path))) == 1
    (found,) = read_rows(path)
    assert list(found) == list(ROWS[0])
    assert found["outcome"] == "did not learn" and found["steps"] == "2"
    assert found["verdict_before"] and found["distinct"] and found["commit"]
    assert list(probe_calibration.measure_all(drawn, path)) == []
