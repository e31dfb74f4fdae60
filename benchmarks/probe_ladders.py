"""Comparison of the probe's verdicts with the outcomes of a ladder's cells.

    OMP_NUM_THREADS=1 python -m benchmarks.probe_ladders runs/ladders/lm-width [FOLDER ...]

Every configuration of the first seed is probed as by `magneto probe`. Its verdict is kept in
FOLDER/probe.csv, so the same command resumes where it was stopped. The table shows how often
decided verdicts were right, and the same for two trivial rules: the rate alone, and the placement
with its depth.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from magneto.files import read_object
from magneto.lab.diagnosis import diagnose
from magneto.lab.grid import RATE, SEED, read_sweep
from magneto.lab.ladder import read_ladder
from magneto.lab.outcome import FINISHED, MISSING
from magneto.lab.verdict import LEVELS

STEPS = 5
# The rate limit with the fewest errors in the calibration (results/probe-calibration.md), and
# the depth beyond which placements with a normalised skip connection are expected to fail.
RATE_LIMIT, DEEP, FRAGILE = 0.012, 12, ("post", "deepnorm")
COLUMNS: tuple[str, ...] = (
    "rung", "cell", "placement", "layers", "learning_rate", "verdict", "outcome",
)  # fmt: skip


def outcomes(rungs: list[dict[str, Any]]) -> dict[tuple[Any, ...], str]:
    """Return the outcome of every run of a ladder by size, row, learning rate and seed."""
    return {
        (rung["size"], row, cell["learning_rate"], cell["seed"]): cell["status"]
        for rung in rungs
        for row, part in rung["rows"].items()
        for cell in part["cells"]
    }


def probe_ladder(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each cell of a ladder's first seed; probe cells without a verdict."""
    ladder, path = read_ladder(folder), folder / "probe.csv"
    rungs = read_object(folder / "forecast.json", "rungs")["rungs"]
    became = outcomes(rungs)
    rows = list(csv.DictReader(path.open())) if path.is_file() else []
    known = {(row["rung"], row["cell"]) for row in rows}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not rows:
            writer.writeheader()
        for size in (rung["size"] for rung in rungs):
            sweep = read_sweep(ladder.folder(folder, size))
            for cell in sweep.cells():
                place = (size, cell.row, float(cell.values[RATE]), int(cell.values[SEED]))
                skipped = place[3] != ladder.seeds[0] or became.get(place, MISSING) == MISSING
                if skipped or (str(size), cell.name) in known:
                    continue
                made = diagnose(sweep.load(cell), steps=STEPS, seeds=0)
                row = {
                    "rung": str(size), "cell": cell.name, "placement": made.placement.name,
                    "layers": str(max(made.layers)), "learning_rate": str(place[2]),
                    "verdict": made.verdict.level, "outcome": became[place],
                }  # fmt: skip
                writer.writerow(row)
                file.flush()
                rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return verdicts against outcomes, and how often each rule was right."""
    outcomes = [FINISHED, "did not learn", "diverged"]
    counts = Counter((row["verdict"], row["outcome"]) for row in rows)
    lines = [f"| verdict | {' | '.join(outcomes)} |", f"|---|{'--:|' * len(outcomes)}"]
    for level in LEVELS:
        lines.append(f"| {level} | {' | '.join(str(counts[level, o]) for o in outcomes)} |")
    decided = [row for row in rows if row["verdict"] != "not decided"]
    rules = {
        "the probe": lambda row: row["verdict"] == "sound",
        f"a rate below {RATE_LIMIT}": lambda row: float(row["learning_rate"]) < RATE_LIMIT,
        f"no {' or '.join(FRAGILE)} deeper than {DEEP} layers": lambda row: (
            not (row["placement"] in FRAGILE and int(row["layers"]) > DEEP)
        ),
    }
    lines += ["", f"| rule | right, of {len(decided)} decided | right, of all |",
              "|---|--:|--:|"]  # fmt: skip
    for name, rule in rules.items():
        right = [rule(row) == (row["outcome"] == FINISHED) for row in decided]
        every = [rule(row) == (row["outcome"] == FINISHED) for row in rows]
        whole = "–" if name == "the probe" else f"{sum(every)} of {len(rows)}"
        lines.append(f"| {name} | {sum(right)} | {whole} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table([row for name in sys.argv[1:] for row in probe_ladder(Path(name))]))
