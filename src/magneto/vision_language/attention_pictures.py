"""Pictures of attention: where in an image each word of a text looks."""

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

from magneto.vision_language.config import VisionLanguageConfig
from magneto.vision_language.model import VisionLanguageEncoder
from magneto.vision_language.samples import Samples

# Words of a text that are drawn at most, and in a line.
WORDS, ACROSS = 20, 5
# A picture has so many panels across or more: headings need room, about so many letters a panel.
LEAST_COLUMNS, LETTERS = 4, 15
# Inches of a panel with its margins, of a line of panels with their words, of a line of a heading,
# and between texts; and the margin as a share of the panel.
SIDE, LINE, HEADING, GAP, MARGIN = 1.15, 1.3, 0.18, 0.12, 0.03
# Share of its brightness that a patch keeps at which nothing looks.
DARKEST = 0.12
STYLE: dict[Any, Any] = {"font.size": 8}


@dataclass(frozen=True)
class WordAttention:
    """Where the words of a text look in one image.

    Attributes:
        image: To look at, uint8 (height, width, channels).
        heading: What stands above the row: the text, and what was answered.
        words: That the columns are called.
        maps: How much attention each gives to each patch, (words, rows, columns).
    """

    image: np.ndarray
    heading: str
    words: Sequence[str]
    maps: np.ndarray


def attention_to_patches(
    encoder: VisionLanguageEncoder, images: Tensor, samples: Samples, layer: int
) -> Tensor:
    """Return how much attention each token gives to each patch of its image, the heads' mean.

    Args:
        encoder: In evaluation mode.
        images: (pairs, channels, height, width), on its device.
        samples: Their texts, on its device; every text has an image.
        layer: Its number from 0; negative ones count from the top.

    Returns:
        (pairs, length, grid rows, grid columns), on the CPU: first the class token, then the
        patches, then the text's tokens; what is behind them is padding.
    """
    grid = encoder.config.image_grid
    found = encoder.attention_weights(
        images, samples.token_ids, samples.token_positions, samples.packing, layer
    )
    patches = found.mean(1)[:, :, grid.prefix : grid.length].cpu()
    return patches.unflatten(2, (grid.rows, grid.columns))


def reading_layer(config: VisionLanguageConfig) -> int:
    """Return the layer whose words are drawn: the one below the top.

    Where only one token is read from the top layer, nothing teaches its words where to look.
    """
    return max(config.layers - 2, 0)


def draw_attention(rows: Sequence[WordAttention]) -> bytes:
    """Draw each text: its heading, the image, then the image as each word looks at it, as a PNG.

    The most attended patch of each is as bright as in the image, others are darker. Further words
    stand in further lines.
    """
    columns = max(LEAST_COLUMNS, 1 + max(min(len(row.words), ACROSS) for row in rows))
    headings = [wrap(row.heading, LETTERS * columns) for row in rows]
    lines = [max(1, -(-len(row.words[:WORDS]) // ACROSS)) for row in rows]
    inches = sum(HEADING * len(said) + LINE * count + GAP
                 for said, count in zip(headings, lines, strict=True))  # fmt: skip
    with rc_context(STYLE):
        drawing = Drawing(figsize=(SIDE * columns, inches), dpi=100)
        top = inches
        for row, said, count in zip(rows, headings, lines, strict=True):
            for text in said:
                top -= HEADING
                drawing.text(MARGIN / columns, top / inches, plain(text), fontsize=9)
            draw_row(drawing, row, top)
            top -= LINE * count + GAP
        out = io.BytesIO()
        drawing.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def draw_row(drawing: Drawing, row: WordAttention, top: float) -> None:
    """Draw the image of a text, and a panel for each word, below a height in inches."""
    wide, high = drawing.get_size_inches()
    panels = [("", row.image, 0, 0)]
    panels += [
        (word, darkened(row.image, weights), 1 + place % ACROSS, place // ACROSS)
        for place, (word, weights) in enumerate(zip(row.words[:WORDS], row.maps, strict=False))
    ]
    for word, image, column, line in panels:
        left, bottom = SIDE * (column + MARGIN), top - LINE * (line + 1)
        side = SIDE * (1 - 2 * MARGIN)
        axes = drawing.add_axes((left / wide, bottom / high, side / wide, side / high))
        axes.axis("off")
        axes.imshow(image, cmap="gray", vmin=0, vmax=255)
        axes.set_title(plain(word), fontsize=8, pad=2)


def words_left_out(rows: Sequence[WordAttention]) -> str:
    """Return a sentence for the caption on words that are not drawn; "" where all are."""
    cut = any(len(row.words) > WORDS for row in rows)
    return f" Of longer texts the first {WORDS} words are drawn." if cut else ""


def darkened(image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return an image, darker where less is looked, uint8 (height, width, channels).

    Args:
        image: uint8 (height, width, channels).
        weights: Of its patches, (rows, columns).
    """
    shares = weights / max(float(weights.max()), 1e-9)
    down, across = image.shape[0] // weights.shape[0], image.shape[1] // weights.shape[1]
    light = DARKEST + (1 - DARKEST) * shares.repeat(down, 0).repeat(across, 1)
    return (image * light[..., None]).astype(np.uint8)


def plain(text: str) -> str:
    """Return a text in which a dollar sign is a letter, not the beginning of a formula."""
    return text.replace("$", r"\$")
