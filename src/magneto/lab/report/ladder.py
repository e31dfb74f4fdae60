"""The report of a ladder: sections with figures and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter, NullFormatter

from magneto.figures import FAINT
from magneto.files import write_bytes
from magneto.lab.forecast import log_ratio, percent, spread
from magneto.lab.outcome import group_cells, rate_text
from magneto.lab.report.figures import SIZE, draw_scores, log_x, log_y
from magneto.lab.report.plot import STYLE, Plot, Series, series_of, swatch
from magneto.lab.report.report import (
    FIGURES,
    PAGE,
    TABLE,
    TEXT,
    as_csv,
    facts,
    template,
    write_figures,
)
from magneto.lab.rung import QUANTITIES

# Half-width of an 80 % interval in standard errors; factor up to which axes include intervals.
Z80, FAR = 1.2816, 3.0
COLUMNS: tuple[str, ...] = (
    "axis", "size", "row", "what", "kind", "value", "low", "high", "exponent", "exponent_low",
    "exponent_high",
)  # fmt: skip
RATES = (("best_rate", "best rate"), ("stable_rate", "largest stable rate"))
MEASURED = tuple((f"measured.{one.name}", one.title) for one in QUANTITIES)
# Quantities over size: their keys in the rows of results and forecasts, and their titles.
SHOWN = (*RATES, ("loss", "loss"), ("sensitivity", "sensitivity"), *MEASURED)
Found = Mapping[str, Any]


@dataclass(frozen=True)
class Section:
    """A section of the page.

    `name` is the section's anchor, and `note` is the text below the table.
    """

    name: str
    heading: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    drawings: Sequence[Plot] = field(default_factory=tuple)


def write_ladder(found: Found, directory: Path) -> Path:
    """Write the page, the text, the table and the figures of a ladder. Return the page's path.

    `found` is the result of `ladder.collect_ladder`. Each file is written atomically.
    """
    series = series_of(list(found["rows"]), dict(found["rows"]))
    sections = list(page_sections(found, series))
    drawings = [drawing for section in sections for drawing in section.drawings]
    runs = f"{found['cells']}; {found['hours']:.2f} hours of training in total"
    words = {"found": found, "sections": sections, "facts": facts(found, runs)}
    page = template("ladder.html.jinja").render(
        **words, legend=list(series.values()), swatch=swatch,
        hits={drawing.name: drawing.hits for drawing in drawings},
    )  # fmt: skip
    write_figures(drawings, directory / FIGURES)
    write_bytes(directory / TABLE, as_csv(COLUMNS, table_rows(found)))
    write_bytes(directory / TEXT, template("ladder.md.jinja").render(**words).encode())
    write_bytes(directory / PAGE, page.encode())
    return directory / PAGE


def page_sections(found: Found, series: Mapping[str, Series]) -> Iterator[Section]:
    head = ["", *map(str, found["sizes"]), f"{found['target']} (forecast)", "exponent of size"]
    for name, heading, shown, note in (
        ("rate", "Learning rate", RATES,
         "The best rate is the minimum of a parabola fitted to log(loss) over log(rate). Its "
         "interval comes from a bootstrap over seeds. A rate is stable if all runs from the best "
         "rate up to this rate learned. Intervals are 80 % intervals. A forecast's interval "
         "includes the scatter of single measurements."),
        ("loss", "Loss by placement", SHOWN[2:3], baseline_note(found)),
        ("sensitivity", "Sensitivity to the learning rate", SHOWN[3:4],
         "Sensitivity is the mean loss minus the smallest loss (arXiv 2309.14322). The mean is "
         "over the logarithm of the learning rate, in the range that was tested at all sizes. "
         "Losses are capped at the initial loss. Only runs with the first seed are used."),
        ("trouble", "First expected failure", MEASURED,
         "A few steps of each run are measured. Each run at the best tested rate has one value: "
         "the largest over these steps (for the gradient, the smallest). The table gives the "
         "geometric mean of these values over seeds. In \"update divided by the theory's bound\", "
         "the update is the change of a label's logit in one SGD step at initialisation."),
    ):  # fmt: skip
        known = [one for one in shown if any(points(found, row, one[0]) for row in found["rows"])]
        rows = [line for key, title in known for line in table_lines(found, key, title)]
        if name == "loss":
            rows += gap_lines(found)
        drawings = [draw_over_size(found, series, key, title) for key, title in known]
        yield Section(name, heading, head, rows, note, drawings)
    yield held_out_section(found)
    note = ("Bars are 95 % confidence intervals over seeds. Rates far from the best may have only "
            "one seed.")  # fmt: skip
    drawings = [draw_rung(found, rung, series) for rung in found["rungs"]]
    yield Section("rungs", "Scores at every size", [], [], note, drawings)


def baseline_note(found: Found) -> str:
    last = found["rungs"][-1]
    note = "The loss is the validation loss at the best rate, according to the fitted parabola. "
    if len(found["forecast"]["rows"]) > 1:
        spread = found["forecast"]["priors"]["gaps"]["spread"]
        note += ("Comparisons of rows are paired by seed. Their trends with size have the prior "
                 f"0 ± {spread:.0%} per e-fold growth, which pulls them towards 0. ")  # fmt: skip
    if not last.get("baseline_loss"):
        return note
    shares = [f"{1 - part['loss']['value'] / last['baseline_loss']:.0%} ({found['rows'][row]})"
              for row, part in last["rows"].items() if "loss" in part]  # fmt: skip
    if not shares:
        return note
    return (f"{note}The trivial baseline's loss is {last['baseline_loss']:.4g}. At the largest "
            f"size the loss is lower than the baseline's by {', '.join(shares)}.")  # fmt: skip


def reading(part: Found, key: str) -> Any:
    for name in key.split("."):
        part = part.get(name) or {}
    return part or None


def points(found: Found, row: str, key: str) -> list[tuple[int, Any]]:
    """Return (size, value) of a row's quantity `key`, for each size at which it was measured."""
    both = [(rung["size"], reading(rung["rows"].get(row, {}), key)) for rung in found["rungs"]]
    return [(size, value) for size, value in both if value is not None]


def table_lines(found: Found, key: str, title: str) -> Iterator[list[str]]:
    """Yield a table line for each row: the values at all sizes, the forecast and the exponent."""
    digits = 4 if key == "loss" else 3
    for row, name in found["rows"].items():
        known = dict(points(found, row, key))
        cells = [format_value(known.get(size), digits) for size in found["sizes"]]
        if key == "stable_rate":
            cells = [stable_text(rung["rows"].get(row, {})) for rung in found["rungs"]]
        law = reading(found["forecast"]["rows"].get(row, {}), key)
        yield [f"{name}, {title}", *cells, format_value(law, digits), exponent(law)]


def format_value(value: Any, digits: int) -> str:
    """Format a value to `digits` significant digits, with its interval if it has one."""
    if not isinstance(value, Mapping):
        return "–" if value is None else f"{value:.{digits}g}"
    return spread(value, digits) if value.get("low") else f"{value['value']:.{digits}g}"


def stable_text(part: Found) -> str:
    if part.get("largest_stable") is None:
        return "–"
    failed = part["next_failed"]
    ending = "the largest tested" if failed is None else f"{rate_text(failed)} fails"
    return f"{rate_text(part['largest_stable'])}; {ending}"


def exponent(law: Found | None) -> str:
    if not law:
        return "–"
    return f"{law['exponent']:.2f} ({law['exponent_low']:.2f} to {law['exponent_high']:.2f})"


def gaps(found: Found) -> Iterator[tuple[str, str, list[float], Found]]:
    """Compare the losses of the rows that learned at every size.

    The first of these rows, A, is compared with each of the others, B.

    Yields:
        For each B: the names of A and B, log(loss of B / loss of A) at each size, and the law
        fitted to this logarithm.
    """
    laws = found["forecast"]["rows"]
    first = next((row for row in found["rows"] if row in laws), "")
    for row, law in laws[first]["gaps"].items() if first else ():
        measured = [log_ratio(rung["rows"][first], rung["rows"][row]) for rung in found["rungs"]]
        yield first, row, measured, law


def gap_lines(found: Found) -> Iterator[list[str]]:
    """Yield a table line for each pair of rows in `gaps`: the loss of B relative to that of A."""
    for first, row, measured, law in gaps(found):
        ends = f"{percent(law['value'])} ({percent(law['low'])} to {percent(law['high'])})"
        per_e = [percent(law[name]) for name in ("exponent", "exponent_low", "exponent_high")]
        yield [f"{found['rows'][row]}, loss relative to {found['rows'][first]}",
               *map(percent, measured), ends,
               f"{per_e[0]} ({per_e[1]} to {per_e[2]}) per e-fold growth in size"]  # fmt: skip


def held_out_section(found: Found) -> Section:
    titles, rows = dict(SHOWN), []
    for entry in found["held_out"]:
        digits = 4 if entry["what"] in ("loss", "gap") else 3
        title = titles.get(entry["what"]) or (
            f"loss relative to {found['rows'].get(entry['against'], entry['against'])}"
        )
        below = ", ".join(map(str, entry["from"]))
        rates = entry.get("trivial_rates", {}).values()
        trivial = [format_value(rate["value"], 3) for rate in rates]
        rows.append([
            f"{entry['size']} from {below}: {found['rows'].get(entry['row'], entry['row'])}, "
            f"{title}", format_value(entry, digits), format_value(entry["measured"], digits),
            "yes" if entry["holds"] else "no", *(trivial or ["–", "–"]),
        ])  # fmt: skip
    head = ["size", "forecast", "measured", "in the interval", "rate of the next smaller size",
            "rate extrapolated as 1/size from the next smaller size"]  # fmt: skip
    return Section("held-out", "Accuracy of the forecasts", head, rows, found["held_out_text"])


def draw_rung(found: Found, rung: Found, series: Mapping[str, Series]) -> Plot:
    cells = [cell for part in rung["rows"].values() for cell in part["cells"]]
    shown = {**rung, "cells": cells, "placements": list(series),
             "learning_rates": sorted({cell["learning_rate"] for cell in cells})}  # fmt: skip
    name, title = f"rung-{rung['size']}", f"{found['axis']} {rung['size']}"
    return draw_scores(shown, group_cells(shown), series, name, title)


def draw_over_size(found: Found, series: Mapping[str, Series], key: str, title: str) -> Plot:
    """Plot a quantity and its forecast against size for every row, on logarithmic axes.

    The dashed line is the fitted law. The hollow marker is the forecast for the target size.
    """
    plot = Plot(key.replace(".", "-").replace("_", "-") + "-over-size", SIZE, title=title)
    axes, sizes, target = plot.main, found["sizes"], found["target"]
    limits: list[float] = []
    with rc_context(STYLE):
        for position, (row, style) in enumerate(series.items()):
            # Rows are shifted slightly, so that they do not overlap.
            shift = 1 + 0.03 * (position - (len(series) - 1) / 2)
            known = [(size * shift, *ends(value), f"{size}")
                     for size, value in points(found, row, key)]  # fmt: skip
            plot.line(style, [p[0] for p in known], [p[1] for p in known], marker=style.marker)
            law = reading(found["forecast"]["rows"].get(row, {}), key)
            if law:
                start = law["value"] * (sizes[0] / target) ** law["exponent"]
                line: dict[str, Any] = {"linewidth": 0.7, "linestyle": (0, (3, 2))}
                plot.line(style, [sizes[0], target], [start, law["value"]], **line)
                mark: dict[str, Any] = {"marker": style.marker, "fillstyle": "none"}
                plot.line(style, [target * shift], [law["value"]], **mark)
                known.append((target * shift, *ends(law), f"{target} (forecast)"))
            for x, value, low, high, _ in known:
                plot.belongs(style, axes.plot([x, x], [low, high], color=style.light, linewidth=1))
                limits += [max(low, value / FAR), value, min(high, value * FAR)]
            plot.hover(style, [(x, value, f"{size}: {value:.3g} ({low:.3g} to {high:.3g})")
                               for x, value, low, high, size in known])  # fmt: skip
        log_x(axes, [*sizes, target], found["axis"], 1.25)
        axes.axvline(target, color=FAINT, linewidth=0.6, linestyle=(0, (1, 2)))
        log_y(axes)
        wide = max(limits) / min(limits)
        axes.set_ylim(min(limits) / wide**0.05, max(limits) * wide**0.05)
        # Within a factor of three there are too few major ticks.
        few = FuncFormatter(lambda value, _: f"{value:.3g}") if wide < 3 else NullFormatter()
        axes.yaxis.set_minor_formatter(few)
    return plot.finish()


def ends(value: Any) -> tuple[float, float, float]:
    """Return a value and the ends of the value's interval.

    If the error is unknown, both ends of the interval equal the value.
    """
    if not isinstance(value, Mapping):
        return value, value, value
    if value.get("low"):
        return value["value"], value["low"], value["high"]
    factor = math.exp(Z80 * (value.get("error") or 0.0))
    return value["value"], value["value"] / factor, value["value"] * factor


def table_rows(found: Found) -> Iterator[dict[str, Any]]:
    """Yield the lines of report.csv: measured values at each size, and forecasts.

    If the column `what` is "gap", the value is the row's loss divided by the first row's loss.
    """
    measured = [("measured", rung) for rung in found["rungs"]]
    for kind, rung in [*measured, ("forecast", found["forecast"])]:
        for row, part in rung["rows"].items():
            shared = {"axis": found["axis"], "size": rung["size"], "row": row, "kind": kind}
            for key, _ in SHOWN:
                value = reading(part, key)
                if value is not None:
                    law = value if isinstance(value, Mapping) else {}
                    numbers = dict(zip(("value", "low", "high"), ends(value), strict=True))
                    if law.get("low") is None and law.get("error") is None:  # no interval
                        del numbers["low"], numbers["high"]
                    yield {**shared, **law, **numbers, "what": key.rpartition(".")[2]}
    for _, row, measured, law in gaps(found):
        shared = {"axis": found["axis"], "row": row, "what": "gap"}
        for size, gap in zip(found["sizes"], measured, strict=True):
            yield {**shared, "size": size, "kind": "measured", "value": math.exp(gap)}
        ratios = {end: math.exp(law[end]) for end in ("value", "low", "high")}
        yield {**shared, "size": found["target"], "kind": "forecast", **law, **ratios}
