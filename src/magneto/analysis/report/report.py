"""A comparison as a page, a text and a table: report.html, report.md and report.csv.

The page is one file that needs no network: figures are inline SVG, the script is a few dozen lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from magneto.analysis.report.figure_style import series_of, swatch
from magneto.analysis.report.figures import Drawing, draw_scores
from magneto.analysis.report.provenance import facts
from magneto.analysis.report.stability_figures import draw_activations, draw_curves, draw_updates
from magneto.analysis.sweep.grid import (
    Group,
    decimals_for,
    group_cells,
    plus_minus,
    rate_text,
    write_csv,
)
from magneto.files import write_text

PAGE, TEXT, TABLE = "report.html", "report.md", "report.csv"


def write_report(comparison: Mapping[str, Any], directory: Path) -> Path:
    """Write the page, the text and the table of a comparison; return the page's path.

    Args:
        comparison: What `compare.collect` returns; under "measured" it may hold what
            `measurements.measure` returns. Cells without a result are shown as such.
        directory: Where; each file is written aside and renamed.
    """
    shown = describe(comparison)
    environment = Environment(
        loader=PackageLoader("magneto.analysis.report"),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawings = draw(comparison)
    page = environment.get_template("report.html.jinja").render(**shown, **drawings)
    text = environment.get_template("report.md.jinja").render(**shown)
    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / TABLE, write_csv(comparison))
    write_text(directory / TEXT, text)
    write_text(directory / PAGE, page)
    return directory / PAGE


def describe(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Return what both the page and the text say, as words and tables."""
    groups = group_cells(comparison)
    decimals = decimals_for([group.mean for group in groups.values()])
    rates = sorted(float(rate) for rate in comparison["learning_rates"])
    cells = comparison["cells"]
    missing = sum(cell["status"] == "missing" for cell in cells)
    higher = bool(comparison["higher_is_better"])
    return {
        "title": f"{comparison['recipe']}: which placement, at which learning rate",
        "recipe": comparison["recipe"],
        "answer": comparison["answer"],
        "missing": f"{missing} of {len(cells)} runs have no result yet" if missing else "",
        "metric": comparison["metric"],
        "direction": "higher is better" if higher else "lower is better",
        "seeds": comparison["seeds"],
        "rates": [rate_text(rate) for rate in rates],
        "summary": [_summary(row, groups, decimals) for row in comparison["summary"]],
        "grid": _grid(comparison, groups, rates, decimals, higher),
        "growth": _growth(comparison),
        "width": (comparison.get("measured") or {}).get("width"),
        "layers": _layers(comparison),
        "legend_titles": [row["title"] for row in comparison["summary"]],
        "facts": facts(comparison),
        "command": comparison["command"],
        "config": yaml.safe_dump(comparison["config"], sort_keys=False).rstrip(),
        "runs": _runs(cells, decimals),
    }


def _summary(
    row: Mapping[str, Any], groups: Mapping[tuple[str, float], Group], decimals: int
) -> dict[str, str]:
    lost, best = row["diverged"], row["best_learning_rate"]
    part = "" if best is None else _part(groups[row["placement"], float(best)])
    return {
        "title": row["title"],
        "best_rate": rate_text(row["best_learning_rate"]),
        "score": plus_minus(row["score"], row["interval"], decimals) + part,
        "stable": rate_text(row["largest_stable_rate"]),
        "sensitivity": "–" if row["sensitivity"] is None else f"{row['sensitivity']:.3f}",
        "diverged": f"{lost} of {lost + row['finished']}",
    }


def _grid(
    comparison: Mapping[str, Any],
    groups: Mapping[tuple[str, float], Group],
    rates: Sequence[float],
    decimals: int,
    higher: bool,
) -> list[dict[str, Any]]:
    """Return a row for each placement; in each column the best mean is marked."""
    best: dict[float, float] = {}
    for rate in rates:
        whole = [groups[name, rate] for name in comparison["placements"]]
        means = [g.mean for g in whole if g.mean is not None and not g.diverged]
        if means:
            best[rate] = max(means) if higher else min(means)
    rows = []
    for summary in comparison["summary"]:
        cells = []
        for rate in rates:
            group = groups[summary["placement"], rate]
            marked = group.mean is not None and group.mean == best.get(rate)
            cells.append({"text": _group_text(group, decimals), "best": marked})
        rows.append({"title": summary["title"], "cells": cells})
    return rows


def _group_text(group: Group, decimals: int) -> str:
    if group.diverged and group.diverged == group.seeds:
        return f"diverged{_part(group)}"
    text = plus_minus(group.mean, group.interval, decimals)
    lost = f" ({group.diverged} of {group.seeds} diverged)" if group.diverged else ""
    return f"{text}{lost}{_part(group)}"


def _part(group: Group) -> str:
    """Say how many seeds a number is of, where some have no result yet."""
    return f" [{group.seeds}/{group.seeds + group.missing}]" if group.missing else ""


def _growth(comparison: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return how one SGD step's change of the output grows with depth, measured and bounded."""
    measured = comparison.get("measured") or {}
    titles = {row["placement"]: row["title"] for row in comparison["summary"]}
    rows: dict[str, dict[str, str]] = {}
    for part in measured.get("growth", ()):
        if part["optimizer"] != "sgd" or part["placement"] not in titles:
            continue
        bounds = measured["bounds"].get(part["placement"], {}).get("paper")
        row = rows.setdefault(
            part["placement"],
            {
                "title": titles[part["placement"]],
                "bound": f"× {bounds[-1] / bounds[0]:.2f}" if bounds else "–",
                "depths": "{} to {}".format(*part["depths"]),
            },
        )
        low, high = part["ratio_range"]
        interval = "" if low is None or high is None else f" ({_short(low)} to {_short(high)})"
        row[part["reading"]] = f"× {part['ratio']:.2f}{interval}"
    return list(rows.values())


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2f}"


def _layers(comparison: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return each layer's name with the RMS of its output in every placement."""
    activations = (comparison.get("measured") or {}).get("activations", {})
    columns = [activations.get(name, {}) for name in comparison["placements"]]
    names = dict.fromkeys(layer for column in columns for layer in column)
    return [(layer, [_rms(column.get(layer)) for column in columns]) for layer in names]


def _rms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _runs(cells: Sequence[Mapping[str, Any]], decimals: int) -> list[dict[str, str]]:
    return [
        {
            "placement": cell["placement"],
            "rate": rate_text(cell["learning_rate"]),
            "seed": str(cell["seed"]),
            "status": cell["status"],
            "score": plus_minus(cell["score"], None, decimals),
            "note": _note(cell),
        }
        for cell in cells
    ]


def _note(cell: Mapping[str, Any]) -> str:
    if cell["diverged_at"] is not None:
        return f"at step {cell['diverged_at']}: {cell['reason']}"
    return str(cell["reason"] or "")


def draw(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures, the legend and what the script needs to know of them."""
    titles = {row["placement"]: row["title"] for row in comparison["summary"]}
    series = series_of(comparison["placements"], titles)
    groups = group_cells(comparison)
    decimals = decimals_for([group.mean for group in groups.values()])
    measured = comparison.get("measured")
    scores = draw_scores(comparison, groups, series, decimals)
    curves = draw_curves(comparison, series)
    updates, activations = [], []
    if measured:
        updates = [draw_updates(measured, series, reading) for reading in ("label", "output")]
        activations = [draw_activations(measured, series)]
    drawings = [scores, *curves, *updates, *activations]
    legend = [
        {"index": row.index, "title": row.title, "swatch": swatch(row),
         "light": row.light, "dark": row.dark}
        for row in series.values()
    ]  # fmt: skip
    return {
        "legend": legend,
        "scores": _figure(scores),
        "curves": [_figure(drawing) for drawing in curves],
        "updates": [_figure(drawing) for drawing in updates],
        "activations": [_figure(drawing) for drawing in activations],
        "hits": _script_json({d.name: d.hits for d in drawings}),
    }


def _figure(drawing: Drawing) -> dict[str, Any]:
    return {"name": drawing.name, "svg": drawing.svg}


def _script_json(value: Any) -> str:
    """Write JSON that can stand inside a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
