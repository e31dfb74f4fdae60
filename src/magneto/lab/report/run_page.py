"""One run as a page: how it ended, its curves, and pictures of what its model does.

The page is one file that needs no network. Beside it lie the pictures as files.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magneto.files import write_bytes
from magneto.lab.report.plot import svg_file
from magneto.lab.report.report import FIGURES, PAGE, page_templates, script_json
from magneto.lab.report.run_curves import SERIES, draw_run
from magneto.training.task import Figure


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
    (directory / FIGURES).mkdir(parents=True, exist_ok=True)
    for drawing in curves:
        path = directory / FIGURES / drawing.name
        write_bytes(path.with_suffix(".svg"), svg_file(drawing.svg).encode())
        write_bytes(path.with_suffix(".pdf"), drawing.pdf)
    figures = []
    for figure in page.figures:
        name = f"{figure.name}{ending(figure)}"
        write_bytes(directory / FIGURES / name, content(figure))
        figures.append({"figure": figure, "file": name, "source": data_uri(figure)})
    text = (
        page_templates()
        .get_template("run.html.jinja")
        .render(
            page=page,
            legend=SERIES,
            curves=curves,
            figures=figures,
            hits=script_json(curves),
            metrics=[(name, *map(shown, values)) for name, *values in page.metrics],
        )
    )
    write_bytes(directory / PAGE, text.encode())
    return directory / PAGE


def shown(value: float | None) -> str:
    """Return a number as it is printed; a dash for none."""
    return "–" if value is None else f"{value:.4g}"


def ending(figure: Figure) -> str:
    """Return the ending of a figure's file."""
    return ".svg" if isinstance(figure.image, str) else ".png"


def content(figure: Figure) -> bytes:
    """Return a figure's file."""
    return figure.image.encode() if isinstance(figure.image, str) else figure.image


def data_uri(figure: Figure) -> str:
    """Return a figure as an address that holds all of it; two pictures share no ids so."""
    kind = "svg+xml" if isinstance(figure.image, str) else "png"
    return f"data:image/{kind};base64,{base64.b64encode(content(figure)).decode()}"
