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

    Where only the image's class token is read from the top layer, nothing teaches its words where
    to look.
    """
    return max(config.layers - 2, 0)


def draw_attention(rows: Sequence[WordAttention]) -> bytes:
    """Draw a row for each text: the image, then the image as each word looks at it; return a PNG.

    The most attended patch of each is as bright as in the image, others are darker.
    """
    columns = 1 + max(min(len(row.words), WORDS) for row in rows)
    with rc_context(STYLE):
        drawing = Drawing(figsize=(SIDE * columns, (SIDE + 0.42) * len(rows)), dpi=100)
        panels = drawing.subplots(len(rows), columns, squeeze=False)
        drawing.subplots_adjust(
            left=0.01, right=0.99, top=1 - 0.4 / ((SIDE + 0.42) * len(rows)), bottom=0.01,
            wspace=0.08, hspace=0.42,
        )  # fmt: skip
        for row, across in zip(rows, panels, strict=True):
            draw_row(across, row)
        out = io.BytesIO()
        drawing.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def draw_row(panels: Sequence[Any], row: WordAttention) -> None:
    """Draw one text in its panels."""
    for axes in panels:
        axes.axis("off")
    panels[0].imshow(row.image, cmap="gray", vmin=0, vmax=255)
    panels[0].set_title(plain(row.heading), fontsize=9, pad=14, loc="left")
    for axes, word, weights in zip(panels[1:], row.words[:WORDS], row.maps, strict=False):
        axes.imshow(darkened(row.image, weights), cmap="gray", vmin=0, vmax=255)
        axes.set_title(plain(word), fontsize=8, pad=2)


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
