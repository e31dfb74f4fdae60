"""Reports of comparisons and runs: pages, texts, tables and figures.

A page is a single file that opens without an internet connection. The page contains figures as SVG,
and a script. The figures are also written as files.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from magneto.files import write_bytes
from magneto.lab.outcome import (
    DIVERGED,
    MARGIN,
    STUCK,
    Group,
    Summary,
    decimals_for,
    group_cells,
    group_text,
    part,
    plus_minus,
    rate_text,
    title_of,
)
from magneto.lab.report.figures import (
    SERIES,
    curve_kind,
    draw_activations,
    draw_curves,
    draw_run,
    draw_scores,
    draw_updates,
    with_curves,
)
from magneto.lab.report.plot import Plot, series_of, swatch

PAGE, TEXT = "report.html", "report.md"
TABLE, CURVES, FIGURES = "report.csv", "curves.csv", "figures"
COLUMNS = (
    *("recipe", "metric", "placement", "learning_rate", "seed", "status", "score", "loss"),
    *("initial_loss", "diverged_at", "reason", "steps", "seconds"),
)
CURVE_COLUMNS = ("placement", "learning_rate", "seed", "status", "curve_of", "step", "loss")
Groups = Mapping[tuple[str, float], Group]


def write_report(comparison: Mapping[str, Any], directory: Path, downloads: bool = True) -> Path:
    """Write the report of a comparison: page, text, tables and figures. Return the page's path.

    Args:
        comparison: Result of `comparison.collect`. The key "measured" may hold the result of
            `comparison.measure`. Runs may have no result yet.
        directory: Output folder. Each file is written atomically.
        downloads: Whether to write figures and curves as files, with links in the page.
    """
    titles = {row["placement"]: row["title"] for row in comparison["summary"]}
    series = series_of(comparison["placements"], titles)
    groups = group_cells(comparison)
    measured = comparison.get("measured")
    scores, curves = draw_scores(comparison, groups, series), draw_curves(comparison, series)
    updates, activations = [], []
    if measured:
        updates = [draw_updates(measured, series, reading) for reading in ("label", "output")]
        activations = [draw_activations(measured, series)]
    drawings = [scores, *curves, *updates, *activations]
    page = template("report.html.jinja").render(
        **describe(comparison), scores=scores, curves=curves, updates=updates,
        activations=activations, downloads=downloads, legend=list(series.values()), swatch=swatch,
        hits={drawing.name: drawing.hits for drawing in drawings},
    )  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    cells = comparison["cells"]
    if downloads:
        write_figures(drawings, directory / FIGURES)
        points = (
            {**cell, "step": step, "loss": loss} for cell in cells for step, loss in cell["curve"]
        )
        write_bytes(directory / CURVES, as_csv(CURVE_COLUMNS, points))
    shared = {name: comparison[name] for name in ("recipe", "metric")}
    write_bytes(directory / TABLE, as_csv(COLUMNS, (shared | cell for cell in cells)))
    write_bytes(directory / TEXT, as_markdown(comparison).encode())
    write_bytes(directory / PAGE, page.encode())
    return directory / PAGE


def as_markdown(comparison: Mapping[str, Any]) -> str:
    return template("report.md.jinja").render(**describe(comparison))


def describe(comparison: Mapping[str, Any]) -> dict[str, Any]:
    groups = group_cells(comparison)
    decimals = decimals_for([group.mean for group in groups.values()])
    rates = sorted(float(rate) for rate in comparison["learning_rates"])
    cells = comparison["cells"]
    return {
        "comparison": comparison,
        "subtitle": subtitle(comparison),
        "missing": any(cell["status"] == "missing" for cell in cells),
        "direction": f"{'higher' if comparison['higher_is_better'] else 'lower'} is better",
        "seeds": seeds_text(comparison),
        "several_seeds": len({cell["seed"] for cell in cells}) > 1,
        "rates": [rate_text(rate) for rate in rates],
        "summary": summary_rows(comparison, groups, decimals),
        "grid": grid_rows(comparison, groups, rates, decimals),
        "reasons": reason_sentences(comparison),
        "growth": growth_rows(comparison),
        "layers": layer_rows(comparison),
        "facts": facts(comparison, runs_text(cells)),
        "config": yaml.safe_dump(comparison["config"], sort_keys=False).rstrip(),
        "runs": run_rows(cells, decimals),
        "significance": significance_sentence(comparison),
        "baseline": baseline_sentence(comparison),
        "failed": any(group.failed for group in groups.values()),
        "curves_heading": f"{curve_kind(with_curves(comparison))} loss".strip().capitalize(),
    }


def template(name: str) -> Template:
    """Return a template. Templates of HTML pages escape their values."""
    environment = Environment(
        loader=PackageLoader("magneto.lab.report"),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template(name)


def write_figures(drawings: Sequence[Plot], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for drawing in drawings:
        write_bytes(directory / f"{drawing.name}.svg", drawing.svg.encode())
        write_bytes(directory / f"{drawing.name}.pdf", drawing.pdf())


@dataclass(frozen=True)
class Entry:
    """Entry of a table.

    When the table is sorted by a column, the rows are ordered by `key`, and None comes last.
    """

    text: str
    key: float | str | None = None
    best: bool = False


def subtitle(comparison: Mapping[str, Any]) -> str:
    config = comparison["config"]
    model, training = config.get("model") or {}, config.get("training") or {}
    depth = f"{model['layers']} layers" if model.get("layers") else ""
    if model.get("encoder_layers"):
        depth = f"{model['encoder_layers']} + {model['decoder_layers']} layers"
    width = f"width {model['width']}" if model.get("width") else ""
    steps = f"{training['steps']} steps" if training.get("steps") else ""
    grid = [counted(comparison["placements"], "placement"),
            counted(comparison["learning_rates"], "learning rate"),
            seeds_text(comparison)]  # fmt: skip
    return ", ".join([*filter(None, (depth, width, steps)), " × ".join(grid)])


def counted(values: Sized, name: str) -> str:
    return f"{len(values)} {name}{'s' * (len(values) != 1)}"


def seeds_text(comparison: Mapping[str, Any]) -> str:
    """Return the number of seeds as text.

    If the rates near each row's best rate have additional seeds, the number of seeds at these rates
    follows in brackets.
    """
    everywhere = set(comparison["seeds"])
    near = everywhere | set(comparison.get("seeds_near_best") or ())
    more = f" ({len(near)} near the best rate of each row)"
    return counted(everywhere, "seed") + (more if len(near) > len(everywhere) else "")


def reason_sentences(comparison: Mapping[str, Any]) -> list[str]:
    """Return the probe's findings for each placement (row) that did not learn at any learning rate.

    The probe used the smallest learning rate of the comparison.
    """
    reasons = (comparison.get("measured") or {}).get("reasons", {})
    rate = rate_text(min(map(float, comparison["learning_rates"])))
    sentences = []
    for row, found in reasons.items():
        findings = found or ["none of its measurements predicts failure"]
        text = " ".join(f"{each[0].upper()}{each[1:]}." for each in findings)
        sentences.append(f"Probe of {title_of(row)} at learning rate {rate}. {text}")
    return sentences


def summary_rows(
    comparison: Mapping[str, Any], groups: Groups, decimals: int
) -> list[dict[str, Any]]:
    rows = [Summary(**row) for row in comparison["summary"]]
    known = [row.score for row in rows if row.score is not None]
    known = known if len(known) > 1 else []
    best = max(known, default=None) if comparison["higher_is_better"] else min(known, default=None)
    found = []
    for row in rows:
        rate = row.best_learning_rate
        partial = "" if rate is None else part(groups[row.placement, float(rate)])
        beyond = " (above the largest stable)" if row.best_beyond_stable else ""
        stable = row.largest_stable_rate
        seeds = "" if stable is None else f" ({counted(row.stable_seeds, 'seed')})"
        sensitivity = row.sensitivity
        entries = [
            Entry(rate_text(rate) + beyond, rate),
            Entry(plus_minus(row.score, row.interval, decimals) + partial, row.score),
            Entry(rate_text(row.largest_stable_rate) + seeds, row.largest_stable_rate),
            Entry(next_text(row), row.next_rate),
            Entry("–" if sensitivity is None else f"{sensitivity:.3f}", sensitivity),
            Entry(failed_text(row), row.diverged + row.stuck),
        ]
        is_best = shown_equal(row.score, best, decimals)
        found.append({"title": row.title, "best": is_best, "entries": entries})
    return found


def shown_equal(value: float | None, best: float | None, decimals: int) -> bool:
    """Return whether two values look equal with `decimals` decimals; False for None."""
    return None not in (value, best) and f"{value:.{decimals}f}" == f"{best:.{decimals}f}"


def failed_text(row: Summary) -> str:
    counts = [(row.diverged, DIVERGED), (row.stuck, STUCK)]
    kinds = [(count, kind) for count, kind in counts if count]
    if len(kinds) == 1:
        return f"{kinds[0][0]} of {row.ended} {kinds[0][1]}"
    listed = ", ".join(f"{count} {kind}" for count, kind in kinds)
    return f"{row.diverged + row.stuck} of {row.ended}{f': {listed}' if listed else ''}"


def next_text(row: Summary) -> str:
    if row.next_rate is None:
        return "none" if row.largest_stable_rate is not None else "–"
    failed, count = row.failed_there
    if not failed:
        return f"{rate_text(row.next_rate)}: results are missing"
    return f"{rate_text(row.next_rate)}: {failed} of {count} failed"


def grid_rows(
    comparison: Mapping[str, Any], groups: Groups, rates: Sequence[float], decimals: int
) -> list[dict[str, Any]]:
    best: dict[float, float] = {}
    choose = max if comparison["higher_is_better"] else min
    for rate in rates:
        column = [groups[name, rate] for name in comparison["placements"]]
        means = [g.mean for g in column if g.mean is not None and not g.failed]
        if means:
            best[rate] = choose(means)
    rows = []
    for summary in comparison["summary"]:
        entries = []
        for rate in rates:
            group = groups[summary["placement"], rate]
            is_best = not group.failed and shown_equal(group.mean, best.get(rate), decimals)
            entries.append(Entry(group_text(group, decimals), group.mean, is_best))
        rows.append({"title": summary["title"], "entries": entries})
    return rows


def brief_group_text(group: Group, decimals: int) -> str:
    """Format a group's mean briefly, as "6.127 (4/5)" if only 4 of 5 seeds learned."""
    if group.mean is None:
        kinds = {(True, False): "diverged", (False, True): "not learned", (True, True): "failed"}
        return kinds.get((group.diverged > 0, group.stuck > 0), "-") + part(group)
    planned = group.seeds + group.missing
    learned = f" ({len(group.scores)}/{planned})" if len(group.scores) < planned else ""
    return f"{group.mean:.{decimals}f}{learned}"


def growth_rows(comparison: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return table rows: how the effect of an SGD step, and the theory's bound, grow with depth."""
    measured = comparison.get("measured") or {}
    titles = {row["placement"]: row["title"] for row in comparison["summary"]}
    rows: dict[str, dict[str, str]] = {}
    for found in measured.get("growth", ()):
        if found["optimizer"] != "sgd" or found["placement"] not in titles:
            continue
        bounds = measured["bounds"].get(found["placement"], {}).get("paper")
        row = rows.setdefault(found["placement"], {"title": titles[found["placement"]]})
        row["bound"] = f"× {bounds[-1] / bounds[0]:.2f}" if bounds else "–"
        row["depths"] = "{} to {}".format(*found["depths"])
        ends = [end for end in found["ratio_range"] if end is not None]
        limits = " to ".join(f"{end:.0f}" if abs(end) >= 10 else f"{end:.2f}" for end in ends)
        interval = f" ({limits})" if len(ends) == 2 else ""
        row[found["reading"]] = f"× {found['ratio']:.2f}{interval}"
    return list(rows.values())


def layer_rows(comparison: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    activations = (comparison.get("measured") or {}).get("activations", {})
    columns = [activations.get(name, {}) for name in comparison["placements"]]
    rows: dict[str, list[str]] = {layer: [] for column in columns for layer in column}
    for layer, row in rows.items():
        values = [column.get(layer) for column in columns]
        row += ["–" if value is None else f"{value:.3g}" for value in values]
    return list(rows.items())


def run_rows(cells: Sequence[Mapping[str, Any]], decimals: int) -> list[dict[str, Any]]:
    return [
        {
            "placement": cell["placement"],
            "entries": [
                Entry(rate_text(cell["learning_rate"]), cell["learning_rate"]),
                Entry(str(cell["seed"]), cell["seed"]),
                Entry(cell["status"], cell["status"]),
                Entry(plus_minus(cell["score"], None, decimals), cell["score"]),
            ],
            "note": ("" if cell["diverged_at"] is None else f"at step {cell['diverged_at']}: ")
            + str(cell["reason"] or ""),
        }
        for cell in cells
    ]


def significance_sentence(comparison: Mapping[str, Any]) -> str:
    """Describe the significance test; "" if fewer than two rows have several seeds."""
    if sum(len(row["scores"]) > 1 for row in comparison["summary"]) < 2:
        return ""
    return (
        "Significance is decided by Welch's t test over seeds at 5 %, with Holm's correction over "
        "all pairs of rows. "
    )


def baseline_sentence(comparison: Mapping[str, Any]) -> str:
    """Describe the trivial baseline and the threshold for learning; "" without a baseline."""
    if comparison.get("baseline") is None:
        return ""
    side = "above" if comparison["higher_is_better"] else "below"
    return (
        f"The trivial baseline has {comparison['metric']} {comparison['baseline']:.4g} on the same "
        f"data. A run learned if it ends {side} {comparison['threshold']:.4g} "
        f"({100 * MARGIN:.0f} % of the way from the baseline to the best possible score)."
    )


def runs_text(cells: Sequence[Mapping[str, Any]]) -> str:
    done = [cell for cell in cells if cell["status"] != "missing"]
    hours = sum(cell["seconds"] or 0 for cell in done) / 3600
    duration = f"{hours:.1f} hours" if hours >= 0.1 else f"{hours * 60:.1f} minutes"
    return f"{len(done)} of {len(cells)}; {duration} of training in total"


def facts(found: Mapping[str, Any], runs: str) -> list[tuple[str, str]]:
    """Return pairs of name and text that say how and where the runs of a report were made."""
    near = ", ".join(map(str, found.get("seeds_near_best") or ()))
    overrides = " ".join(f"--{key} {value}" for key, value in found["overrides"].items())
    return [
        ("recipe", found["recipe"]),
        ("changed in all runs", overrides or "nothing"),
        ("seeds", ", ".join(map(str, found["seeds"]))),
        *([("seeds near the best rate", near)] if near else []),
        ("runs", runs),
        ("report written", found["created"]),
        *((name, ", ".join(values)) for name, values in found["environment"].items()),
    ]


def as_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def write_run_page(page: Mapping[str, Any], directory: Path) -> Path:
    """Write a run's page and its figures, and return the page's path.

    Each file is written atomically. `page` contains:

    - "name" and "subtitle".
    - "answer": sentences; the first is emphasised.
    - "metrics": for each metric its name, its last value or None, and the baseline's value or None.
    - "rows": lines of metrics.jsonl.
    - "baseline": metrics of the trivial baseline, by name.
    - "facts": pairs of name and text.
    - "config": the recipe as YAML.
    - "figures": pictures of predictions.
    """
    curves = draw_run(page["rows"], page["baseline"])
    write_figures(curves, directory / FIGURES)
    figures = []
    for figure in page["figures"]:
        ending, kind = (".svg", "svg+xml") if isinstance(figure.image, str) else (".png", "png")
        image = figure.image.encode() if isinstance(figure.image, str) else figure.image
        write_bytes(directory / FIGURES / f"{figure.name}{ending}", image)
        # As data URLs, so that figures do not share ids.
        source = f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
        figures.append({"figure": figure, "file": f"{figure.name}{ending}", "source": source})
    metrics = [
        (name, *("–" if value is None else f"{value:.4g}" for value in values))
        for name, *values in page["metrics"]
    ]
    text = template("run.html.jinja").render(
        page=page, legend=SERIES, curves=curves, figures=figures,
        hits={curve.name: curve.hits for curve in curves}, metrics=metrics,
    )  # fmt: skip
    write_bytes(directory / PAGE, text.encode())
    return directory / PAGE
