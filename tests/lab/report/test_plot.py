"""How a figure gets into a page, and out of it."""

import xml.etree.ElementTree as ElementTree

from magneto.lab.report.palette import series_of
from magneto.lab.report.plot import Plot, _inline, svg_file


def test_coordinates_are_rounded_and_labels_are_not() -> None:
    drawn = (
        '<svg viewBox="0 0 9 9"><path d="M1.23456 -0.98765"/><text x="4.56789">0.016</text></svg>'
    )
    assert '<path d="M1.23 -0.99"/><text x="4.57">0.016</text>' in _inline(drawn, "figure")


def test_a_figure_holds_its_legend_of_what_it_shows() -> None:
    series = series_of(["sub", "pre"], {"sub": "Sub-LN", "pre": "Pre-LN"})
    plot = Plot("one", (3, 2), title="learning rate 1")
    before = plot.figure.get_figheight()
    plot.belongs(series["sub"], plot.axes[0].plot([1, 2], [1, 2], **series["sub"].line))
    drawing = plot.finish(series.values())
    assert drawing.series == [0] and drawing.title == "learning rate 1"
    assert plot.figure.get_figheight() > before
    assert "Sub-LN" in drawing.svg and "Pre-LN" not in drawing.svg
    # The curve, and the legend's line and text: all are hidden together.
    assert drawing.svg.count('data-series="0"') == 3
    assert drawing.pdf.startswith(b"%PDF")


def test_a_file_has_its_colours_and_a_page() -> None:
    series = series_of(["sub"], {})
    plot = Plot("one", (3, 2))
    plot.belongs(series["sub"], plot.axes[0].plot([1, 2], [1, 2], **series["sub"].line))
    drawing = plot.finish(series.values())
    assert "var(--series-0, #0067b1)" in drawing.svg
    text = svg_file(drawing.svg)
    assert "var(" not in text and "#0067b1" in text and "aria-hidden" not in text
    first = ElementTree.fromstring(text)[0]
    assert first.tag.endswith("rect") and first.get("fill") == "#ffffff"
