"""Pictures for reports: where words look in images, and what is said of images or found by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from magneto.data.stream import evaluation_order
from magneto.figures import Panel, Section, image_panels
from magneto.training.task import Figure
from magneto.vision.decoding import BrokenImage
from magneto.vision_language.finetuning import PairTask
from magneto.vision_language.tables import ImageRows

# Texts that are drawn with their words, each of another wording as far as there are so many; rows
# among which they are looked for; words in a line, and of a text, that are drawn.
TEXTS, LOOKED_AT = 5, 256
ACROSS, WORDS = 5, 20
# How bright a patch stays that gets no attention.
DARKEST = 0.12
# Images with what is said of them, and in a line; captions that are searched with, and images found
# for each.
SHOWN, IN_LINE = 6, 3
SEARCHES, FOUND = 4, 3


def some_rows(task: PairTask) -> np.ndarray:
    """Return numbers of validation rows whose text has words, the first of each wording, int64."""
    texts, tokens = task.splits.validation.values(task.column), task.validation_tokens
    rows: list[int] = [
        row for row in evaluation_order(len(tokens))[:LOOKED_AT].tolist() if len(tokens[row]) > 2
    ]
    first: dict[str, int] = {}
    for row in rows:
        first.setdefault(texts[row], row)
    return np.array([*dict.fromkeys([*first.values(), *rows])][:TEXTS], np.int64)


@torch.no_grad()
def attention_figure(
    task: PairTask,
    model: Any,
    heading: Callable[[int, int], str],
    sides: Sequence[str] = ("",),
) -> list[Figure]:
    """Show some texts beside their images as the words look at them; nothing if none is there.

    A heading is made of a validation row and the model's answer, by its number; the sides are what
    the images of a row are called.
    """
    rows, config = some_rows(task), model.config
    if not len(rows):
        return []
    batch, device = task.fixed_rows(rows), next(model.parameters()).device
    images, samples = batch["images"].to(device), batch["samples"].to(device)
    answers = model(images, samples).argmax(1).tolist()
    # Of the top layer one token is read: nothing teaches its words where to look.
    pieces, layer = task.tokenizer.pieces(), max(config.layers - 2, 0)
    # Of each token's attention, the heads' mean, what each patch gets.
    grid, found = config.image_grid, model.encoder.attention_weights(images, samples, layer)
    maps = found.mean(1)[:, :, grid.prefix : grid.length].cpu().unflatten(2, (grid.rows, -1))
    starts, ends = (part.tolist() for part in (samples.text_starts, samples.text_ends))
    ids, first = samples.token_ids.tolist(), config.image_tokens
    sections, shares, cut = [], [], False
    for number, image in enumerate(batch["images"]):
        row, side = divmod(number, len(sides))
        words = [pieces[token].strip() for token in ids[starts[number] + 1 : ends[number]]]
        if batch["broken"][row] or not words:
            continue
        looked = maps[number, first + 1 : first + 1 + len(words)]
        shares.append(looked.sum((1, 2)))
        pixels = task.reading.restore(image.numpy())
        drawn = [Panel(darkened(pixels, weights), word)
                 for word, weights in zip(words[:WORDS], looked.numpy(), strict=False)]  # fmt: skip
        panels: list[Panel] = []
        for start in range(0, len(drawn), ACROSS):
            panels += [Panel() if start else Panel(pixels), *drawn[start : start + ACROSS]]
        above = heading(int(rows[row]), answers[row]) if side == 0 else ""
        sections.append(Section(panels, "   —   ".join(filter(None, (above, sides[side])))))
        cut |= len(words) > WORDS
    if not sections:
        return []
    share = float(torch.cat(shares).mean())
    caption = (
        "Validation rows: what is asked or said, what the model answers and what the data does. "
        "Then the image, and the image as each word looks at it: the less attention a patch gets, "
        f"all heads together, the darker it is (layer {layer + 1} of {config.layers} from "
        f"below). {share:.0%} of these words' attention goes to patches, the rest to words and "
        f"the class token.{f' Of longer texts the first {WORDS} words are drawn.' if cut else ''}"
    )
    picture = image_panels(sections, 1 + ACROSS, side=1.15)
    return [Figure("attention", "Where words look in their images", caption, picture)]


def darkened(image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return an image, darker where less is looked, uint8 (height, width, channels)."""
    shares = weights / max(float(weights.max()), 1e-9)
    down, across = image.shape[0] // weights.shape[0], image.shape[1] // weights.shape[1]
    light = DARKEST + (1 - DARKEST) * shares.repeat(down, 0).repeat(across, 1)
    return (image * light[..., None]).astype(np.uint8)


def pixels_of(rows: ImageRows, row: int) -> np.ndarray:
    """Return the image of a row, uint8 (height, width, channels)."""
    return rows.open(row)[0].pixels()


def readable_rows(rows: ImageRows) -> list[int]:
    """Return some rows whose image can be read, always the same ones."""
    found: list[int] = []
    for row in evaluation_order(len(rows)).tolist():
        with suppress(BrokenImage):
            pixels_of(rows, row)
            found.append(row)
        if len(found) == SHOWN:
            break
    return found


def captions_figure(rows: ImageRows, chosen: Sequence[int], written: Sequence[str]) -> Figure:
    """Show what a model says of images, beside what somebody else said."""
    given = rows.values("captions")
    panels = [Panel(pixels_of(rows, row), f"says: {said}\ngiven: {given[row][0]}")
              for row, said in zip(chosen, written, strict=True)]  # fmt: skip
    caption = (
        f"{len(panels)} validation images: what the model says of each, and the first of the "
        "captions that are given with it."
    )
    picture = image_panels([Section(panels)], IN_LINE)
    return Figure("captions", "What the model says", caption, picture)


def searches_figure(
    rows: ImageRows, chosen: Sequence[int], images: Tensor, texts: Tensor
) -> Figure:
    """Show which images are found first for some captions."""
    given, panels = rows.values("captions"), list[Panel]()
    shown, found, right = min(SEARCHES, len(chosen)), min(FOUND, len(chosen)), 0
    for asked, likeness in enumerate((texts @ images.T)[:shown]):
        panels.append(Panel(pixels_of(rows, chosen[asked]), f"for: {given[chosen[asked]][0]}"))
        best = likeness.topk(found)
        right += int(best.indices[0]) == asked
        for place, index in enumerate(best.indices.tolist()):
            mark = ", the caption's own" if index == asked else ""
            words = f"{place + 1}: {float(best.values[place]):.2f}{mark}"
            panels.append(Panel(pixels_of(rows, chosen[index]), words))
    caption = (
        f"On the left {shown} captions with their own images; beside each the images that lie "
        f"nearest to the caption among {len(chosen)}, with the cosine of the two. The nearest is "
        f"the caption's own in {right} of {shown}."
    )
    picture = image_panels([Section(panels)], 1 + found)
    return Figure("searches", "What captions find", caption, picture)
