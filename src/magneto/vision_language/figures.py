"""Figures of vision-language models: attention of tokens to patches, captions, and retrieval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.data.stream import evaluation_order
from magneto.figures import Panel, image_panels
from magneto.training.task import Figure
from magneto.vision.images import ImageSplit
from magneto.vision_language.finetuning import PairTask

# Texts of the attention figure; rows among which different texts are searched; tokens in a line,
# and drawn tokens of a text.
TEXTS, SEARCHED_ROWS = 5, 256
ACROSS, TOKENS = 5, 20
# Brightness of a patch without attention.
DARKEST = 0.12
# Images with captions, and in a line; captions of the retrieval figure, and images for each.
SHOWN, IN_LINE = 6, 3
QUERIES, RETRIEVED = 4, 3


def some_rows(task: PairTask) -> np.ndarray:
    texts, tokens = task.splits.validation.values(task.column), task.validation_tokens
    first: dict[str, int] = {}
    for row in evaluation_order(len(tokens))[:SEARCHED_ROWS].tolist():
        if len(tokens[row]) > 2:
            first.setdefault(texts[row], row)
    return np.array([*first.values()][:TEXTS], np.int64)


@torch.no_grad()
def attention_figure(
    task: PairTask,
    model: Any,
    heading: Callable[[int, int], str],
    sides: Sequence[str] = ("",),
) -> list[Figure]:
    """Draw the attention of tokens to image patches for a few texts. Return [] for no texts.

    `heading` takes a validation row and the index of the model's answer, and returns a heading.
    `sides` names the images of a row, for example "left" and "right".
    """
    rows, config = some_rows(task), model.config
    if not len(rows):
        return []
    batch, device = task.validation_batches().make(rows), next(model.parameters()).device
    images, samples = batch["images"].to(device), batch["samples"].to(device)
    answers = model(images, samples).argmax(1).tolist()
    # The layer below the top one: of the top layer the head reads, and so trains, only one token.
    pieces, layer = task.tokenizer.pieces(), max(config.layers - 2, 0)
    # Mean attention over heads from each token to each patch.
    grid, found = config.grid, model.encoder.attention_weights(images, samples, layer)
    maps = found.mean(1)[:, :, grid.prefix : grid.length].cpu().unflatten(2, (grid.rows, -1))
    starts, ends = (part.tolist() for part in (samples.text_starts, samples.text_ends))
    ids, first = samples.token_ids.tolist(), config.image_tokens
    sections, shares, cut = [], [], False
    for number, image in enumerate(batch["images"]):
        row, side = divmod(number, len(sides))
        tokens = [pieces[token].strip() for token in ids[starts[number] + 1 : ends[number]]]
        if batch["broken"][row] or not tokens:
            continue
        looked = maps[number, first + 1 : first + 1 + len(tokens)]
        shares.append(looked.sum((1, 2)))
        pixels = task.input_format.restore(image.numpy())
        token_panels = [
            Panel(darkened(pixels, weights), token)
            for token, weights in zip(tokens[:TOKENS], looked.numpy(), strict=False)
        ]
        panels: list[Panel] = []
        for start in range(0, len(token_panels), ACROSS):
            panels += [Panel() if start else Panel(pixels), *token_panels[start : start + ACROSS]]
        above = heading(int(rows[row]), answers[row]) if side == 0 else ""
        sections.append(("   —   ".join(filter(None, (above, sides[side]))), panels))
        cut |= len(tokens) > TOKENS
    if not sections:
        return []
    share = float(torch.cat(shares).mean())
    caption = (
        "Validation examples with text, the model's answer and the right answer. For each token, a "
        "copy of the image shows the token's attention: patches with less attention are darker. "
        f"Attention is the mean over all heads of layer {layer + 1} of {config.layers}. "
        f"{share:.0%} of the tokens' attention goes to patches. The remaining attention goes to "
        "tokens of the text and to the class token."
        f"{f' Only the first {TOKENS} tokens of longer texts are drawn.' if cut else ''}"
    )
    picture = image_panels(sections, 1 + ACROSS, side=1.15)
    return [Figure("attention", "Attention of text tokens to image patches", caption, picture)]


def darkened(image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    shares = weights / max(float(weights.max()), 1e-9)
    down, across = image.shape[0] // weights.shape[0], image.shape[1] // weights.shape[1]
    light = DARKEST + (1 - DARKEST) * shares.repeat(down, 0).repeat(across, 1)
    return (image * light[..., None]).astype(np.uint8)


def captions_figure(rows: ImageSplit, chosen: Sequence[int], written: Sequence[str]) -> Figure:
    given = rows.values("captions")
    panels = [Panel(rows.pixels(row), f"model: {text}\nreference: {given[row][0]}")
              for row, text in zip(chosen, written, strict=True)]  # fmt: skip
    caption = (
        f"{len(panels)} validation images with the model's caption and the first reference caption."
    )
    picture = image_panels([("", panels)], IN_LINE)
    return Figure("captions", "Captions", caption, picture)


def searches_figure(
    rows: ImageSplit, chosen: Sequence[int], images: Tensor, texts: Tensor
) -> Figure:
    given, panels = rows.values("captions"), list[Panel]()
    shown, found, right = min(QUERIES, len(chosen)), min(RETRIEVED, len(chosen)), 0
    for asked, likeness in enumerate((texts @ images.T)[:shown]):
        panels.append(Panel(rows.pixels(chosen[asked]), f"query: {given[chosen[asked]][0]}"))
        best = likeness.topk(found)
        right += int(best.indices[0]) == asked
        for place, index in enumerate(best.indices.tolist()):
            mark = ", correct" if index == asked else ""
            words = f"{place + 1}: {float(best.values[place]):.2f}{mark}"
            panels.append(Panel(rows.pixels(chosen[index]), words))
    caption = (
        f"Left: {shown} captions with their own images. Right: for each caption, the nearest "
        f"images by cosine similarity, out of {len(chosen)}. For {right} of {shown} captions, the "
        "nearest image is the caption's own image."
    )
    picture = image_panels([("", panels)], 1 + found)
    return Figure("searches", "Images retrieved by captions", caption, picture)
