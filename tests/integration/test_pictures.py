"""What the pictures of tasks show: images as they are, words beside them, counts in their cells."""

import io
import re

import numpy as np
import pytest

from magneto.figures import Panel, confusion_matrix, image_panels, table

Image = pytest.importorskip("PIL.Image")


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_panels_stand_in_lines_and_the_same_ones_give_the_same_bytes() -> None:
    red, blue = (np.zeros((5, 5, 3), np.uint8) for _ in range(2))
    red[..., 0], blue[..., 2] = 255, 255
    sections = [("a heading", [Panel(), Panel(red, "costs $1 or $2"), Panel(blue)])]
    png = image_panels(sections, 2)
    assert png == image_panels(sections, 2)
    found = pixels(png).astype(int)
    reds, blues = (np.argwhere((found - colour == 0).all(-1))
                   for colour in ([255, 0, 0], [0, 0, 255]))  # fmt: skip
    assert len(reds) == pytest.approx(len(blues), rel=0.02)
    assert reds[:, 0].max() < blues[:, 0].min()  # the next line: a place beside red is free
    assert blues[:, 1].max() < reds[:, 1].min()


def test_confused_classes_are_percent_of_their_row_the_commonest_alone() -> None:
    counts = np.array([[3, 1, 0], [0, 8, 0], [0, 0, 0]])
    svg, left_out = confusion_matrix(counts, ["$a", "b", "c"])
    assert left_out == 0 and ">$a<" in svg and ">c<" not in svg
    assert all(f">{word}<" in svg for word in ("75", "25", "100", "true class"))
    svg, left_out = confusion_matrix(counts, ["$a", "b", "c"], most=1)
    assert left_out == 1 and ">100<" in svg and ">$a<" not in svg
    assert "<dc:date>" not in svg


def test_a_table_has_a_bold_head_and_numbers_on_the_right() -> None:
    svg = table([["word", "count"], ["x" * 80, "7"]], right=[1])
    styles = {
        words: style for style, words in re.findall(r'<text style="([^"]*)"[^>]*>([^<]*)<', svg)
    }
    assert list(styles) == ["word", "count", "x" * 69 + "…", "7"]
    found = [("bold" in style or "700" in style, "anchor: end" in style)
             for style in styles.values()]  # fmt: skip
    assert found == [(True, False), (True, True), (False, False), (False, True)]
