"""Pictures of attention: where in an image each word of a text looks."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure as Drawing
from torch import Tensor

from magneto.vision_language.config import VisionLanguageConfig
from magneto.vision_language.model import VisionLanguageEncoder
from magneto.vision_language.samples import Samples

# Words of a text that are drawn at most, and the inches of a panel.
WORDS, SIDE = 12, 1.15
# How much of a heat map lies over the image.
OPACITY = 0.65
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

    Where only the image's class token is read from the top layer, nothing teaches its words where
    to look.
    """
    return max(config.layers - 2, 0)


def draw_attention(rows: Sequence[WordAttention]) -> bytes:
    """Draw a row for each text: the image, then a heat map for each word; return a PNG file.

    Each heat map is as bright as its own most attended patch.
    """
    columns = 1 + max(min(len(row.words), WORDS) for row in rows)
    with rc_context(STYLE):
        drawing = Drawing(figsize=(SIDE * columns, (SIDE + 0.45) * len(rows)), dpi=110)
        parts = drawing.subfigures(len(rows), 1, squeeze=False)[:, 0]
        for row, part in zip(rows, parts, strict=True):
            draw_row(part, row, columns)
        out = io.BytesIO()
        drawing.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def draw_row(part: Any, row: WordAttention, columns: int) -> None:
    """Draw one text in its part of the drawing."""
    part.suptitle(row.heading, x=0.01, y=0.98, ha="left", fontsize=9)
    panels = part.subplots(1, columns, squeeze=False)[0]
    part.subplots_adjust(left=0.01, right=0.99, bottom=0.02, top=0.68, wspace=0.08)
    for axes in panels:
        axes.axis("off")
    height, width = row.image.shape[:2]
    extent = (0, width, height, 0)
    panels[0].imshow(row.image, extent=extent, cmap="gray", vmin=0, vmax=255)
    for axes, word, weights in zip(panels[1:], row.words[:WORDS], row.maps, strict=False):
        axes.imshow(row.image, extent=extent, cmap="gray", vmin=0, vmax=255)
        axes.imshow(weights, extent=extent, cmap="inferno", alpha=OPACITY, vmin=0)
        # A dollar sign is a letter here, not the beginning of a formula.
        axes.set_title(word.replace("$", r"\$"), fontsize=8, pad=2)
