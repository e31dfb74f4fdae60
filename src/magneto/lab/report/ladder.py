"""The page of a ladder: a question a section, with its figures and its table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from magneto.figures import FAINT
from magneto.files import write_bytes
from magneto.lab.foretelling import QUANTITIES, percent, spread
from magneto.lab.outcome import group_cells, rate_text
from magneto.lab.report.figures import SIZE, draw_scores, log_y
from magneto.lab.report.plot import STYLE, Drawing, Plot, Series, series_of, swatch
from magneto.lab.report.report import (
    FIGURES,
    PAGE,
    TABLE,
    TEXT,
    script_json,
    template,
    write_figures,
)

# Half-width of an interval at 80 %, in standard errors; and how far beyond what was measured a
# figure follows an interval.
Z80, FAR = 1.2816, 3.0
COLUMNS: tuple[str, ...] = (
    "axis", "size", "row", "what", "kind", "value", "low", "high", "exponent", "exponent_low",
    "exponent_high",
)  # fmt: skip
RATES = (("best_rate", "best rate"), ("stable_rate", "largest stable rate"))
MEASURED = tuple((f"measured.{one.name}", one.title) for one in QUANTITIES)
# What is shown over size: keys of a rung's row and of what is foretold, and their titles.
SHOWN = (*RATES, ("loss", "loss"), ("sensitivity", "sensitivity"), *MEASURED)
Found = Mapping[str, Any]


@dataclass(frozen=True)
class Section:
    """One question.

    Attributes:
        name: Of its place in the page.
        heading: The question.
        head: Of its table.
        rows: Of its table.
        note: Under it.
        drawings: Its figures.
    """

    name: str
    heading: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    drawings: Sequence[Drawing] = field(default_factory=tuple)


def write_ladder(found: Found, directory: Path) -> Path:
    """Write page, text, table and figures of a ladder; return the page's path.

    Args:
        found: What `ladder.collect_ladder` returns.
        directory: Where; each file is written aside and renamed.
    """
    series = series_of(list(found["rows"]), dict(found["rows"]))
    sections = list(questions(found, series))
    drawings = [drawing for section in sections for drawing in section.drawings]
    words = {"found": found, "sections": sections, "facts": facts(found)}
    page = template("ladder.html.jinja").render(
        **words, legend=list(series.values()), swatch=swatch, hits=script_json(drawings)
    )
    write_figures(drawings, directory / FIGURES)
    write_bytes(directory / TABLE, write_table(found).encode())
    write_bytes(directory / TEXT, template("ladder.md.jinja").render(**words).encode())
    write_bytes(directory / PAGE, page.encode())
    return directory / PAGE


def facts(found: Found) -> list[tuple[str, str]]:
    """Return names and texts: what was run, on what."""
    changes = " ".join(f"--{key} {value}" for key, value in found["overrides"].items())
    return [
        ("recipe", found["recipe"]),
        ("changed in all runs", changes or "nothing"),
        ("seeds", ", ".join(map(str, found["seeds"]))),
        ("runs", f"{found['cells']}; {found['hours']:.2f} hours, one after the other"),
        ("summed up", found["created"]),
        *((name, ", ".join(values)) for name, values in found["environment"].items()),
    ]


def questions(found: Found, series: Mapping[str, Series]) -> Iterator[Section]:
    """Yield the page's sections."""
    head = ["", *map(str, found["sizes"]), f"{found['target']}, foretold", "power of size"]
    for name, heading, shown, note in (
        ("rate", "Which learning rate", RATES,
         "The best rate is the vertex of a parabola in log rate, its interval by bootstrap over "
         "seeds; up to the largest stable rate, from the best one on, every run learned. "
         "Intervals are for 80 %; foretold ones for a value as it would be measured there."),
        ("loss", "Which placement, and what loss", SHOWN[2:3], baseline_note(found)),
        ("sensitivity", "How much the rate matters", SHOWN[3:4],
         "The mean over rates, uniform in their logarithm, of the smaller of the final loss and "
         "the loss at initialisation, less the smallest loss (arXiv 2309.14322); over the rates "
         "that all rungs have in common, by the first seed."),
        ("trouble", "What would break first", MEASURED,
         "Of the runs at the best rate that was tried: the largest over a few watched steps, of "
         "the gradient the smallest; geometric means over seeds. The update over the theory's "
         "bound is one SGD step's on a label's logit, at initialisation."),
    ):  # fmt: skip
        there = [one for one in shown if any(points(found, row, one[0]) for row in found["rows"])]
        rows = [line for key, title in there for line in table_lines(found, key, title)]
        if name == "loss":
            rows += gap_lines(found)
        drawings = [draw_over_size(found, series, key, title) for key, title in there]
        yield Section(name, heading, head, rows, note, drawings)
    yield held_out_section(found)
    note = "Bars: 95 % confidence intervals over seeds; rates far from the best one have one seed."
    drawings = [draw_rung(found, rung, series) for rung in found["rungs"]]
    yield Section("rungs", "Every rung", [], [], note, drawings)


def baseline_note(found: Found) -> str:
    """Say how far the losses of the largest rung are below the trivial baseline's."""
    last = found["rungs"][-1]
    note = ("Validation loss where the parabola is lowest; seeds of two rows are held against each "
            "other pair by pair. ")  # fmt: skip
    if not last.get("baseline_loss"):
        return note
    shares = [f"{found['rows'][row]} {1 - part['loss']['value'] / last['baseline_loss']:.0%}"
              for row, part in last["rows"].items() if "loss" in part]  # fmt: skip
    return (f"{note}The trivial baseline has {last['baseline_loss']:.4g}; on the largest rung the "
            f"loss is below it by {', '.join(shares)}.")  # fmt: skip


def reading(part: Found, key: str) -> Any:
    """Return what a row has of a key, which may have a dot; None if it has nothing."""
    for name in key.split("."):
        part = part.get(name) or {}
    return part or None


def points(found: Found, row: str, key: str) -> list[tuple[int, Any]]:
    """Return the sizes at which a row has a value, with it."""
    both = [(rung["size"], reading(rung["rows"].get(row, {}), key)) for rung in found["rungs"]]
    return [(size, value) for size, value in both if value is not None]


def table_lines(found: Found, key: str, title: str) -> Iterator[list[str]]:
    """Yield a line for each row: what was measured on every rung, and what is foretold."""
    digits = 4 if key == "loss" else 3
    for row, name in found["rows"].items():
        known = dict(points(found, row, key))
        cells = [written(known.get(size), digits) for size in found["sizes"]]
        if key == "stable_rate":
            cells = [stable_text(rung["rows"].get(row, {})) for rung in found["rungs"]]
        law = reading(found["foretold"]["rows"].get(row, {}), key)
        yield [f"{name}, {title}", *cells, written(law, digits), exponent(law)]


def written(value: Any, digits: int) -> str:
    """Write a value, with its interval where it has one."""
    if not isinstance(value, Mapping):
        return "–" if value is None else f"{value:.{digits}g}"
    return spread(value, digits) if value.get("low") else f"{value['value']:.{digits}g}"


def stable_text(part: Found) -> str:
    """Write a largest stable rate, and the next one that failed."""
    if part.get("largest_stable") is None:
        return "–"
    after = part["next_failed"]
    said = "the largest tried" if after is None else f"{rate_text(after)} fails"
    return f"{rate_text(part['largest_stable'])}; {said}"


def exponent(law: Found | None) -> str:
    """Write a law's exponent with its interval."""
    if not law:
        return "–"
    return f"{law['exponent']:.2f} ({law['exponent_low']:.2f} to {law['exponent_high']:.2f})"


def gap_lines(found: Found) -> Iterator[list[str]]:
    """Yield how far each row's loss is above the first one's, and where that goes."""
    told = found["foretold"]["rows"]
    first = next((row for row in found["rows"] if row in told), "")
    for row, law in told[first]["gaps"].items() if first else ():
        both = [[rung["rows"][name]["loss"]["value"] for name in (first, row)]
                for rung in found["rungs"]]  # fmt: skip
        gaps = [percent(math.log(theirs / mine)) for mine, theirs in both]
        ends = f"{percent(law['value'])} ({percent(law['low'])} to {percent(law['high'])})"
        per_e = [percent(law[name]) for name in ("exponent", "exponent_low", "exponent_high")]
        yield [f"{found['rows'][row]}, loss above {found['rows'][first]}'s", *gaps, ends,
               f"{per_e[0]} ({per_e[1]} to {per_e[2]}) for e times the size"]  # fmt: skip


def held_out_section(found: Found) -> Section:
    """Show what was foretold of rungs before they were trained, beside what came out."""
    titles, rows = dict(SHOWN), []
    for entry in found["held_out"]:
        digits = 4 if entry["what"] in ("loss", "gap") else 3
        title = titles.get(entry["what"]) or (
            f"loss over that of {found['rows'].get(entry['against'], entry['against'])}"
        )
        below = ", ".join(map(str, entry["from"]))
        rivals = [written(rival["value"], 3) for rival in entry.get("rivals", {}).values()]
        rows.append([
            f"{entry['size']} from {below}: {found['rows'].get(entry['row'], entry['row'])}, "
            f"{title}", written(entry, digits), written(entry["measured"], digits),
            "yes" if entry["holds"] else "no", *(rivals or ["–", "–"]),
        ])  # fmt: skip
    head = ["rung", "foretold", "measured", "in the interval", "the rate below",
            "rate times 1/size"]  # fmt: skip
    return Section("held-out", "Foretold and measured", head, rows, found["held_out_text"])


def draw_rung(found: Found, rung: Found, series: Mapping[str, Series]) -> Drawing:
    """Draw the score of a rung against the rate."""
    cells = [cell for part in rung["rows"].values() for cell in part["cells"]]
    shown = {**rung, "cells": cells, "placements": list(series),
             "learning_rates": sorted({cell["learning_rate"] for cell in cells})}  # fmt: skip
    name, title = f"rung-{rung['size']}", f"{found['axis']} {rung['size']}"
    return draw_scores(shown, group_cells(shown), series, name, title)


def draw_over_size(found: Found, series: Mapping[str, Series], key: str, title: str) -> Drawing:
    """Draw something of every row over size on two logarithmic axes, and what is foretold of it.

    A dashed line is the fitted law, a hollow marker what it foretells of the target.
    """
    plot = Plot(key.replace(".", "-").replace("_", "-") + "-over-size", SIZE, title=title)
    axes, sizes, target = plot.main, found["sizes"], found["target"]
    limits: list[float] = []
    with rc_context(STYLE):
        for position, (row, looks) in enumerate(series.items()):
            # Rows stand side by side at each size.
            shift = 1 + 0.03 * (position - (len(series) - 1) / 2)
            known = [(size * shift, *ends(value), f"{size}")
                     for size, value in points(found, row, key)]  # fmt: skip
            plot.line(looks, [p[0] for p in known], [p[1] for p in known], marker=looks.marker)
            law = reading(found["foretold"]["rows"].get(row, {}), key)
            if law:
                start = law["value"] * (sizes[0] / target) ** law["exponent"]
                line: dict[str, Any] = {"linewidth": 0.7, "linestyle": (0, (3, 2))}
                plot.line(looks, [sizes[0], target], [start, law["value"]], **line)
                mark: dict[str, Any] = {"marker": looks.marker, "fillstyle": "none"}
                plot.line(looks, [target * shift], [law["value"]], **mark)
                known.append((target * shift, *ends(law), f"{target}, foretold"))
            for x, value, low, high, _ in known:
                plot.belongs(looks, axes.plot([x, x], [low, high], color=looks.light, linewidth=1))
                limits += [max(low, value / FAR), value, min(high, value * FAR)]
            plot.hover(looks, [(x, value, f"{size}: {value:.3g} ({low:.3g} to {high:.3g})")
                               for x, value, low, high, size in known])  # fmt: skip
        axes.set_xscale("log")
        axes.set(xlabel=found["axis"], xlim=(sizes[0] / 1.25, target * 1.25))
        axes.xaxis.set_minor_locator(FixedLocator([]))
        axes.xaxis.set_major_locator(FixedLocator([*sizes, target]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:.0f}"))
        axes.axvline(target, color=FAINT, linewidth=0.6, linestyle=(0, (1, 2)))
        log_y(axes)
        wide = max(limits) / min(limits)
        axes.set_ylim(min(limits) / wide**0.05, max(limits) * wide**0.05)
        # Within a factor of three there are too few round numbers.
        few = FuncFormatter(lambda value, _: f"{value:.3g}") if wide < 3 else NullFormatter()
        axes.yaxis.set_minor_formatter(few)
    return plot.finish()


def ends(value: Any) -> tuple[float, float, float]:
    """Return a value with the ends of its interval; equal to it where none is known."""
    if not isinstance(value, Mapping):
        return value, value, value
    if value.get("low"):
        return value["value"], value["low"], value["high"]
    factor = math.exp(Z80 * (value.get("error") or 0.0))
    return value["value"], value["value"] / factor, value["value"] * factor


def write_table(found: Found) -> str:
    """Return every number over size as a row of CSV: measured ones, then foretold ones."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    told = found["foretold"]
    for kind, rung in [*(("measured", rung) for rung in found["rungs"]), ("foretold", told)]:
        for row, part in rung["rows"].items():
            shared = {"axis": found["axis"], "size": rung["size"], "row": row, "kind": kind}
            for key, _ in SHOWN:
                value = reading(part, key)
                if value is not None:
                    law = value if isinstance(value, Mapping) else {}
                    numbers = dict(zip(("value", "low", "high"), ends(value), strict=True))
                    writer.writerow({**shared, **law, **numbers, "what": key.rpartition(".")[2]})
    return out.getvalue()
