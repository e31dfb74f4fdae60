"""Pictures of what a classifier does: which classes it confuses, and its surest mistakes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure as Drawing
from torch import Tensor, nn

from magneto.training.task import Figure

# Validation batches that pictures are made of, classes of a drawn confusion matrix, mistakes shown.
BATCHES, MOST, MISTAKES = 16, 30, 12
STYLE: dict[Any, Any] = {"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "magneto"}


@torch.no_grad()
def answers(
    model: nn.Module, batches: Sequence[Any], candidates: Tensor
) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Yield the first batches with the probabilities that a model gives their classes."""
    device = next(model.parameters()).device
    for number in range(min(BATCHES, len(batches))):
        batch = batches[number]
        logits = model(batch["images"].to(device)).float().cpu() + candidates
        yield batch, logits.softmax(1)


def confusion_figure(
    model: nn.Module, batches: Sequence[Any], candidates: Tensor, names: Sequence[str]
) -> Figure:
    """Draw how often each class is taken for each other one."""
    counts = np.zeros((len(names), candidates.numel()), np.int64)
    for batch, probabilities in answers(model, batches, candidates):
        np.add.at(counts, (batch["labels"].numpy(), probabilities.argmax(1).numpy()), 1)
    shown = np.sort(np.argsort(-counts.sum(1), kind="stable")[:MOST])
    rows = counts[np.ix_(shown, shown)]
    share = rows / np.maximum(counts[shown].sum(1, keepdims=True), 1)
    right, total = int(np.trace(counts[:, : len(names)])), int(counts.sum())
    side = 2.2 + 0.22 * len(shown)
    with rc_context(STYLE):
        drawing = Drawing(figsize=(side, side), dpi=72, layout="constrained")
        axes = drawing.subplots()
        axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
        labels = [names[number] for number in shown]
        axes.set_xticks(range(len(shown)), labels, rotation=90)
        axes.set_yticks(range(len(shown)), labels)
        axes.set_xlabel("answer")
        axes.set_ylabel("label")
        if len(shown) <= 12:
            for (row, column), count in np.ndenumerate(rows):
                dark = share[row, column] > 0.5
                axes.text(column, row, str(count), ha="center", va="center",
                          color="white" if dark else "black")  # fmt: skip
        image = svg(drawing)
    part = "" if len(shown) == len(names) else f" The {len(shown)} commonest classes are drawn."
    caption = (
        f"Of {total:,} validation images {right:,} are given their own label "
        f"({right / total:.1%}). A row is a label, dark where all its images get one answer.{part}"
    )
    return Figure("confusion", "Which classes are confused", caption, image)


def mistakes_figure(
    model: nn.Module, batches: Sequence[Any], candidates: Tensor, names: Sequence[str]
) -> Figure:
    """Show the wrong answers that the model was surest of."""
    found: list[tuple[float, int, int, np.ndarray]] = []
    for batch, probabilities in answers(model, batches, candidates):
        sure, answer = probabilities.max(1)
        wrong = ~batch["accepted"].gather(1, answer[:, None])[:, 0] & ~batch["broken"]
        for row in wrong.nonzero()[:, 0].tolist():
            label = int(batch["labels"][row])
            found.append((float(sure[row]), label, int(answer[row]), batch["images"][row].numpy()))
        found = sorted(found, key=lambda entry: -entry[0])[:MISTAKES]
    columns = 6
    with rc_context(STYLE):
        height = 1.5 * max(-(-len(found) // columns), 1)
        drawing = Drawing(figsize=(1.35 * columns, height), dpi=110, layout="constrained")
        for place, (sure, label, answer, image) in enumerate(found):
            axes = drawing.add_subplot(max(-(-len(found) // columns), 1), columns, place + 1)
            axes.imshow(picture(image), cmap="gray")
            axes.set_title(f"{names[label]}: {names[answer]}\n{sure:.0%}", fontsize=7)
            axes.axis("off")
        out = io.BytesIO()
        drawing.savefig(out, format="png", metadata={"Software": None})
    caption = (
        f"The {len(found)} wrong answers that the model was surest of: the label, its answer, and "
        "the probability that it gave it."
    )
    return Figure("mistakes", "The surest mistakes", caption, out.getvalue())


def picture(image: np.ndarray) -> np.ndarray:
    """Return (channels, height, width) of any scale as (height, width[, 3]) in [0, 1]."""
    low, high = image.min(), image.max()
    scaled = ((image - low) / max(high - low, 1e-6)).transpose(1, 2, 0)
    return scaled[..., 0] if scaled.shape[2] == 1 else scaled


def svg(drawing: Drawing) -> str:
    """Return a drawing as SVG; the same drawing gives the same text."""
    out = io.StringIO()
    drawing.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
