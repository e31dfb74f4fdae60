"""Comparisons and runs as pages, texts, tables and figures, each in one folder.

A page is one file that needs no network: figures are inline SVG, the script is a few dozen lines.
Beside it lie the same figures as files, for whoever writes about them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from magneto.files import write_bytes
from magneto.lab.outcome import decimals_for, group_cells, rate_text
from magneto.lab.report.curves import SERIES, curve_kind, draw_curves, draw_run, with_curves
from magneto.lab.report.figures import draw_activations, draw_scores, draw_updates
from magneto.lab.report.plot import Drawing, series_of, swatch
from magneto.lab.report.words import (
    baseline_sentence,
    facts,
    grid_rows,
    growth_rows,
    judged_sentence,
    layer_rows,
    reason_sentences,
    run_rows,
    seeds_text,
    subtitle,
    summary_rows,
    write_csv,
    write_curves,
)
from magneto.training.task import Figure

PAGE, TEXT = "report.html", "report.md"
TABLE, CURVES, FIGURES = "report.csv", "curves.csv", "figures"


def write_report(comparison: Mapping[str, Any], directory: Path, downloads: bool = True) -> Path:
    """Write the page, the text, the tables and the figures; return the page's path.

    Args:
        comparison: What `comparison.collect` returns; under "measured" it may hold what
            `comparison.measure` returns. Cells without a result are shown as such.
        directory: Where; each file is written aside and renamed.
        downloads: Whether figures and curves are written as files of their own too; without them
            the page does not link to any.
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
        hits=script_json(drawings),
    )  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    if downloads:
        write_figures(drawings, directory / FIGURES)
        write_bytes(directory / CURVES, write_curves(comparison).encode())
    write_bytes(directory / TABLE, write_csv(comparison).encode())
    write_bytes(directory / TEXT, as_markdown(comparison).encode())
    write_bytes(directory / PAGE, page.encode())
    return directory / PAGE


def as_markdown(comparison: Mapping[str, Any]) -> str:
    """Return the answer and the tables as Markdown."""
    return template("report.md.jinja").render(**describe(comparison))


def describe(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Return what both the page and the text say, as words and tables."""
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
        "facts": facts(comparison),
        "config": yaml.safe_dump(comparison["config"], sort_keys=False).rstrip(),
        "runs": run_rows(cells, decimals),
        "judged": judged_sentence(comparison),
        "baseline": baseline_sentence(comparison),
        "failed": any(group.failed for group in groups.values()),
        "curves_heading": f"{curve_kind(with_curves(comparison))} loss".strip().capitalize(),
    }


def template(name: str) -> Template:
    """Return a template; what stands in a page is escaped."""
    environment = Environment(
        loader=PackageLoader("magneto.lab.report"),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def write_figures(drawings: Sequence[Drawing], directory: Path) -> None:
    """Write each figure as SVG and PDF."""
    directory.mkdir(parents=True, exist_ok=True)
    for drawing in drawings:
        write_bytes(directory / f"{drawing.name}.svg", drawing.svg.encode())
        write_bytes(directory / f"{drawing.name}.pdf", drawing.pdf)


def script_json(drawings: Sequence[Drawing]) -> str:
    """Write the points of all figures as JSON that can stand inside a script element."""
    hits = {drawing.name: drawing.hits for drawing in drawings}
    return json.dumps(hits, separators=(",", ":")).replace("<", "\\u003c")


@dataclass(frozen=True)
class RunPage:
    """What is said of a run.

    Attributes:
        name: Of the run.
        subtitle: What was trained, in a line.
        answer: How it ended, in sentences; the first is set large.
        metrics: (name, last value or None, the baseline's or None).
        rows: Of its metrics.jsonl.
        baseline: A trivial answer's metrics.
        figures: What the task shows of its model.
        facts: Names and texts: versions, machine, commits.
        config: Its recipe, as YAML.
    """

    name: str
    subtitle: str
    answer: Sequence[str]
    metrics: Sequence[tuple[str, float | None, float | None]]
    rows: Sequence[Mapping[str, Any]]
    baseline: Mapping[str, float]
    facts: Sequence[tuple[str, str]]
    config: str
    figures: Sequence[Figure] = field(default_factory=tuple)


def write_run_page(page: RunPage, directory: Path) -> Path:
    """Write the page and its figures; return the page's path.

    Args:
        page: What it says.
        directory: Where; each file is written aside and renamed.
    """
    curves = draw_run(page.rows, page.baseline)
    write_figures(curves, directory / FIGURES)
    figures = []
    for figure in page.figures:
        ending, kind = (".svg", "svg+xml") if isinstance(figure.image, str) else (".png", "png")
        image = figure.image.encode() if isinstance(figure.image, str) else figure.image
        write_bytes(directory / FIGURES / f"{figure.name}{ending}", image)
        # As an address that holds all of it: two pictures share no ids so.
        source = f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
        figures.append({"figure": figure, "file": f"{figure.name}{ending}", "source": source})
    metrics = [
        (name, *("–" if value is None else f"{value:.4g}" for value in values))
        for name, *values in page.metrics
    ]
    text = template("run.html.jinja").render(
        page=page, legend=SERIES, curves=curves, figures=figures, hits=script_json(curves),
        metrics=metrics,
    )  # fmt: skip
    write_bytes(directory / PAGE, text.encode())
    return directory / PAGE
