"""Write the generated tables of docs/results and draw the pages' figures.

    python docs/generate_results.py [--check]

A table between `<!-- NAME: ... -->` and `<!-- end of NAME -->` comes from a file of
benchmarks/results. A page's figure shows the first table of the page.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

from draw_results import bars, dots, files, first_table, predictions, scaling  # noqa: E402
from write_pages import write_or_check  # noqa: E402

from benchmarks.bench_tables import (  # noqa: E402
    conditions,
    medians,
    scaling_conditions,
    slopes_table,
)
from magneto.files import read_json  # noqa: E402

RESULTS = DOCS.parent / "benchmarks" / "results"
# Columns of the table of steps, as the beginnings of the contenders' names.
PEERS = ("plain torch", "transformers", "torchscale", "x-transformers")
Rungs = list[dict[str, str]]
KEPT = "plain torch, freed memory kept"
SHAPE = "6 x 256"  # of the first table
# Pages whose figure shows their first table: the label of the axis, and the position of a line.
TABLES = {
    "language": ("bits per byte, lower is better", None),
    "translation": ("BLEU, higher is better", None),
    "images": ("accuracy or mean IoU, higher is better", None),
    "speech": ("error rate in per cent, lower is better", None),
    "vision-language": ("accuracy or mean recall, higher is better", None),
}


def steps_table(bench: dict[str, Any]) -> Iterator[str]:
    """Yield a table of the time of every step relative to Magneto's, a row for each field."""
    yield f"| {SHAPE} | Magneto Sub-LN, ms per step | {' | '.join(PEERS)} |"
    yield f"|---|{'--:|' * (1 + len(PEERS))}"
    for cell in bench["cells"].values():
        if cell["shape"] == SHAPE:
            own, over = ratios(bench, cell)
            peers = [peer(cell, over, name) for name in PEERS]
            yield f"| {cell['field']} | {own:.1f} | {' | '.join(peers)} |"


def shapes_table(bench: dict[str, Any]) -> Iterator[str]:
    """Yield a table of relative times of steps, a row for each field and shape."""
    head = ["field", "shape", "Magneto Sub-LN, ms", "products alone", "Magneto Pre-LN", PEERS[0],
            "plain torch, memory kept", *PEERS[1:], "other"]  # fmt: skip
    yield f"| {' | '.join(head)} |"
    yield f"|---|---|{'--:|' * (len(head) - 3)}---|"
    for cell in bench["cells"].values():
        own, over = ratios(bench, cell)
        others = [f"{name} {over[name]}" for name in cell["peers"]
                  if name in over and not name.startswith(PEERS)]  # fmt: skip
        yield " | ".join([
            f"| {cell['field']} | {cell['shape']}", f"{own:.1f}", over[bench["limit"]],
            over["magneto pre"], over[PEERS[0]], over[KEPT],
            *(peer(cell, over, name) for name in PEERS[1:]), f"{', '.join(others)} |",
        ])  # fmt: skip
    yield ""
    yield f"Machine and versions: {conditions(bench)}"


def ratios(bench: dict[str, Any], cell: dict[str, Any]) -> tuple[float, dict[str, str]]:
    """Return the milliseconds of Magneto's step, and every step's time relative to it as text."""
    times = medians(cell)
    own = times[bench["reference"]]
    return own, {name: f"{time / own:.2f}" for name, time in times.items()}


def peer(cell: dict[str, Any], over: dict[str, str], library: str) -> str:
    """Return the time of a library's step relative to Magneto's in a field."""
    return next((over[name] for name in cell["peers"] if name.startswith(library)), "")


def steps_figure(bench: dict[str, Any]) -> Any:
    """Draw the table of steps, a row of dots for each field and shape."""
    rows = []
    for cell in bench["cells"].values():
        times = medians(cell)
        own = times[bench["reference"]]
        found = [next((times[n] / own for n in cell["peers"] if n.startswith(name)), None)
                 for name in PEERS]  # fmt: skip
        rows.append((f"{cell['field']}, {cell['shape']}", [f and (f, 0.0) for f in found]))
    return dots(PEERS, rows, "time of a step relative to Magneto Sub-LN", 1.0)


def growth_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield the slopes and the machine of the measurement."""
    yield from slopes_table(found)
    yield ""
    yield f"Machine and versions: {scaling_conditions(found)}"


def held_out_table() -> Iterator[str]:
    """Yield the table of held-out rungs and the sentence below it."""
    text = (RESULTS / "ladder-held-out.md").read_text(encoding="utf-8")
    yield text[text.index("|") :].rstrip()


def held_out_answer(rows: Rungs) -> Iterator[str]:
    """Yield how many measured values lay in their intervals, and the errors of each rule."""
    held = {}
    for what in ("best_rate", "loss", "stable_rate"):
        mine = [row for row in rows if row["what"] == what]
        held[what] = f"{sum(row['holds'] == 'True' for row in mine)} of {len(mine)}"
    rates = [row for row in rows if row["what"] == "best_rate" and row["measured"]]
    off, below, inverse = (median(float(row[name]) for row in rates)
                           for name in ("off", "off_below", "off_inverse"))  # fmt: skip
    yield (
        f"{held['best_rate']} measured best rates, {held['loss']} losses and "
        f"{held['stable_rate']} largest stable rates lay in their predicted 80 % intervals. The "
        f"predicted best rates were off by a median factor of {off:.2f}. The best rates of the "
        f"size below were off by {below:.2f}, and those rates scaled by 1/size by {inverse:.2f}."
    )


def ladders_table(rows: Rungs) -> Iterator[str]:
    """Yield a row for each ladder: its sizes, and how many values lay in their intervals."""
    yield ("| ladder | sizes | values | inside the 80 % interval | median error factor of the best "
           "rate | commit |")  # fmt: skip
    yield "|---|---|--:|--:|--:|---|"
    for name in dict.fromkeys(row["ladder"] for row in rows):
        mine = [row for row in rows if row["ladder"] == name]
        last = max(mine, key=lambda row: float(row["size"]))
        sizes = f"{last['axis']} {last['from'].replace(' ', ', ')}, {last['size']}"
        off = median(float(r["off"]) for r in mine if r["what"] == "best_rate" and r["measured"])
        inside = sum(row["holds"] == "True" for row in mine)
        yield f"| {name} | {sizes} | {len(mine)} | {inside} | {off:.2f} | {mine[0]['commit']} |"


def filled(page: str, name: str, lines: Iterator[str]) -> str:
    """Return a page with the lines of a table between its two comments."""
    begin, end = re.search(rf"<!-- {name}: .* -->\n", page), f"<!-- end of {name} -->"
    assert begin and end in page
    return page[: begin.end()] + "\n" + "\n".join(lines) + "\n\n" + page[page.index(end) :]


def generated() -> dict[Path, str]:
    """Return the contents of the pages with generated tables and of all figures, by path."""
    bench, grown = read_json(RESULTS / "bench-cpu.json"), read_json(RESULTS / "scaling-cpu.json")
    pages, figures = DOCS / "results", DOCS / "figures"
    texts = {name: (pages / f"{name}.md").read_text(encoding="utf-8")
             for name in (*TABLES, "speed", "ladder", "probe")}  # fmt: skip
    texts["speed"] = filled(texts["speed"], "steps", steps_table(bench))
    texts["speed"] = filled(texts["speed"], "shapes", shapes_table(bench))
    texts["speed"] = filled(texts["speed"], "growth", growth_table(grown))
    with (RESULTS / "ladder-held-out.csv").open(encoding="utf-8") as file:
        rungs = list(csv.DictReader(file))
    texts["ladder"] = filled(texts["ladder"], "answer", held_out_answer(rungs))
    texts["ladder"] = filled(texts["ladder"], "held-out", held_out_table())
    texts["ladder"] = filled(texts["ladder"], "ladders", ladders_table(rungs))
    draws = {name: partial(dots, *first_table(texts[name]), *how) for name, how in TABLES.items()}
    draws |= {
        "probe": partial(bars, *first_table(texts["probe"]), "runs"),
        "ladder": partial(predictions, rungs),
        "speed": partial(steps_figure, bench),
        "scaling": partial(scaling, grown["curves"]),
    }
    made = {pages / f"{name}.md": texts[name] for name in ("speed", "ladder")}
    for name, draw in draws.items():
        made |= files(figures, name, draw)
    return made


def main(words: list[str]) -> int:
    """Write the files; with --check, only list those that are out of date."""
    return write_or_check(generated(), DOCS, "generate_results.py", words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
