"""How a figure gets into a page, and out of it."""

import re
import xml.etree.ElementTree as ElementTree

from magneto.lab.report.plot import Plot, for_page, series_of


def test_coordinates_are_rounded_and_labels_are_not() -> None:
    drawn = (
        '<svg viewBox="0 0 9 9"><path d="M1.23456 -0.98765"/><text x="4.56789">0.016</text></svg>'
    )
    assert '<path d="M1.23 -0.99"/><text x="4.57">0.016</text>' in for_page(drawn)


def test_a_figure_holds_its_legend_of_what_it_shows() -> None:
    series = series_of(["sub", "pre"], {"sub": "Sub-LN", "pre": "Pre-LN"})
    plot = Plot("one", (3, 2), title="learning rate 1")
    before = plot.figure.get_figheight()
    plot.belongs(series["sub"], plot.axes[0].plot([1, 2], [1, 2], **series["sub"].line))
    drawing = plot.finish()
    assert drawing.series == [0] and drawing.title == "learning rate 1"
    assert plot.figure.get_figheight() > before
    assert "Sub-LN" in drawing.svg and "Pre-LN" not in drawing.svg
    # The curve, and the legend's line and text: all are hidden together.
    assert drawing.svg.count('data-series="0"') == 3
    assert drawing.pdf.startswith(b"%PDF")


def test_a_figure_is_a_file_of_its_own_whose_ids_are_no_other_figures() -> None:
    series = series_of(["sub"], {})
    found = []
    for name in ("one", "two"):
        plot = Plot(name, (3, 2))
        plot.belongs(series["sub"], plot.axes[0].plot([1, 2], [1, 2], **series["sub"].line))
        svg = plot.finish().svg
        root = ElementTree.fromstring(svg)
        ids = {node.get("id") for node in root.iter()} - {None}
        assert {link for link in re.findall(r'(?:href="#|url\(#)([^")]+)', svg)} <= ids
        assert "#0067b1" in svg and "#ffffff" in svg
        found.append(ids)
    assert found[0] and not found[0] & found[1]
