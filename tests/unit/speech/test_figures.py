"""Figures of a recogniser: drawn, with the numbers that they show."""

import re

import pytest
import torch

from magneto.speech.figures import best_path_line, draw_errors
from magneto.speech.scores import WordRow
from magneto.training.task import figures_of
from tests.unit.speech.test_task import made

pytest.importorskip("jiwer")


def test_the_three_figures() -> None:
    task = made()
    task.prepare()
    torch.manual_seed(0)
    figures = figures_of(task, task.build_model().eval())
    assert [figure.name for figure in figures] == ["spectrogram", "alignment", "errors-by-word"]
    assert all(figure.image[:4] == b"\x89PNG" for figure in figures[:2])
    assert ">written instead<" in figures[2].image
    best, total = map(float, re.findall(r"-\d+\.\d+", figures[1].caption))
    assert best <= total < 0
    assert task.speech.splits.validation.texts[0].split()[0] in " ".join(f.caption for f in figures)
    words = sum(len(text.split()) for text in task.speech.splits.validation.texts)
    assert f"5 validation utterances with {words} words" in figures[2].caption


def test_a_path_rises_at_its_labels() -> None:
    times, heights = best_path_line([1, 1, 3], 5)
    assert times == [0.0, 1.5, 1.5, 1.5, 1.5, 3.5, 3.5, 5.0]
    assert heights == [0.0, 0, 1, 1, 2, 2, 3, 3.0]


def test_nothing_wrong_is_a_table_too() -> None:
    rows = [WordRow("one", 3, 3, 0, []), WordRow("", 0, 0, 0, [])]
    assert "3 words, of which 3 are right" in draw_errors(rows, 2).caption
