"""Put seeded faults before the command line, and write what its user sees.

    python -m benchmarks.faults.table            # docs/reliability.md
    python -m benchmarks.faults.table --minutes 10   # fuzzing: new seeds until the time is up

Every fault must end with a promised exit code, a line that says what is wrong, and no traceback;
where work goes on, with the same result as without the fault.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks.faults.cases import (
    Case,
    all_cases,
    damaged_data,
    damaged_input,
    damaged_run,
    misspelt_recipe,
    odd_value,
)
from benchmarks.faults.cases import broken_weights as damaged_weights
from benchmarks.faults.place import make_place
from benchmarks.faults.watch import Seen
from magneto import __version__

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
PER_GROUP = 25
OUTCOMES = {0: "ran", 2: "refused", 3: "diverged", 130: "interrupted"}
INTRODUCTION = """# Reliability: what a user sees on a bad day

Seeded faults put before the real command line, and what it answered: the exit code, and the first
line of its own that it printed (or the last line, where it ran). A fault counts as **finding**
where there was a traceback, an exit code that is not promised, no word about it, a hang, or, for
damaged caches, killed runs and closed streams, another result than without the fault.

Made by `python -m benchmarks.faults.table` (`--per-group`, `--minutes` for fuzzing with new seeds).
"""


def observe(cases: Iterable[Case], place: Path, say: bool = True) -> list[tuple[Case, Seen]]:
    """Run cases one after the other, each in a folder of its own."""
    found = []
    for case in cases:
        folder = Path(tempfile.mkdtemp(dir=place))
        try:
            seen = case.run(place, folder)
        finally:
            shutil.rmtree(folder)
        text = [
            line.replace(str(folder), "DIR").replace(str(place), "DATA") for line in seen.output
        ]
        found.append((case, Seen(seen.code, text, seen.killed)))
        if say and seen.finding:
            print(f"{case.group}: {case.name}: {seen.finding}\n  " + "\n  ".join(text[-12:]))
    return found


def fuzz(seconds: float, place: Path, seed: int) -> list[tuple[Case, Seen]]:
    """Run new faults until the time is up."""
    began, found, number = time.monotonic(), [], 0
    kinds = (odd_value, misspelt_recipe, damaged_data, damaged_input, damaged_run, damaged_weights)
    while time.monotonic() - began < seconds:
        draw = random.Random(f"fuzz {seed} {number}")
        found += observe([draw.choice(kinds)(draw)], place)
        number += 1
    return found


def page(found: list[tuple[Case, Seen]]) -> str:
    """Return the page: a summary by kind of fault, then every case."""
    groups = dict.fromkeys(case.group for case, _ in found)
    lines = [INTRODUCTION, facts(len(found)), "", "## Summary", ""]
    lines += ["| fault | cases | refused in a line | ran | findings |", "|---|---|---|---|---|"]
    for group in groups:
        seen = [each for case, each in found if case.group == group]
        codes = Counter(each.code for each in seen if not each.finding)
        bad = sum(bool(each.finding) for each in seen)
        lines.append(
            f"| {group} | {len(seen)} | {codes[2]} | {len(seen) - codes[2] - bad} | {bad} |"
        )
    lines += ["", "## Cases", "", "`DATA` is the folder of the data, `DIR` that of the case.", ""]
    lines += ["| fault | what | exit code | what was seen |", "|---|---|---|---|"]
    for case, seen in found:
        outcome = f"**{seen.finding}**" if seen.finding else OUTCOMES.get(seen.code or 0, "")
        lines.append(f"| {case.group} | {code(case.name)} | {seen.code} {outcome} | "
                     f"{code(seen.line)} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def facts(count: int) -> str:
    """Return commit and versions."""
    command = ["git", "-C", str(PAGE.parent), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return (f"{count} cases; commit {commit or 'unknown'}, foundation-transformers {__version__}, "
            f"torch {torch.__version__}, Python {platform.python_version()}, "
            f"{platform.system()} {platform.machine()}.")  # fmt: skip


def code(text: str) -> str:
    """Write text as code in a table's cell."""
    plain = "".join(c if c.isprintable() else "\ufffd" for c in text).replace("`", "'")
    short = plain if len(plain) <= 160 else plain[:159] + "…"
    return f"`{short}`".replace("|", "\\|") if short else ""


def main() -> None:
    """Run the program."""
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--per-group", type=int, default=PER_GROUP)
    words.add_argument("--minutes", type=float, help="fuzz with new seeds; writes no page")
    words.add_argument("--seed", type=int, default=int(time.time()), help="of the fuzzing")
    words.add_argument("--out", type=Path, default=PAGE)
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.environ["MAGNETO_CACHE"] = str(place / "cache")
        make_place(place)
        if given.minutes:
            found = fuzz(60 * given.minutes, place, given.seed)
        else:
            found = observe(all_cases(given.per_group), place)
            given.out.write_text(page(found), encoding="utf-8")
    bad = sum(bool(seen.finding) for _, seen in found)
    print(f"{len(found)} cases, {bad} findings" + (f", seed {given.seed}" if given.minutes else ""))
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
