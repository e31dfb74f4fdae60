"""The page of a run with known numbers, and its curves."""

import math
from pathlib import Path
from xml.etree import ElementTree

from magneto.lab.report.figures import draw_run
from magneto.lab.report.report import write_run_page
from magneto.training.task import Figure

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><path d="M0 0"/></svg>'
PNG = b"\x89PNG\r\n\x1a\nnot a whole one"


def page() -> dict[str, object]:
    return {
        "name": "a <run>", "subtitle": "toy", "answer": ["It finished.", "Best & last."],
        "metrics": [("accuracy", 0.8334567, None), ("loss", None, 2.5),
                    ("error rate", 0.0, None)],
        "rows": [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}], "baseline": {"loss": 2.5},
        "facts": [("torch", "2.13.0")], "config": "task: toy",
        "figures": [Figure("codes", "Codes", "Patches & codes", SVG),
                    Figure("masks", "Masks", "Masked patches", PNG)],
    }  # fmt: skip


def test_everything_is_said_and_escaped_and_pictures_lie_beside_the_page(tmp_path: Path) -> None:
    text = write_run_page(page(), tmp_path).read_text()
    assert text.startswith("<!doctype html>")
    assert "a &lt;run&gt;" in text and "Best &amp; last." in text and "<run>" not in text
    for number in ("0.8335", "2.5", "–", "0"):
        assert f"<td>{number}</td>" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert text.count("data:image/svg+xml;base64") == 1
    assert text.count("data:image/png;base64") == 1

    assert (tmp_path / "figures" / "codes.svg").read_text() == SVG
    assert (tmp_path / "figures" / "masks.png").read_bytes() == PNG
    ElementTree.fromstring((tmp_path / "figures" / "curve-loss.svg").read_text())
    assert (tmp_path / "figures" / "curve-loss.pdf").read_bytes().startswith(b"%PDF")


ROWS = [
    {"step": 10, "loss": 3.0, "gradient_norm": 1.0, "learning_rate": 1e-3},
    {"step": 20, "loss": math.nan, "gradient_norm": 2.0, "learning_rate": 1e-3},
    {"step": 20, "validation_loss": 2.5, "validation_accuracy": 0.5},
]


def test_a_figure_for_each_name_the_loss_first_and_the_loop_last() -> None:
    drawings = draw_run(ROWS, {"loss": 2.9})
    assert [drawing.title for drawing in drawings] == [
        "loss", "accuracy", "learning rate", "gradient norm"
    ]  # fmt: skip
    loss, accuracy, *_ = drawings
    assert all(f'data-series="{number}"' in loss.svg for number in (0, 1))
    assert 'data-series="1"' in accuracy.svg and 'data-series="0"' not in accuracy.svg
    assert "baseline" in loss.svg and "baseline" not in accuracy.svg
    assert list(loss.main.lines[0].get_ydata()) == [2.9, 2.9]
    texts = [text for hit in loss.hits for _, _, text in hit["points"]]
    assert texts == ["step 10: loss 3", "step 20: loss 2.5"]  # what is not finite is no point


def test_what_was_never_finite_has_no_figure() -> None:
    assert draw_run([{"step": 1, "loss": None}, {"step": 2, "loss": math.inf}], {}) == []
    assert draw_run([], {}) == []
