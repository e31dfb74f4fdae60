"""Figures of a report: which images are drawn, with which words, and how dark patches are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from magneto.data.table import table_of_columns
from magneto.figures import Panel
from magneto.vision.decoding import Pixels
from magneto.vision.images import ImageSplit
from magneto.vision_language import figures, question_answering, reasoning
from tests.unit.vision_language.folders import write_nlvr2
from tests.unit.vision_language.small_tasks import question_task, statement_task

Drawn = list[tuple[str, list[Panel]]]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Return the sections that are drawn from now on."""
    sections: Drawn = []
    monkeypatch.setattr(figures, "image_panels", lambda given, *_, **__: sections.extend(given))
    return sections


def rows(count: int) -> ImageSplit:
    """Image n has brightness n and two captions."""
    pixels = np.arange(count, dtype=np.uint8)[:, None, None, None].repeat(3, 3)
    captions = [(f"caption {n}", f"other {n}") for n in range(count)]
    return ImageSplit(table_of_columns({"image": Pixels(pixels), "captions": captions}))


def said(panels: Any) -> list[tuple[int, str]]:
    return [(int(panel.image[0, 0, 0]), panel.words) for panel in panels]


def test_captions_stand_with_their_images(drawn: Drawn) -> None:
    figures.captions_figure(rows(9), [7, 2], ["a", "b"])
    assert said(drawn[0][1]) == [
        (7, "model: a\nreference: caption 7"), (2, "model: b\nreference: caption 2"),
    ]  # fmt: skip


def test_the_nearest_images_follow_each_query(drawn: Drawn) -> None:
    """A row has the similarities of a caption to the images 4, 0 and 2."""
    texts = torch.tensor([[0.9, 0.1, 0.3], [0.2, 0.1, 0.8], [0.4, 0.5, 0.6]])
    figure = figures.searches_figure(rows(5), [4, 0, 2], torch.eye(3), texts)
    assert said(drawn[0][1])[:8] == [
        (4, "query: caption 4"), (4, "1: 0.90, correct"), (2, "2: 0.30"), (0, "3: 0.10"),
        (0, "query: caption 0"), (2, "1: 0.80"), (4, "2: 0.20"), (0, "3: 0.10, correct"),
    ]  # fmt: skip
    assert "2 of 3" in figure.caption


def test_patches_are_as_dark_as_a_word_ignores_them(tmp_path: Path, drawn: Drawn) -> None:
    """In the second of three layers, of each image of a statement. Labels are the rows' own."""
    write_nlvr2(tmp_path)
    (labels,) = tmp_path.rglob("train.json")
    labels.write_text(labels.read_text().replace('"True"', '"False"'))
    task = statement_task(tmp_path, {"layers": 3})
    model, chosen = task.build_model().eval(), figures.some_rows(task)
    reasoning.figures(task, model)
    batch = task.validation_batches().make(chosen)
    weights = model.encoder.attention_weights(batch["images"], batch["samples"], 1).mean(1)
    assert len(drawn) == 2 * len(chosen) > 4
    for number, (heading, panels) in enumerate(drawn):
        row, side = chosen[number // 2], number % 2
        label = f"label: {bool(task.splits.validation.values('truth')[row])}   —   left"
        assert heading.endswith(("right", label)[side == 0])
        image = task.splits.validation.open_all(row)[side].pixels()
        whole, *words = [panel for panel in panels if panel.image is not None]
        assert np.array_equal(whole.image, image) and len(words) == figures.TOKENS
        for word, panel in enumerate(words):
            seen = weights[number, 6 + word, 1:5].view(2, 2).numpy()
            light = np.kron(0.12 + 0.88 * seen / seen.max(), np.ones((4, 4)))
            assert abs(panel.image - image * light[..., None]).max() <= 1


def test_a_question_is_drawn_with_both_answers(tmp_path: Path, monkeypatch: Any) -> None:
    task: Any = question_task(tmp_path, validation_split="val2014")
    monkeypatch.setattr(figures, "attention_figure", lambda task, model, heading: heading(0, 1))
    heading = question_answering.figures(task, None)  # type: ignore[arg-type]
    assert heading == f"What colour is it?   —   model: {task.answers[1]}; annotators: blue"
