"""Write the generated tables of docs/results and draw the pages' figures.

    python docs/generate_results.py [--check]

A table between `<!-- NAME: ... -->` and `<!-- end of NAME -->` comes from a file of
benchmarks/results. A page's figure shows the first table of the page.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import linear_regression, median, pvariance
from typing import Any

import numpy as np

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
from benchmarks.ladders import RESULTS, read_rows, shape_of  # noqa: E402
from benchmarks.race_effect import table as race_table  # noqa: E402
from magneto.files import read_json  # noqa: E402
from magneto.functional.statistics import t_quantile  # noqa: E402
from magneto.lab.forecast import PRIORS, percent  # noqa: E402
from magneto.lab.trend import LEVEL, Estimate, estimate, fit_law  # noqa: E402
from magneto.theory.placement import find_placement  # noqa: E402

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
    """Yield a table of the time of every step relative to Magneto's, a row for each task."""
    yield f"| {SHAPE} | Magneto Sub-LN, ms per step | {' | '.join(PEERS)} |"
    yield f"|---|{'--:|' * (1 + len(PEERS))}"
    for cell in bench["cells"].values():
        if cell["shape"] == SHAPE:
            own, over = ratios(bench, cell)
            peers = [peer(cell, over, name) for name in PEERS]
            yield f"| {cell['field']} | {own:.1f} | {' | '.join(peers)} |"


def shapes_table(bench: dict[str, Any]) -> Iterator[str]:
    """Yield a table of relative times of steps, a row for each task and shape."""
    head = ["task", "shape", "Magneto Sub-LN, ms", "matrix products alone", "Magneto Pre-LN",
            PEERS[0], "plain torch, memory kept", *PEERS[1:], "other"]  # fmt: skip
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
    """Return the time of a library's step relative to Magneto's in a task."""
    return next((over[name] for name in cell["peers"] if name.startswith(library)), "")


def steps_figure(bench: dict[str, Any]) -> Any:
    """Draw the table of steps, a row of dots for each task and shape."""
    rows = []
    for cell in bench["cells"].values():
        times = medians(cell)
        own = times[bench["reference"]]
        found = [next((times[n] / own for n in cell["peers"] if n.startswith(name)), None)
                 for name in PEERS]  # fmt: skip
        rows.append((f"{cell['field']}, {cell['shape']}", [f and (f, 0.0) for f in found]))
    return dots(PEERS, rows, "time of a step relative to Magneto Sub-LN", 1.0)


def growth_table(found: dict[str, Any]) -> Iterator[str]:
    yield from slopes_table(found)
    yield ""
    yield f"Machine and versions: {scaling_conditions(found)}"


def held_out_table() -> Iterator[str]:
    text = (RESULTS / "ladder-held-out.md").read_text(encoding="utf-8")
    yield text[text.index("|") :].rstrip()


def rate_priors_table() -> Iterator[str]:
    text = (RESULTS / "rate-priors.md").read_text(encoding="utf-8")
    yield text[text.index("|") :].partition("\n\n")[0]


HELD_TITLES = {"best_rate": "measured best rates", "loss": "losses",
               "stable_rate": "largest stable rates"}  # fmt: skip


def held_out_answer(rows: Rungs) -> Iterator[str]:
    """Yield how many measured values lay in their intervals, and the errors of each rule."""
    rungs = {(row["ladder"], row["size"]) for row in rows}
    yield (
        f"Each of {len({row['ladder'] for row in rows})} ladders trains models of increasing size. "
        f"For {len(rungs)} sizes, the results of each placement were predicted from smaller sizes "
        "before training."
    )
    for priors in ("today's", "earlier"):
        held = []
        for what in ("best_rate", "loss", "stable_rate"):
            mine = [row for row in rows if (row["what"], row["priors"]) == (what, priors)]
            if mine:
                inside = sum(row["holds"] == "True" for row in mine)
                held.append(f"{inside} of {len(mine)} {HELD_TITLES[what]}")
        if held:
            *some, last = held
            listed = f"{', '.join(some)} and {last}" if some else last
            yield f"With {priors} priors, {listed} lay in their predicted 80 % intervals."
    rates = [row for row in rows if row["what"] == "best_rate" and row["measured"]]
    off, below, inverse = (median(float(row[name]) for row in rates)
                           for name in ("off", "off_below", "off_inverse"))  # fmt: skip
    yield (
        f"The median error of the predicted best rates is a factor of {off:.2f}. Rule 1 reuses "
        "the best rate of the next smaller size, and has a median error of a factor of "
        f"{below:.2f}. Rule 2 scales the rate of rule 1 in proportion to 1/size, and has a median "
        f"error of a factor of {inverse:.2f}."
    )


def ladders_table(rows: Rungs) -> Iterator[str]:
    """Yield a row for each ladder and commit: how many values lay in their intervals."""
    yield ("| ladder | predicted sizes | values | inside the 80 % interval | median error factor "
           "of the best rate | commit of the predictions |")  # fmt: skip
    yield "|---|---|--:|--:|--:|---|"
    for name, commit in dict.fromkeys((row["ladder"], row["commit"]) for row in rows):
        mine = [row for row in rows if (row["ladder"], row["commit"]) == (name, commit)]
        sizes = ", ".join(dict.fromkeys(row["size"] for row in mine))
        off = median(float(r["off"]) for r in mine if r["what"] == "best_rate" and r["measured"])
        inside = sum(row["holds"] == "True" for row in mine)
        yield (f"| {name}, {shape_of(name)} | {mine[0]['axis']} {sizes} | {len(mine)} | {inside} "
               f"| {off:.2f} | {commit} |")  # fmt: skip


def placements(names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield Sub-LN beside Pre-LN in every ladder, in standard parametrisation.

    "gaps" are logarithms of Sub-LN's loss over Pre-LN's by size, "change" is the slope of a line
    through them per factor of e in size, with its interval. "stable" has nan where no rate failed.
    """
    for name in names:
        lines = read_rows(RESULTS / f"ladder-{name}.csv")
        rows = [next(line["row"] for line in lines if line["row"].split(",")[0] == one)
                for one in ("pre", "sub")]  # fmt: skip
        known = {(line["row"], line["what"], line["size"]): line for line in lines}
        sizes = list(dict.fromkeys(line["size"] for line in lines if line["kind"] == "measured"))
        target = lines[-1]["size"]
        laws = [known[row, "best_rate", target] for row in rows]
        stable = [known.get((row, "stable_rate", sizes[-1])) for row in rows]
        gaps = [math.log(float(known[rows[1], "gap", size]["value"])) for size in sizes]
        yield {
            "name": f"{name}, {shape_of(name)}, {lines[0]['axis']} {', '.join(sizes)}",
            "gaps": gaps,
            "change": slope([math.log(float(size)) for size in sizes], gaps),
            "stable": [float(line["low"]) if line else math.nan for line in stable],
            "exponents": [[float(law[f"exponent{end}"]) for end in ("", "_low", "_high")]
                          for law in laws],
        }  # fmt: skip


def slope(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Return the slope of a line by least squares, and the ends of its interval."""
    fit = linear_regression(x, y)
    residue = sum((b - fit.slope * a - fit.intercept) ** 2 for a, b in zip(x, y, strict=True))
    freedom = len(x) - 2
    half = math.inf
    if freedom:
        error = math.sqrt(residue / freedom / (pvariance(x) * len(x)))
        half = t_quantile((1 + LEVEL) / 2, freedom) * error
    return [fit.slope, fit.slope - half, fit.slope + half]


def placements_answer(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield in how many ladders Sub-LN gains with size, and takes larger rates."""
    trends = Counter((one["change"][1] > 0) - (one["change"][2] < 0) for one in found)
    orders = Counter((sub > pre) - (sub < pre) for pre, sub in (one["stable"] for one in found)
                     if not math.isnan(pre + sub))  # fmt: skip
    gains, loses, unsure = (trends[sign] or "none" for sign in (-1, 1, 0))
    larger, equal, smaller = (orders[sign] or "none" for sign in (1, 0, -1))
    yield (f"**As models grow, Sub-LN's loss falls relative to Pre-LN's in {gains} of {len(found)} "
           f"ladders, and rises in {loses}. In {unsure} of the ladders, the 80 % interval of the "
           "change contains 0. At the largest size, Sub-LN's largest stable rate is larger than "
           f"Pre-LN's in {larger} of the ladders, equal in {equal} and smaller in "
           f"{smaller}.**")  # fmt: skip


def placements_table(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each ladder, with 80 % intervals."""
    yield ("| ladder | Sub-LN's loss relative to Pre-LN's, from the smallest to the largest size | "
           "change per factor of 2.72 in size | largest stable rate at the largest size, Pre-LN "
           "and Sub-LN | exponent of the best rate, Pre-LN and Sub-LN |")  # fmt: skip
    yield "|---|--:|--:|--:|--:|"
    for one in found:
        value, low, high = map(percent, one["change"])
        mark = "**" if one["change"][1] > 0 or one["change"][2] < 0 else ""
        stable = ("–" if math.isnan(rate) else f"{rate:g}" for rate in one["stable"])
        powers = (
            f"{power:.2f} ± {(end - start) / 2:.2f}" for power, start, end in one["exponents"]
        )
        yield (f"| {one['name']} | {', '.join(map(percent, one['gaps']))} "
               f"| {mark}{value} ({low} to {high}){mark} | {' and '.join(stable)} "
               f"| {' and '.join(powers)} |")  # fmt: skip


def rows_table(name: str) -> Iterator[str]:
    """Yield a line for each size and placement of a ladder. Intervals of losses are 80 %."""
    lines = [
        line for line in read_rows(RESULTS / f"ladder-{name}.csv") if line["kind"] == "measured"
    ]
    known = {(line["size"], line["row"], line["what"]): line for line in lines}
    yield f"| {lines[0]['axis']} | placement | loss | best rate | largest stable rate |"
    yield "|--:|---|--:|--:|--:|"
    pairs = dict.fromkeys((line["size"], line["row"]) for line in lines)
    for size, row in sorted(pairs, key=lambda pair: int(pair[0])):
        loss, best, stable = (
            known[size, row, what] for what in ("loss", "best_rate", "stable_rate")
        )
        yield (f"| {size} | {find_placement(row).title} | {interval(loss, '.3f')} "
               f"| {float(best['value']):.2g} | {float(stable['low']):g} |")  # fmt: skip


def parametrizations_table(name: str) -> Iterator[str]:
    """Yield the best rates of a ladder whose rows differ in placement and parametrisation."""
    lines = [line for line in read_rows(RESULTS / f"ladder-{name}.csv")
             if line["what"] == "best_rate"]  # fmt: skip
    known = {(line["row"], line["size"]): line for line in lines}
    *sizes, target = dict.fromkeys(line["size"] for line in lines)
    yield f"| | {' | '.join(f'width {size}' for size in sizes)} | power of the width |"
    yield f"|---|{'--:|' * (len(sizes) + 1)}"
    for row in sorted(dict.fromkeys(row for row, _ in known), key=lambda row: row.split(",")[0]):
        placement, _, how = row.partition(",parametrization=")
        rates = [interval(known[row, size], ".2g") for size in sizes]
        yield (f"| {find_placement(placement).title}, {how} | {' | '.join(rates)} "
               f"| {interval(known[row, target], '.2f', 'exponent')} |")  # fmt: skip


def both_parametrizations_table(names: Sequence[str]) -> Iterator[str]:
    """Yield the exponents and the losses of two ladders that differ in the parametrisation.

    `names` are the ladders with the standard parametrisation and with mup. The losses are those
    of the largest size of the second ladder.
    """
    known = [{(line["row"], line["what"], line["size"]): line for line in read_rows(RESULTS / file)}
             for file in (f"ladder-{name}.csv" for name in names)]  # fmt: skip
    sizes = [list(dict.fromkeys(size for _, _, size in lines)) for lines in known]
    last, hows = sizes[1][-2], ("standard", "mup")
    powers = [f"power of the width, {how}, widths {some[0]} to {some[-2]}"
              for how, some in zip(hows, sizes, strict=True)]  # fmt: skip
    losses = [f"loss at width {last}, {how}" for how in hows]
    yield f"| | {' | '.join([*powers, *losses])} |"
    yield "|---|--:|--:|--:|--:|"
    for row in dict.fromkeys(row for row, _, _ in known[1]):
        laws = [interval(lines[row, "best_rate", some[-1]], ".2f", "exponent")
                for lines, some in zip(known, sizes, strict=True)]  # fmt: skip
        at = [interval(lines[row, "loss", last], ".3f") for lines in known]
        yield f"| {find_placement(row).title} | {' | '.join([*laws, *at])} |"


def fine_rates_table(rows: Rungs) -> Iterator[str]:
    """Yield each placement's best rate by width from runs at closely spaced rates, and its power.

    The power is fitted with the prior of a ladder.
    """
    widths = list(dict.fromkeys(row["width"] for row in rows))
    yield f"| | {' | '.join(f'width {width}' for width in widths)} | power of the width |"
    yield f"|---|{'--:|' * (len(widths) + 1)}"
    for placement in dict.fromkeys(row["placement"] for row in rows):
        best = [fitted_rate([row for row in rows if (row["placement"], row["width"])
                             == (placement, width)]) for width in widths]  # fmt: skip
        points = [(float(width), rate["value"], rate["error"])
                  for width, rate in zip(widths, best, strict=True)]  # fmt: skip
        law = fit_law(points, points[-1][0], PRIORS["best_rate"])
        cells = [*(interval(rate, ".2f") for rate in best), interval(law, ".2f", "exponent")]
        yield f"| {find_placement(placement).title} | {' | '.join(cells)} |"


def fitted_rate(rows: Rungs) -> Estimate:
    """Return the minimum of a parabola fitted to the log of the mean losses at all rates.

    Its interval comes from all ways to draw as many seeds. Where a draw's parabola has no minimum
    among the rates, its minimum is the rate with the lowest mean loss.
    """
    runs = {(float(row["learning_rate"]), row["seed"]): float(row["loss"]) for row in rows}
    rates, seeds = (sorted(set(names)) for names in zip(*runs, strict=True))
    losses = np.array([[runs[rate, seed] for seed in seeds] for rate in rates])
    count = len(seeds)
    draws = [list(range(count)), *product(range(count), repeat=count)]
    x, y = np.log(rates), np.log(losses[:, draws].mean(2))
    curve, tilt, _ = np.polyfit(x, y, 2)
    place = -tilt / curve / 2
    inside = (curve > 0) & (place >= x[0]) & (place <= x[-1])
    best, *drawn = np.where(inside, place, x[y.argmin(0)])
    return estimate(best, math.sqrt(count / (count - 1)) * np.std(drawn), count - 1)


def interval(line: Mapping[str, Any], digits: str, what: str = "") -> str:
    """Return a value, or with "exponent" the exponent of its law, and its 80 % interval."""
    ends = [f"{what}{end}" for end in ("", "_low", "_high")] if what else ["value", "low", "high"]
    value, low, high = (format(float(line[end]), digits) for end in ends)
    return f"{value} ({low} to {high})"


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
             for name in (*TABLES, "speed", "ladder", "sizes", "probe")}  # fmt: skip
    rungs = read_rows(RESULTS / "ladder-held-out.csv")
    beside = list(placements(dict.fromkeys(row["ladder"] for row in rungs)))
    tables = {
        "speed": {
            "steps": steps_table(bench),
            "shapes": shapes_table(bench),
            "growth": growth_table(grown),
        },
        "ladder": {
            "answer": held_out_answer(rungs),
            "held-out": held_out_table(),
            "rate-priors": rate_priors_table(),
            "ladders": ladders_table(rungs),
            "race": race_table(),
        },
        "sizes": {
            "placements-answer": placements_answer(beside),
            "placements": placements_table(beside),
            "four-placements": rows_table("text-width-24"),
            "mup": parametrizations_table("text-width-mup"),
            "mup-24": both_parametrizations_table(("text-width-24", "text-width-24-mup")),
            "mup-fine": fine_rates_table(read_rows(RESULTS / "mup-fine-rates.csv")),
        },
    }
    for page, parts in tables.items():
        for name, lines in parts.items():
            texts[page] = filled(texts[page], name, lines)
    draws = {name: partial(dots, *first_table(texts[name]), *how) for name, how in TABLES.items()}
    draws |= {
        "probe": partial(bars, *first_table(texts["probe"]), "runs"),
        "ladder": partial(predictions, rungs),
        "speed": partial(steps_figure, bench),
        "scaling": partial(scaling, grown["curves"]),
    }
    made = {pages / f"{name}.md": texts[name] for name in tables}
    for name, draw in draws.items():
        made |= files(figures, name, draw)
    return made


def main(words: list[str]) -> int:
    """Write the files; with --check, only list those that are out of date."""
    return write_or_check(generated(), DOCS, "generate_results.py", words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
