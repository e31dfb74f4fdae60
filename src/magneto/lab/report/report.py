"""A comparison as a page, a text, tables and figures, all in one folder.

The page is one file that needs no network: figures are inline SVG, the script is a few dozen lines.
Beside it lie the same figures as files, for whoever writes about the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from magneto.files import write_bytes
from magneto.lab.report import captions
from magneto.lab.report.curve_figures import draw_curves
from magneto.lab.report.palette import Series, series_of, swatch
from magneto.lab.report.plot import Drawing, svg_file
from magneto.lab.report.provenance import facts
from magneto.lab.report.score_figure import draw_scores
from magneto.lab.report.stability_figures import draw_activations, draw_updates
from magneto.lab.report.tables import (
    grid_rows,
    growth_rows,
    layer_rows,
    run_rows,
    seeds_text,
    subtitle,
    summary_rows,
)
from magneto.lab.sweep.grid import (
    decimals_for,
    group_cells,
    rate_text,
    write_csv,
    write_curves,
)

PAGE, TEXT = "report.html", "report.md"
TABLE, CURVES, FIGURES = "report.csv", "curves.csv", "figures"


def write_report(comparison: Mapping[str, Any], directory: Path, downloads: bool = True) -> Path:
    """Write the page, the text, the tables and the figures; return the page's path.

    Args:
        comparison: What `compare.collect` returns; under "measured" it may hold what
            `measurements.measure` returns. Cells without a result are shown as such.
        directory: Where; each file is written aside and renamed.
        downloads: Whether figures and curves are written as files of their own too; without them
            the page does not link to any.
    """
    environment = page_templates()
    series = series_of(comparison["placements"], titles(comparison))
    drawings = draw(comparison, series)
    page = environment.get_template("report.html.jinja").render(
        **describe(comparison), **drawings, downloads=downloads, legend=legend(series),
        hits=script_json(in_order(drawings)),
    )  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    if downloads:
        write_figures(in_order(drawings), directory / FIGURES)
        write_bytes(directory / CURVES, write_curves(comparison).encode())
    write_bytes(directory / TABLE, write_csv(comparison).encode())
    write_bytes(directory / TEXT, as_markdown(comparison).encode())
    write_bytes(directory / PAGE, page.encode())
    return directory / PAGE


def as_markdown(comparison: Mapping[str, Any]) -> str:
    """Return the answer and the tables as Markdown."""
    return page_templates().get_template("report.md.jinja").render(**describe(comparison))


def write_figures(drawings: Sequence[Drawing], directory: Path) -> None:
    """Write each figure as SVG and PDF."""
    directory.mkdir(exist_ok=True)
    for drawing in drawings:
        path = directory / drawing.name
        write_bytes(path.with_suffix(".svg"), svg_file(drawing.svg).encode())
        write_bytes(path.with_suffix(".pdf"), drawing.pdf)


def page_templates() -> Environment:
    """Return the templates of pages; what stands in a page is escaped."""
    return Environment(
        loader=PackageLoader("magneto.lab.report"),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def describe(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Return what both the page and the text say, as words and tables."""
    groups = group_cells(comparison)
    decimals = decimals_for([group.mean for group in groups.values()])
    rates = sorted(float(rate) for rate in comparison["learning_rates"])
    cells = comparison["cells"]
    return {
        "title": f"{comparison['recipe']}: which placement, at which learning rate",
        "recipe": comparison["recipe"],
        "subtitle": subtitle(comparison),
        "answer": comparison["answer"],
        "missing": any(cell["status"] == "missing" for cell in cells),
        "metric": comparison["metric"],
        "direction": f"{'higher' if comparison['higher_is_better'] else 'lower'} is better",
        "seeds": seeds_text(comparison),
        "several_seeds": len({cell["seed"] for cell in cells}) > 1,
        "rates": [rate_text(rate) for rate in rates],
        "summary": summary_rows(comparison, groups, decimals),
        "grid": grid_rows(comparison, groups, rates, decimals),
        "growth": growth_rows(comparison),
        "width": (comparison.get("measured") or {}).get("width"),
        "layers": layer_rows(comparison),
        "legend_titles": [row["title"] for row in comparison["summary"]],
        "facts": facts(comparison),
        "command": comparison["command"],
        "config": yaml.safe_dump(comparison["config"], sort_keys=False).rstrip(),
        "runs": run_rows(cells, decimals),
        "judged": captions.judged_sentence(comparison),
        "baseline": captions.baseline_sentence(comparison),
        "score_caption": captions.score_caption(comparison, groups),
        "curves_heading": captions.curves_heading(comparison),
        "curves_caption": captions.curves_caption(comparison),
    }


def titles(comparison: Mapping[str, Any]) -> dict[str, str]:
    """Return the title of every placement."""
    return {row["placement"]: row["title"] for row in comparison["summary"]}


def draw(comparison: Mapping[str, Any], series: Mapping[str, Series]) -> dict[str, Any]:
    """Return the figures by the section they stand in."""
    groups = group_cells(comparison)
    decimals = decimals_for([group.mean for group in groups.values()])
    measured = comparison.get("measured")
    return {
        "scores": draw_scores(comparison, groups, series, decimals),
        "curves": draw_curves(comparison, series),
        "updates": [draw_updates(measured, series, reading) for reading in ("label", "output")]
        if measured
        else [],
        "activations": [draw_activations(measured, series)] if measured else [],
    }


def in_order(drawings: Mapping[str, Any]) -> Sequence[Drawing]:
    """Return all figures, in the order of the page."""
    lists = [drawings[section] for section in ("curves", "updates", "activations")]
    return [drawings["scores"], *(drawing for found in lists for drawing in found)]


def legend(series: Mapping[str, Series]) -> list[dict[str, Any]]:
    """Return what the page's legend and its theme need to know of each placement."""
    return [asdict(row) | {"swatch": swatch(row)} for row in series.values()]


def script_json(drawings: Sequence[Drawing]) -> str:
    """Write the points of all figures as JSON that can stand inside a script element."""
    hits = {drawing.name: drawing.hits for drawing in drawings}
    return json.dumps(hits, separators=(",", ":")).replace("<", "\\u003c")
