"""How often the probe's verdict was right: tables made of the calibration's CSV, and nothing else.

    python -m benchmarks.probe_confusion

writes benchmarks/results/probe-calibration.md and the tables in docs/concepts/probe.md anew. The
verdict "now" is the code's, on the values in the CSV; "before" is what the CSV recorded.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from magneto.lab.verdict import LEVELS, THRESHOLDS, Measured

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "benchmarks" / "results" / "probe-calibration.csv"
RESULTS = ROWS.with_suffix(".md")
PAGE = ROOT / "docs" / "concepts" / "probe.md"
BEGIN, END = "<!-- calibration: begin -->", "<!-- calibration: end -->"
# The thresholds were chosen on the first rows; the ones that follow are held out.
CHOSEN_ON = 150
BEFORE = ("sound", "at risk", "likely to fail")
SLOW = "text-classification"
LEARNED = "learned"
OUTCOMES = (LEARNED, "did not learn", "diverged")

NUMBERS = [field.name for field in fields(Measured)]

Row = dict[str, str]
Judged = Callable[[Row], str]


def read_rows(path: Path = ROWS) -> list[Row]:
    """Return the whole rows of a CSV; what a kill cut short is left out."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return list(csv.DictReader(whole.splitlines()))


def measured_of(row: Row) -> Measured:
    """Return what the probe measured of a row; what is empty was not measured."""
    values = {name: row[name] for name in NUMBERS}
    return Measured(**{name: float(value) for name, value in values.items() if value != ""})


def worst_level(numbers: Measured) -> str:
    """Return the worst level of all numbers."""
    found = [limit.level(getattr(numbers, name)) for name, limit in THRESHOLDS.items()]
    return LEVELS[max(map(LEVELS.index, found))]


def level_now(row: Row) -> str:
    """Return the verdict of the code as it is."""
    return worst_level(measured_of(row))


def level_before(row: Row) -> str:
    """Return the verdict of the code before the calibration."""
    return row["verdict_before"]


def best_rate(rows: Sequence[Row]) -> float:
    """Return the learning rate from which on calling all runs failures errs least often."""

    def errors(limit: float) -> int:
        return sum((float(r["learning_rate"]) < limit) != (r["outcome"] == LEARNED) for r in rows)

    return min(sorted(float(row["learning_rate"]) for row in rows), key=errors)


def parts(rows: Sequence[Row]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the rows that thresholds were chosen on, and those held out."""
    return rows[:CHOSEN_ON], rows[CHOSEN_ON:]


def confusion(rows: Sequence[Row], judged: Judged, levels: Sequence[str]) -> list[str]:
    """Return a table: a line for each verdict, a column for each outcome."""
    counts = Counter((judged(row), row["outcome"]) for row in rows)
    lines = [
        f"| verdict | {' | '.join(OUTCOMES)} | learned, of all |",
        f"|---|{'--:|' * (len(OUTCOMES) + 1)}",
    ]
    for level in levels:
        numbers = [counts[level, outcome] for outcome in OUTCOMES]
        share = f"{numbers[0] / sum(numbers):.0%}" if sum(numbers) else "-"
        lines.append(f"| {level} | {' | '.join(map(str, numbers))} | {share} |")
    return lines


def tables(chosen: Sequence[Row], shown: Sequence[Row]) -> list[str]:
    """Return the tables of one part: before, now, and what the learning rate alone would say."""
    limit = best_rate(chosen)

    def by_rate(row: Row) -> str:
        return f"rate {'below' if float(row['learning_rate']) < limit else 'from'} {limit:g}"

    sides = [f"rate {word} {limit:g}" for word in ("below", "from")]
    return [
        "Before the calibration:",
        "",
        *confusion(shown, level_before, BEFORE),
        "",
        "Now:",
        "",
        *confusion(shown, level_now, LEVELS),
        "",
        "The learning rate alone, with the one limit that errs least on the first part:",
        "",
        *confusion(shown, by_rate, sides),
    ]


def section(rows: Sequence[Row]) -> str:
    """Return what the documentation says of the calibration."""
    chosen, held_out = parts(rows)
    lines = [
        f"Of the {len(held_out)} configurations held out ({len(chosen)} were for choosing):",
        "",
        *tables(chosen, held_out),
        "",
        *without_slow(rows, held_out),
    ]
    return "\n".join(lines)


def without_slow(rows: Sequence[Row], shown: Sequence[Row]) -> list[str]:
    """Return the tables without the task whose runs are too short for any verdict."""
    slow = [row for row in rows if row["task"] == SLOW]
    learned = sum(row["outcome"] == LEARNED for row in slow)
    rest = [row for row in shown if row["task"] != SLOW]
    return [
        f"Without {SLOW}, of whose {len(slow)} runs {learned} learned in so few steps, before:",
        "",
        *confusion(rest, level_before, BEFORE),
        "",
        "and now:",
        "",
        *confusion(rest, level_now, LEVELS),
    ]


def results(rows: Sequence[Row]) -> str:
    """Return the page beside the CSV: where it was measured, and both parts."""
    chosen, held_out = parts(rows)
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    versions = ", ".join(sorted({row["torch"] for row in rows}))
    seconds = sum(float(row["seconds"]) for row in rows)
    counts = Counter((row["task"], row["outcome"]) for row in rows)
    tasks = sorted({row["task"] for row in rows})
    lines = [
        "# Calibration of the probe",
        "",
        f"{len(rows)} configurations; commit {commits}; torch {versions}; one CPU thread, "
        f"{seconds / 60:.0f} minutes of processor time. Made by `python -m "
        "benchmarks.probe_calibration`, tables by `python -m benchmarks.probe_confusion`.",
        "",
        f"| task | {' | '.join(OUTCOMES)} |",
        f"|---|{'--:|' * len(OUTCOMES)}",
        *(f"| {task} | {' | '.join(str(counts[task, o]) for o in OUTCOMES)} |" for task in tasks),
        "",
        f"## Held out: {len(held_out)}",
        "",
        *tables(chosen, held_out),
        "",
        *without_slow(rows, held_out),
        "",
        f"## Chosen on: {len(chosen)}",
        "",
        *tables(chosen, chosen),
        "",
        *without_slow(rows, chosen),
    ]
    return "\n".join(lines) + "\n"


def with_section(page: str, text: str) -> str:
    """Return a page with the text between its marks."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{text}\n{END}{tail}"


def main() -> None:
    """Write both pages anew."""
    rows = read_rows()
    RESULTS.write_text(results(rows), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_section(page, section(rows)), encoding="utf-8")


if __name__ == "__main__":
    main()
