"""The page of a ladder: a question a section, with its figure and its table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from magneto.figures import FAINT
from magneto.files import write_bytes
from magneto.lab.foretelling import QUANTITIES, percent
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

# Half-width of an interval at 80 %, in standard errors.
Z80 = 1.2816
COLUMNS: tuple[str, ...] = (
    "axis", "size", "row", "what", "kind", "value", "low", "high", "exponent", "exponent_low",
    "exponent_high",
)  # fmt: skip
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
    sections = [
        which_rate(found, series), which_loss(found, series), how_sensitive(found, series),
        what_breaks(found, series), held_out_rungs(found), each_rung(found, series),
    ]  # fmt: skip
    drawings = [drawing for section in sections for drawing in section.drawings]
    words = {"found": found, "sections": sections, "subtitle": subtitle(found),
             "facts": facts(found)}  # fmt: skip
    page = template("ladder.html.jinja").render(
        **words, legend=list(series.values()), swatch=swatch, hits=script_json(drawings)
    )
    write_figures(drawings, directory / FIGURES)
    write_bytes(directory / TABLE, write_table(found).encode())
    write_bytes(directory / TEXT, template("ladder.md.jinja").render(**words).encode())
    write_bytes(directory / PAGE, page.encode())
    return directory / PAGE


def subtitle(found: Found) -> str:
    """Say in a line what was trained."""
    sizes = ", ".join(map(str, found["sizes"]))
    count = len(found["seeds"])
    return (f"{found['axis']} {sizes}; {len(found['rows'])} rows; {count} "
            f"seed{'s' if count > 1 else ''}; {found['rungs'][0]['steps']} steps; asked about "
            f"{found['axis']} {found['target']}")  # fmt: skip


def facts(found: Found) -> list[tuple[str, str]]:
    """Return names and texts: what was run, on what."""
    changes = " ".join(f"--{key} {value}" for key, value in found["overrides"].items())
    return [
        ("recipe", found["recipe"]),
        ("changed in all runs", changes or "nothing"),
        ("runs", f"{found['cells']}; {found['hours']:.2f} hours, one after the other"),
        ("summed up", found["created"]),
        *((name, ", ".join(values)) for name, values in found["environment"].items()),
    ]


def which_rate(found: Found, series: Mapping[str, Series]) -> Section:
    """Show the best and the largest stable rate over size."""
    told = found["foretold"]["rows"]
    sizes = [str(size) for size in found["sizes"]]
    head = ["", *sizes, f"{found['target']}, foretold", "power of size"]
    rows = []
    for what, words in (("best_rate", "best rate"), ("stable_rate", "largest stable rate")):
        for row, title in found["rows"].items():
            parts = [rung["rows"].get(row, {}) for rung in found["rungs"]]
            cells = [
                between(part) if what == "stable_rate" else interval(part.get(what))
                for part in parts
            ]
            law = told.get(row, {}).get(what)
            rows.append([f"{title}, {words}", *cells, interval(law), exponent(law)])
    drawings = [
        over_size(found, series, "best_rate", "best learning rate", "best rate"),
        over_size(found, series, "stable_rate", "largest stable rate", "largest stable rate"),
    ]
    note = (
        "Best rate: the vertex of a parabola in the logarithm of the rate through the best rate "
        "that was tried and its neighbours; 80 % intervals by bootstrap over seeds. Largest stable "
        "rate: between the largest rate up to which, from the best one on, every run learned, and "
        "the next one that was tried, at which one failed. Foretold: a power law fitted in "
        "logarithms, whose exponent is held near -0.5 ± 0.5 before any rung is seen; 80 % "
        "intervals for a rate as it would be measured there."
    )
    return Section("rate", "Which learning rate", head, rows, note, drawings)


def which_loss(found: Found, series: Mapping[str, Series]) -> Section:
    """Show the loss at the best rate over size, and how far rows are from the first one."""
    told = found["foretold"]["rows"]
    sizes = [str(size) for size in found["sizes"]]
    head = ["", *sizes, f"{found['target']}, foretold", "power of size"]
    rows = []
    for row, title in found["rows"].items():
        cells = [interval(rung["rows"].get(row, {}).get("loss"), 4) for rung in found["rungs"]]
        law = told.get(row, {}).get("loss")
        rows.append([f"{title}, loss", *cells, interval(law, 4), exponent(law)])
    first = next((row for row in found["rows"] if row in told), None)
    for row, law in told[first]["gaps"].items() if first else ():
        gaps = [gap_text(rung, first, row) for rung in found["rungs"]]
        ends = f"{percent(law['value'])} ({percent(law['low'])} to {percent(law['high'])})"
        title = f"{found['rows'][row]} beside {found['rows'][first]}"
        rows.append([title, *gaps, ends, f"{exponent(law)} of e-folds"])
    baseline = found["rungs"][0].get("baseline_loss")
    note = "Validation loss at the best rate, where the parabola is lowest. "
    if baseline:
        shares = [
            f"{found['rows'][row]} {1 - part['loss']['value'] / baseline:.0%}"
            for row, part in found["rungs"][-1]["rows"].items() if "loss" in part
        ]  # fmt: skip
        note += (f"The trivial baseline has {baseline:.4g}; on the largest rung the loss is below "
                 f"it by {', '.join(shares)}. ")  # fmt: skip
    note += "Above 0 the row named first is behind; the same seeds are held against each other."
    drawing = over_size(found, series, "loss", "loss at the best rate", "loss")
    return Section("loss", "Which placement, and what loss", head, rows, note, [drawing])


def how_sensitive(found: Found, series: Mapping[str, Series]) -> Section:
    """Show the learning-rate sensitivity over size."""
    sizes = [str(size) for size in found["sizes"]]
    rows = []
    for row, title in found["rows"].items():
        parts = [rung["rows"].get(row, {}) for rung in found["rungs"]]
        values = [part.get("sensitivity") for part in parts]
        over = next((p["sensitivity_over"] for p in parts if "sensitivity_over" in p), None)
        rates = f"{over[0]:g} to {over[1]:g}" if over else "–"
        rows.append([title, *("–" if v is None else f"{v:.3g}" for v in values), rates])
    note = (
        "The mean over rates, uniform in their logarithm, of the smaller of the final loss and the "
        "loss at initialisation, less the smallest loss there (arXiv 2309.14322), over the rates "
        "that all rungs have in common, by the first seed. Between rates that were tried the loss "
        "is taken to be linear; a run that failed counts as the loss at initialisation."
    )
    drawing = over_size(found, series, "sensitivity", "sensitivity to the rate", "sensitivity")
    return Section("sensitivity", "How much the rate matters", ["", *sizes, "rates"], rows, note,
                   [drawing])  # fmt: skip


def what_breaks(found: Found, series: Mapping[str, Series]) -> Section:
    """Show the measured quantities that foretell trouble."""
    told = found["foretold"]["rows"]
    sizes = [str(size) for size in found["sizes"]]
    head = ["", *sizes, f"{found['target']}, foretold", "power of size", "limit"]
    rows, drawings = [], []
    for one in QUANTITIES:
        for row, title in found["rows"].items():
            parts = [
                rung["rows"].get(row, {}).get("measured", {}).get(one.name)
                for rung in found["rungs"]
            ]
            if not any(parts):
                continue
            law = told.get(row, {}).get("measured", {}).get(one.name)
            rows.append([
                f"{title}, {one.title}", *map(value_text, parts),
                interval(law), exponent(law), limit_text(found, one.name),
            ])  # fmt: skip
        if any(row[0].endswith(one.title) for row in rows):
            drawings.append(over_size(found, series, f"measured.{one.name}", one.title, one.title))
    note = (
        "Of the runs at the best rate that was tried, over a few watched steps: the largest, of "
        "the gradient the smallest, in the geometric mean over seeds. The update over the theory's "
        "bound is of one SGD step on a label's logit at initialisation, on inputs at random. "
        "Limits: attention logits of 1e4 (arXiv 2309.14322), half of fp16's range, a tenth of the "
        "weights, and the optimizer's epsilon for gradients."
    )
    return Section("trouble", "What would break first", head, rows, note, drawings)


def limit_text(found: Found, name: str) -> str:
    """Return the limit of a quantity; a dash where there is none."""
    limits = {entry["name"]: entry["limit"] for entries in found["troubles"].values()
              for entry in entries}  # fmt: skip
    return f"{limits[name]:.3g}" if name in limits else "–"


def held_out_rungs(found: Found) -> Section:
    """Show what was foretold of rungs before they were trained, beside what came out."""
    names = {"best_rate": "best rate", "stable_rate": "largest stable rate", "loss": "loss"}
    rows = []
    for entry in found["held_out"]:
        digits = 4 if entry["what"] == "loss" else 3
        rivals = [f"{rival['value']:.3g}" for rival in entry.get("rivals", {}).values()]
        measured = entry["measured"]
        rows.append([
            f"{entry['size']}, from {', '.join(map(str, entry['from']))}: "
            f"{found['rows'].get(entry['row'], entry['row'])}, {names[entry['what']]}",
            interval(entry, digits), "–" if measured is None else f"{measured:.{digits}g}",
            "yes" if entry["holds"] else "no", *(rivals or ["–", "–"]),
        ])  # fmt: skip
    head = ["rung", "foretold", "measured", "in the interval", "the rate below",
            "rate times 1/size"]  # fmt: skip
    return Section("held-out", "Foretold and measured", head, rows, found["held_out_text"])


def each_rung(found: Found, series: Mapping[str, Series]) -> Section:
    """Draw the score against the rate of every rung."""
    drawings = []
    for rung in found["rungs"]:
        cells = [cell for part in rung["rows"].values() for cell in part["cells"]]
        rates = sorted({cell["learning_rate"] for cell in cells})
        shown = {"cells": cells, "placements": list(series), "learning_rates": rates,
                 "metric": rung["metric"], "higher_is_better": rung["higher_is_better"],
                 "baseline": rung["baseline"]}  # fmt: skip
        title = f"{found['axis']} {rung['size']}"
        groups = group_cells(shown)
        drawings.append(draw_scores(shown, groups, series, f"rung-{rung['size']}", title))
    note = "Bars: 95 % confidence intervals over seeds; rates far from the best have one seed."
    return Section("rungs", "Every rung", [], [], note, drawings)


def over_size(
    found: Found, series: Mapping[str, Series], what: str, label: str, title: str
) -> Drawing:
    """Draw something of every row over size on two logarithmic axes, and its foretelling.

    A dashed line is the fitted law, a hollow marker what it foretells of the target.
    """
    name, _, part = what.partition(".")
    plot = Plot(f"{name}-{part or 'over-size'}".replace("_", "-"), SIZE, title=title)
    axes, target = plot.main, found["target"]
    every = []
    with rc_context(STYLE):
        log_sizes(axes, [*found["sizes"], target])
        axes.set_xlabel(found["axis"])
        axes.set_ylabel(label)
        for position, (row, looks) in enumerate(series.items()):
            shift = 1 + 0.02 * (position - (len(series) - 1) / 2)
            points = [
                (rung["size"], *ends(reading(rung["rows"].get(row, {}), name, part)))
                for rung in found["rungs"]
                if reading(rung["rows"].get(row, {}), name, part)
            ]
            every += [value for _, value, _, _ in points]
            for size, _, low, high in points:
                bar = axes.plot([size * shift] * 2, [low, high], color=looks.light, alpha=0.6)
                plot.belongs(looks, bar)
            plot.line(looks, [p[0] * shift for p in points], [p[1] for p in points],
                      marker=looks.marker)  # fmt: skip
            plot.hover(looks, [(s * shift, v, f"{s}: {v:.3g} ({low:.3g} to {high:.3g})")
                               for s, v, low, high in points])  # fmt: skip
            law = reading(found["foretold"]["rows"].get(row, {}), name, part)
            if law and "exponent" in law:
                every += [law["value"]]
                draw_law(plot, looks, law, found["sizes"][0], target, shift)
        if every and min(every) > 0:
            log_y(axes)
            wide = max(max(every) / min(every), 1.02) ** 0.15
            axes.set_ylim(min(every) / wide, max(every) * wide)
            if max(every) / min(every) < 3:  # too few round numbers
                axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    return plot.finish()


def draw_law(
    plot: Plot, looks: Series, law: Found, smallest: int, target: int, shift: float
) -> None:
    """Draw a law from the smallest size to the target, and its interval there."""
    start = law["value"] * (smallest / target) ** law["exponent"]
    plot.line(looks, [smallest, target], [start, law["value"]], linewidth=0.7,
              linestyle=(0, (3, 2)))  # fmt: skip
    bar = plot.main.plot([target * shift] * 2, [law["low"], law["high"]], color=looks.light,
                         linewidth=0.8)  # fmt: skip
    plot.belongs(looks, bar)
    plot.line(looks, [target * shift], [law["value"]], marker=looks.marker, fillstyle="none")
    text = f"{target}, foretold: {law['value']:.3g} ({law['low']:.3g} to {law['high']:.3g})"
    plot.hover(looks, [(target * shift, law["value"], text)])


def log_sizes(axes: Axes, sizes: Sequence[int]) -> None:
    """Make x the size, on a logarithmic axis, labelled with the sizes themselves."""
    axes.set_xscale("log")
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(FixedLocator(list(sizes)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:.0f}"))
    axes.axvline(sizes[-1], color=FAINT, linewidth=0.6, linestyle=(0, (1, 2)))


def reading(part: Found, name: str, inner: str) -> Any:
    """Return what a row has of a name, or of a name within it."""
    found = part.get(name)
    return found.get(inner) if inner and found else found


def ends(value: Any) -> tuple[float, float, float]:
    """Return a value with the ends of its interval; equal to it where none is known."""
    if not isinstance(value, Mapping):
        return value, value, value
    if value.get("low") is not None:
        return value["value"], value["low"], value["high"]
    factor = math.exp(Z80 * (value.get("error") or 0.0))
    return value["value"], value["value"] / factor, value["value"] * factor


def interval(value: Found | None, digits: int = 3) -> str:
    """Write a value with its interval."""
    if not value:
        return "–"
    low, high = value.get("low"), value.get("high")
    known = low is not None and high is not None
    return f"{value['value']:.{digits}g}" + (f" ({low:.{digits}g} to {high:.{digits}g})"
                                             if known else "")  # fmt: skip


def value_text(value: Found | None) -> str:
    """Write a value without its interval."""
    return f"{value['value']:.3g}" if value else "–"


def between(part: Found) -> str:
    """Write a largest stable rate, and the next one that failed."""
    if part.get("largest_stable") is None:
        return "–"
    failed = part.get("next_failed")
    return f"{rate_text(part['largest_stable'])}; " + (
        f"{rate_text(failed)} fails" if failed else "the largest tried"
    )


def exponent(law: Found | None) -> str:
    """Write a law's exponent with its interval."""
    if not law:
        return "–"
    return f"{law['exponent']:.2f} ({law['exponent_low']:.2f} to {law['exponent_high']:.2f})"


def gap_text(rung: Found, first: str | None, row: str) -> str:
    """Write how far a row's loss is above another's on a rung."""
    both = [rung["rows"].get(name, {}).get("loss") for name in (first, row)]
    if not all(both):
        return "–"
    return percent(math.log(both[1]["value"] / both[0]["value"]))


def write_table(found: Found) -> str:
    """Return every number over size as a row of CSV: measured ones, then foretold ones."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    told = {"size": found["target"], "rows": found["foretold"]["rows"]}
    for kind, rung in [*(("measured", rung) for rung in found["rungs"]), ("foretold", told)]:
        for row, part in rung["rows"].items():
            shared = {"axis": found["axis"], "size": rung["size"], "row": row, "kind": kind}
            named = {what: part.get(what)
                     for what in ("best_rate", "stable_rate", "loss", "sensitivity")}  # fmt: skip
            for what, value in {**named, **part.get("measured", {})}.items():
                if value is None:
                    continue
                law = value if isinstance(value, Mapping) else {}
                middle, low, high = ends(value)
                writer.writerow({**shared, **law, "what": what, "value": middle, "low": low,
                                 "high": high})  # fmt: skip
    return out.getvalue()
