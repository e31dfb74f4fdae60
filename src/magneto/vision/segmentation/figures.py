"""Pictures of what a segmentation model does: overlays, and which classes it confuses."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from magneto.training.task import Figure
from magneto.vision.geometry import with_channels
from magneto.vision.segmentation.config import IGNORED
from magneto.vision.segmentation.overlay import class_colours, overlay, panels_png

# Classes of a drawn confusion matrix at most: the commonest.
MOST = 25
STYLE: dict[Any, Any] = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "magneto"}


def overlay_figure(
    name: str, pixels: np.ndarray, mask: np.ndarray, answer: np.ndarray, names: Sequence[str]
) -> Figure:
    """Return an image, its mask and the model's answer, side by side.

    Args:
        name: Of the image.
        pixels: uint8 (height, width, channels).
        mask: Its classes, uint8 (height, width).
        answer: Those that the model gives.
        names: Of all classes.
    """
    colours = class_colours(len(names))
    known = mask != IGNORED
    right = (answer == mask)[known].mean() if known.any() else 0.0
    panels = [with_channels(pixels, 3), overlay(pixels, mask, colours)]
    png = panels_png(
        [*panels, overlay(pixels, answer, colours)], ["image", "mask", "model"],
        [mask, answer], names,
    )  # fmt: skip
    short = re.sub(r"[^a-zA-Z0-9]+", "-", name.rpartition("/")[2].rpartition(".")[0] or name)
    return Figure(
        f"segmentation-{short.strip('-')}",
        f"Segmentation of {name.rpartition('/')[2]}",
        f"The image, its mask and what the model says: {right:.1%} of the pixels that have a class "
        "are right. The legend has each class's share of mask and answer together.",
        png,
    )


def confusion_figure(matrix: np.ndarray, names: Sequence[str]) -> Figure:
    """Return which classes are taken for which, of the commonest `MOST`.

    Args:
        matrix: Of `magneto.vision.segmentation.scores.confusion`.
        names: Of the classes.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Drawing

    there = matrix.sum(1)
    shown = np.sort(np.argsort(-there, kind="stable")[:MOST])
    shown = shown[there[shown] > 0]
    share = matrix[np.ix_(shown, shown)] / there[shown, None]
    words = [str(names[number]) for number in shown]
    side = 1.6 + 0.36 * len(words)
    with rc_context(STYLE):
        drawing = Drawing(figsize=(side + 0.6, side), layout="constrained")
        axes = drawing.add_subplot()
        image = axes.pcolormesh(share, cmap="Blues", vmin=0, vmax=1, edgecolors="white")
        axes.invert_yaxis()
        axes.set_aspect("equal")
        places = np.arange(len(words)) + 0.5
        axes.set_xticks(places, words, rotation=90)
        axes.set_yticks(places, words)
        axes.set_xlabel("the model's class")
        axes.set_ylabel("the mask's class")
        for row, column in zip(*np.nonzero(share >= 0.05), strict=True):
            colour = "white" if share[row, column] > 0.6 else "black"
            axes.text(column + 0.5, row + 0.5, f"{100 * share[row, column]:.0f}", ha="center",
                      va="center", color=colour, fontsize=7)  # fmt: skip
        drawing.colorbar(image, shrink=0.7)
        file = io.StringIO()
        drawing.savefig(file, format="svg", metadata={"Date": None})
    left_out = int((there > 0).sum()) - len(shown)
    more = f" {left_out} rarer classes are left out." if left_out else ""
    return Figure(
        "segmentation-confusion",
        "Which classes are taken for which",
        f"Rows are the masks' classes, columns the model's: percent of a class's pixels, over "
        f"{int(there.sum()):,} pixels of validation images.{more}",
        file.getvalue(),
    )
