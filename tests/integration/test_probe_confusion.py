"""The tables of how often the probe was right follow from the rows and the verdict in the code."""

from benchmarks import probe_confusion
from benchmarks.probe_confusion import (
    PAGE,
    RESULTS,
    best_rate,
    confusion,
    level_now,
    read_rows,
    results,
    section,
    with_section,
)

ROWS = read_rows()


def test_the_pages_are_made_of_the_rows_and_of_the_verdict_in_the_code() -> None:
    again = "write it anew: python -m benchmarks.probe_confusion"
    assert RESULTS.read_text(encoding="utf-8") == results(ROWS), again
    page = PAGE.read_text(encoding="utf-8")
    assert section(ROWS) in page and with_section(page, section(ROWS)) == page, again


def row(outcome: str, rate: float = 0.1, **numbers: float) -> dict[str, str]:
    empty = dict.fromkeys(probe_confusion.NUMBERS, "")
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
