"""Pictures of captions: what is said of images, and which images are found for a caption."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure as Drawing
from torch import Tensor

from magneto.data.batch import mixed_order
from magneto.training.task import Figure
from magneto.vision.decoding import BrokenImage
from magneto.vision_language.attention_pictures import plain
from magneto.vision_language.captions import CaptionSplit

# Images with what is said of them, and in a line; captions that are searched with, and images found
# for each.
SHOWN, ACROSS = 6, 3
SEARCHES, FOUND = 4, 3
# Inches of a panel's side and of a line of words; letters of a line, and lines of a text at most.
SIDE, LINE, LETTERS, LINES = 2.1, 0.16, 34, 5
STYLE: dict[Any, Any] = {"font.size": 8}


@dataclass(frozen=True)
class Panel:
    """An image with words above it.

    Attributes:
        image: uint8 (height, width, channels).
        words: One text or more, each of which begins a line.
    """

    image: np.ndarray
    words: Sequence[str]


def readable_rows(split: CaptionSplit) -> list[int]:
    """Return some rows of a split whose images can be read, always the same ones."""
    found: list[int] = []
    for row in mixed_order(len(split)).tolist():
        try:
            split.open(row).pixels()
        except BrokenImage:
            continue
        found.append(row)
        if len(found) == SHOWN:
            break
    return found


def captions_figure(split: CaptionSplit, rows: Sequence[int], written: Sequence[str]) -> Figure:
    """Show what a model says of images, beside what somebody else said.

    Args:
        split: The images, with their captions.
        rows: Which of them; their images can be read.
        written: A caption of each.
    """
    panels = [
        Panel(split.open(row).pixels(), (f"says: {said}", f"given: {split.rows[row].captions[0]}"))
        for row, said in zip(rows, written, strict=True)
    ]
    caption = (
        f"{len(panels)} validation images: what the model says of each, and the first of the "
        "captions that are given with it."
    )
    return Figure("captions", "What the model says", caption, draw_panels(panels, ACROSS))


def searches_figure(
    split: CaptionSplit, rows: Sequence[int], images: Tensor, texts: Tensor
) -> Figure:
    """Show which images are found first for some captions.

    Args:
        split: The images, with their captions.
        rows: Those that are searched; their images can be read.
        images: Their embeddings, of length 1, (rows, width).
        texts: Those of their first captions, (rows, width).
    """
    panels: list[Panel] = []
    shown, right = min(SEARCHES, len(rows)), 0
    alike = texts @ images.T
    for asked in range(shown):
        own = split.rows[rows[asked]]
        panels.append(Panel(split.open(rows[asked]).pixels(), [f"for: {own.captions[0]}"]))
        best = alike[asked].topk(min(FOUND, len(rows)))
        right += int(best.indices[0]) == asked
        for place, index in enumerate(best.indices.tolist()):
            mark = ", the caption's own" if index == asked else ""
            words = f"{place + 1}: {float(best.values[place]):.2f}{mark}"
            panels.append(Panel(split.open(rows[index]).pixels(), [words]))
    caption = (
        f"On the left {shown} captions with their own images; beside each the images that lie "
        f"nearest to the caption among {len(rows)}, with the cosine of the two. The nearest is the "
        f"caption's own in {right} of {shown}."
    )
    columns = 1 + min(FOUND, len(rows))
    return Figure("searches", "What captions find", caption, draw_panels(panels, columns))


def draw_panels(panels: Sequence[Panel], columns: int) -> bytes:
    """Draw images in lines, each below its words, as a PNG."""
    said = [
        [line for text in panel.words
         for line in wrap(plain(text), LETTERS, max_lines=LINES, placeholder=" ...")]
        for panel in panels
    ]  # fmt: skip
    lines = [range(start, min(start + columns, len(panels)))
             for start in range(0, len(panels), columns)]  # fmt: skip
    heights = [SIDE + LINE * (1 + max(len(said[number]) for number in line)) for line in lines]
    wide, high = SIDE * columns, sum(heights)
    with rc_context(STYLE):
        drawing = Drawing(figsize=(wide, high), dpi=100)
        bottom = high
        for line, height in zip(lines, heights, strict=True):
            bottom -= height
            for column, number in enumerate(line):
                place = (column + 0.03) / columns, (bottom + 0.05) / high
                size = 0.94 / columns, (SIDE - 0.1) / high
                axes = drawing.add_axes((*place, *size))
                axes.axis("off")
                axes.imshow(panels[number].image, cmap="gray", vmin=0, vmax=255)
                axes.set_title("\n".join(said[number]), fontsize=8, pad=3, loc="left")
        out = io.BytesIO()
        drawing.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
