"""Pictures of what a classifier does: classes it confuses, its surest mistakes, where it looks."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.training.task import Figure
from magneto.vision.tokenizer.pictures import png, tiles
from magneto.vision.transforms import Reading

# Validation batches that pictures are made of, classes of a drawn confusion matrix.
BATCHES, MOST = 16, 30
# Mistakes that are shown, and their columns; images and heads of the picture of attention.
MISTAKES, COLUMNS, IMAGES, HEADS = 12, 4, 8, 6
# Letters of a class's name.
LONGEST = 20
STYLE: dict[Any, Any] = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "magneto"}


@dataclass(frozen=True)
class Mistake:
    """A wrong answer.

    Attributes:
        sure: Probability that the model gave it.
        label: Number of the image's own class.
        answer: Number of the class that was given.
        image: As the model reads it, (channels, height, width).
    """

    sure: float
    label: int
    answer: int
    image: np.ndarray


@dataclass
class Answers:
    """What a model answers to some validation images.

    Attributes:
        counts: Of images that could be read, by label and answer, (classes, classes).
        mistakes: The surest wrong answers, the surest first.
        images: The first ones, as the model reads them.
    """

    counts: np.ndarray
    mistakes: list[Mistake] = field(default_factory=list)
    images: Tensor = field(default_factory=lambda: torch.zeros(0))


@torch.no_grad()
def collect_answers(
    model: Any, batches: Sequence[dict[str, Tensor]], candidates: Tensor
) -> Answers:
    """Ask a model about the first validation batches, once for all pictures.

    Args:
        model: An `ImageClassifier`, on its device.
        batches: Of the validation data.
        candidates: Added to the logits, (classes): -inf where a class is no candidate.
    """
    device, found = next(model.parameters()).device, Answers(np.zeros((len(candidates),) * 2, int))
    for number in range(min(BATCHES, len(batches))):
        batch = batches[number]
        logits = model(batch["images"].to(device)).float().cpu() + candidates
        sure, answer = logits.softmax(1).max(1)
        # A broken image is seen as grey; an image without a label has no row.
        counted = ~batch["broken"] & (batch["labels"] >= 0)
        np.add.at(found.counts, (batch["labels"][counted].numpy(), answer[counted].numpy()), 1)
        wrong = (answer != batch["labels"]) & ~batch["broken"]
        here = [
            Mistake(
                float(sure[row]), int(batch["labels"][row]), int(answer[row]),
                batch["images"][row].numpy().copy(),
            )
            for row in wrong.nonzero()[:, 0].tolist()
        ]  # fmt: skip
        every = sorted([*found.mistakes, *here], key=lambda mistake: -mistake.sure)
        found.mistakes = every[:MISTAKES]
        if not len(found.images):
            found.images = batch["images"][~batch["broken"]][:IMAGES].clone()
    return found


def confusion_figure(counts: np.ndarray, names: Sequence[str]) -> Figure:
    """Draw how often each class is taken for each other one.

    Args:
        counts: Of `Answers`.
        names: Of the classes.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Drawing

    there = counts.sum(1)
    shown = np.sort(np.argsort(-there, kind="stable")[:MOST])
    shown = shown[there[shown] > 0]
    rows = counts[np.ix_(shown, shown)]
    share = rows / there[shown, None]
    right, total = int(np.trace(counts)), int(counts.sum())
    side = 2.0 + 0.32 * len(shown)
    with rc_context(STYLE):
        drawing = Drawing(figsize=(side, side), dpi=72, layout="constrained")
        axes = drawing.subplots()
        axes.pcolormesh(share, cmap="Blues", vmin=0, vmax=1, edgecolors="white")
        axes.invert_yaxis()
        axes.set_aspect("equal")
        labels, places = [short(names, number) for number in shown], np.arange(len(shown)) + 0.5
        axes.set_xticks(places, labels, rotation=90)
        axes.set_yticks(places, labels)
        axes.set_xlabel("the model's answer")
        axes.set_ylabel("the image's label")
        for row, column in zip(*np.nonzero(rows), strict=True):
            colour = "white" if share[row, column] > 0.5 else "black"
            axes.text(column + 0.5, row + 0.5, str(rows[row, column]), ha="center", va="center",
                      color=colour, fontsize=7)  # fmt: skip
        image = svg(drawing)
    hidden = int((there > 0).sum()) - len(shown)
    more = f" {hidden} rarer classes are left out." if hidden else ""
    caption = (
        f"Of {total:,} validation images {right:,} are given their own label "
        f"({right / max(total, 1):.1%}). A row has the images of a label, a column those of an "
        f"answer: darker where more of the row are there.{more}"
    )
    return Figure("confusion", "Which classes are confused", caption, image)


def mistakes_figure(mistakes: Sequence[Mistake], names: Sequence[str], reading: Reading) -> Figure:
    """Show the wrong answers that a model was surest of.

    Args:
        mistakes: Of `Answers`.
        names: Of the classes.
        reading: The form of their images.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Drawing

    rows = max(-(-len(mistakes) // COLUMNS), 1)
    with rc_context(STYLE):
        drawing = Drawing(figsize=(1.7 * COLUMNS, 2.1 * rows), dpi=110, layout="constrained")
        for place, mistake in enumerate(mistakes):
            axes = drawing.add_subplot(rows, COLUMNS, place + 1)
            axes.imshow(reading.restore(mistake.image), cmap="gray", vmin=0, vmax=255)
            label, answer = short(names, mistake.label), short(names, mistake.answer)
            axes.set_title(f"is {label}\nsaid {answer}, {mistake.sure:.0%}", fontsize=9)
            axes.axis("off")
        out = io.BytesIO()
        drawing.savefig(out, format="png", metadata={"Software": None})
    caption = (
        f"The {len(mistakes)} wrong answers that the model was surest of: the image's label, the "
        "answer, and the probability that the model gave it."
    )
    return Figure("mistakes", "The surest mistakes", caption, out.getvalue())


@torch.no_grad()
def attention_figure(model: Any, images: Tensor, reading: Reading) -> Figure:
    """Show how much of each patch the last layer takes for what the head sees.

    Args:
        model: An `ImageClassifier`, on its device.
        images: As the model reads them, (count, channels, height, width).
        reading: Their form.
    """
    config, device = model.config, next(model.parameters()).device
    x = model.class_token(model.embedding(images.to(device)))
    found = model.encoder.attention_weights(x, config.layers - 1).cpu()
    prefix, side = config.grid.prefix, config.image_size // config.patch_size
    asked = found[:, :, model.pooled].mean(2)[..., prefix:]
    rows = [asked.mean(1), *asked[:, :HEADS].unbind(1)]
    plain = np.stack([reading.restore(image.numpy()) for image in images])
    pictures = torch.from_numpy(plain).permute(0, 3, 1, 2) / 127.5 - 1
    maps = [(2 * row / row.amax(1, keepdim=True) - 1).unflatten(1, (side, side)) for row in rows]
    large = [
        m.repeat_interleave(config.patch_size, 1).repeat_interleave(config.patch_size, 2)[:, None]
        for m in maps
    ]
    every = [pictures, *(m.expand(-1, pictures.shape[1], -1, -1) for m in large)]
    who = "the class token" if config.pooling == "first" else "the patches, on average,"
    share = float(asked.sum(-1).mean())
    caption = (
        f"Above: validation images. Below: how much attention {who} gives to each patch in the "
        f"last layer, all heads together, then {len(rows) - 1} heads in a row each; the most "
        f"attended patch is white. {share:.0%} of the attention goes to patches."
    )
    return Figure("attention", "Where the last layer looks", caption, png(tiles(every)))


def short(names: Sequence[str], number: int) -> str:
    """Return a class's name up to its first comma, cut where it is long."""
    word = names[number].partition(",")[0] if number < len(names) else str(number)
    return word if len(word) <= LONGEST else word[: LONGEST - 1] + "…"


def svg(drawing: Any) -> str:
    """Return a drawing as SVG; the same drawing gives the same text."""
    out = io.StringIO()
    drawing.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
