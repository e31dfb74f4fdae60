"""Effect of `--race` on finished ladders, replayed from the files of their runs.

    python -m benchmarks.race_effect runs/ladders/text-width [FOLDER ...]

This writes the effects on the given ladders into benchmarks/results/race-effect.csv. Other ladders
of the file stay. `python docs/generate_results.py` writes the table of the page.

The rule of `--race` (`magneto.lab.sweep.is_behind`) is applied to every run that learned, at half
of its steps, as if one worker had trained the ladder with `--race`: a run is compared with the runs
that ended before it. The table counts the stopped runs, the saved steps, and the stopped runs at
the best rate of a placement and at the rates next to it. No other rates determine the best rate and
its loss.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.ladders import LADDERS, RESULTS, read_rows
from benchmarks.probe_ladders import outcomes
from magneto.files import read_object, write_bytes
from magneto.lab.grid import RATE, SEED, cell_directory, is_done, read_sweep
from magneto.lab.ladder import read_ladder
from magneto.lab.outcome import FINISHED
from magneto.lab.report.report import as_csv
from magneto.lab.sweep import is_behind
from magneto.training.logging import read_metrics

FILE = RESULTS / "race-effect.csv"
COUNTS = ("runs", "steps", "stopped", "saved", "best", "next")


def ended(run: Path) -> float:
    """Return the time at which a run ended."""
    return (run / "outcome.json").stat().st_mtime


def half(run: Path, steps: int) -> int:
    """Return the first logged step at or beyond half of the steps."""
    logged = [row["step"] for row in read_metrics(run) if "loss" in row]
    return min(step for step in logged if 2 * step >= steps)


def race(folder: Path) -> Counter[str]:
    """Return the counts of runs and steps of a ladder."""
    ladder, counts = read_ladder(folder), Counter[str]()
    rungs = read_object(folder / "forecast.json", "rungs")["rungs"]
    became = outcomes(rungs)
    for rung in rungs:
        place = ladder.folder(folder, rung["size"])
        cells = [cell for cell in read_sweep(place).cells() if is_done(place, cell)]
        cells.sort(key=lambda cell: ended(cell_directory(place, cell)))
        for number, cell in enumerate(cells):
            run, rate, steps = cell_directory(place, cell), float(cell.values[RATE]), rung["steps"]
            counts.update(runs=1, steps=steps)
            if became[rung["size"], cell.row, rate, int(cell.values[SEED])] != FINISHED:
                continue
            step = half(run, steps)
            earlier = ladder.sweep(rung["size"], [other.values for other in cells[: number + 1]])
            if is_behind(place, earlier, cell, step):
                counts.update(stopped=1, saved=steps - step)
                row = rung["rows"][cell.row]
                tried = sorted({known["learning_rate"] for known in row["cells"]})
                away = abs(tried.index(rate) - tried.index(row["best_tried"]))
                counts.update(best=away == 0, next=away == 1)
    return counts


def table() -> Iterator[str]:
    """Yield the effects on all ladders of the file as Markdown."""
    yield ("| ladder | runs | stopped runs | saved steps | stopped at the best rate "
           "| stopped next to the best rate |")  # fmt: skip
    yield "|---|--:|--:|--:|--:|--:|"
    effects = published()
    for name, counts in {**effects, "all": sum(effects.values(), Counter())}.items():
        share = counts["saved"] / counts["steps"]
        yield (f"| {name} | {counts['runs']} | {counts['stopped']} | {share:.1%} "
               f"| {counts['best']} | {counts['next']} |")  # fmt: skip


def published() -> dict[str, Counter[str]]:
    """Return the counts of each ladder of the file."""
    return {row["ladder"]: Counter({name: int(row[name]) for name in COUNTS})
            for row in read_rows(FILE)}  # fmt: skip


def main(folders: list[str]) -> None:
    """Replay the ladders in the folders, write their counts into the file, print the table."""
    effects = published() | {Path(name).name: race(Path(name)) for name in folders}
    rows = [{"ladder": name, **{what: effects[name][what] for what in COUNTS}}
            for name in sorted(effects, key=list(LADDERS).index)]  # fmt: skip
    write_bytes(FILE, as_csv(("ladder", *COUNTS), rows))
    print("\n".join(table()))


if __name__ == "__main__":
    main(sys.argv[1:])
