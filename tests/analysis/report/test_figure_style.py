"""How a figure gets into a page."""

from magneto.analysis.report.figure_style import _inline


def test_coordinates_are_rounded_and_labels_are_not() -> None:
    drawn = (
        '<svg viewBox="0 0 9 9"><path d="M1.23456 -0.98765"/><text x="4.56789">0.016</text></svg>'
    )
    assert '<path d="M1.23 -0.99"/><text x="4.57">0.016</text>' in _inline(drawn, "figure")
