"""Pictures of a classifier: what is counted, which mistakes are shown, whose attention."""

import io

import numpy as np
import pytest
import torch
from torch import nn

from magneto.vision.classification.config import ImageClassifierConfig
from magneto.vision.classification.figures import (
    Answers,
    Mistake,
    attention_figure,
    collect_answers,
    confusion_figure,
    mistakes_figure,
    short,
)
from magneto.vision.classification.model import ImageClassifier
from magneto.vision.transforms import Reading

Image = pytest.importorskip("PIL.Image")


class Brightness(nn.Module):
    """Says 1 of bright images, 0 of dark ones, the surer the further from grey."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(4.0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        bright = images.mean((1, 2, 3)) * self.scale
        return torch.stack((-bright, bright, torch.full_like(bright, -9.0)), 1)


def batch(shades: list[float], labels: list[int], broken: list[int] = []) -> dict:  # noqa: B006
    return {
        "images": torch.tensor(shades)[:, None, None, None].expand(-1, 3, 4, 4).clone(),
        "labels": torch.tensor(labels),
        "broken": torch.tensor([number in broken for number in range(len(labels))]),
    }


def answers() -> Answers:
    batches = [batch([-1, 1, 0.5, 0], [0, 0, 2, 1], broken=[3]), batch([-0.9], [1])]
    return collect_answers(Brightness(), batches, torch.zeros(3))


def test_answers_are_counted_and_mistakes_sorted() -> None:
    found = answers()
    assert found.counts.tolist() == [[1, 1, 0], [1, 0, 0], [0, 1, 0]]
    assert [(m.label, m.answer) for m in found.mistakes] == [(0, 1), (1, 0), (2, 1)]
    assert found.mistakes[0].sure > found.mistakes[1].sure > found.mistakes[2].sure
    assert len(found.images) == 3  # not the broken one


def test_broken_images_and_those_without_a_label_are_in_no_row() -> None:
    """A grey picture that happens to be given the right label is no right answer."""
    batches = [batch([0.0, 0.0], [0, 1], broken=[0, 1]), batch([-1.0, 1.0], [0, 1])]
    batches[1]["labels"][1] = -1
    found = collect_answers(Brightness(), batches, torch.zeros(3))
    assert found.counts.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert len(found.images) == 2  # of the second batch: the first is all broken


def test_classes_may_be_no_candidates() -> None:
    given = batch([1.0], [0])
    held = torch.tensor([-torch.inf, -torch.inf, 0.0])
    assert collect_answers(Brightness(), [given], held).counts.tolist()[0] == [0, 0, 1]


def test_the_drawings() -> None:
    found, names = answers(), ["cat, house cat", "dog", "a bird of a very long name"]
    confusion = confusion_figure(found.counts, names)
    assert isinstance(confusion.image, str) and ">cat<" in confusion.image
    assert "house" not in confusion.image and "Of 4 validation images 1 are" in confusion.caption
    assert confusion_figure(found.counts, names).image == confusion.image
    mistakes = mistakes_figure(found.mistakes, names, Reading(4))
    assert isinstance(mistakes.image, bytes) and "The 3 wrong answers" in mistakes.caption
    assert mistakes_figure([], names, Reading(4)).image  # a perfect model has none
    assert short(names, 2) == "a bird of a very lo…" and short(names, 7) == "7"


def test_only_the_commonest_classes_are_drawn() -> None:
    counts = np.diag(np.arange(40))
    found = confusion_figure(counts, [f"class{number}" for number in range(40)])
    assert ">class39<" in str(found.image) and ">class9<" not in str(found.image)
    assert "9 rarer classes are left out" in found.caption


@pytest.mark.parametrize(("pooling", "words"), [("first", "the class token"), ("mean", "patches")])
def test_attention_is_of_what_the_head_sees(pooling: str, words: str) -> None:
    config = ImageClassifierConfig(
        width=16, layers=2, heads=2, ffn_width=24, image_size=8, patch_size=4, classes=3,
        class_token="learned", pooling=pooling, positions="learned", max_length=5,
    )  # fmt: skip
    found = attention_figure(ImageClassifier(config).eval(), torch.rand(3, 3, 8, 8), Reading(8))
    assert words in found.caption and "2 heads" in found.caption
    assert isinstance(found.image, bytes)
    width, height = Image.open(io.BytesIO(found.image)).size
    assert width / height == pytest.approx(3 / 4, abs=0.05)  # images; mean and two heads below


def test_a_mistake_is_shown_as_it_looks() -> None:
    """Restored, not stretched to its own darkest and brightest pixel."""
    dark = Mistake(0.9, 0, 1, np.full((3, 4, 4), -0.8, np.float32))
    drawn = mistakes_figure([dark], ["a", "b"], Reading(4)).image
    assert isinstance(drawn, bytes)
    pixels = np.asarray(Image.open(io.BytesIO(drawn)).convert("L"))
    assert (abs(pixels.astype(int) - 26) <= 2).mean() > 0.05
