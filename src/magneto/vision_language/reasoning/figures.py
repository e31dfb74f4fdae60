"""Pictures of what a model judges: where the words of statements look in each of their images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from magneto.data.tokenizer import Tokenizer
from magneto.training.task import Figure
from magneto.vision.batches import Transform
from magneto.vision.transforms import Reading
from magneto.vision_language.attention_pictures import (
    WordAttention,
    attention_to_patches,
    draw_attention,
    reading_layer,
    words_left_out,
)
from magneto.vision_language.reasoning.batches import StatementBatches
from magneto.vision_language.reasoning.statements import ANSWERS, Statement

# Statements that are drawn, each of another wording as far as there are so many.
STATEMENTS = 4
# Validation statements among which they are looked for.
LOOKED_AT = 256
SIDES = ("left", "right")


@torch.no_grad()
def statement_figures(
    model: Any,
    batches: StatementBatches,
    transform: Transform,
    tokenizer: Tokenizer,
    reading: Reading,
) -> list[Figure]:
    """Return a picture of where the words of some statements look in their images.

    Args:
        model: A `VisualReasoner`, in evaluation mode, on its device.
        batches: Of the validation statements.
        transform: What is done to an image.
        tokenizer: Of the statements.
        reading: The form of their images.
    """
    chosen = some_statements(batches)
    if not len(chosen):
        return []
    device = next(model.parameters()).device
    batch = batches.fixed(chosen, transform)
    images, samples = batch["images"].to(device), batch["samples"].to(device)
    answers = model(images, samples).argmax(1).tolist()
    layer = reading_layer(model.config)
    maps = attention_to_patches(model.encoder, images, samples, layer)
    first, pieces = model.config.image_tokens, tokenizer.pieces()
    rows, shares = [], []
    for place, row in enumerate(chosen.tolist()):
        if batch["broken"][place]:
            continue
        words = [pieces[token].strip() for token in batches.texts[row][1:-1]]
        for side, name in enumerate(SIDES):
            number = place * len(SIDES) + side
            looked = maps[number, first + 1 : first + 1 + len(words)]
            shares.append(looked.sum((1, 2)))
            said = headline(batches.split.statements[row], answers[place])
            heading = name if side else f"{said}   —   {name}"
            image = reading.restore(batch["images"][number].numpy())
            rows.append(WordAttention(image, heading, words, looked.numpy()))
    if not rows:
        return []
    share = float(torch.cat(shares).mean())
    caption = (
        "Validation statements, beside each of their images, and what the model and the data say. "
        "Then for each word how much attention it gives to each patch, all heads together, in "
        f"layer {layer + 1} of {model.config.layers} from below; the most attended patch is the "
        f"brightest. {share:.0%} of these words' attention goes to patches, the rest to words and "
        f"the class token.{words_left_out(rows)}"
    )
    return [Figure("attention", "Where a statement's words look", caption, draw_attention(rows))]


def some_statements(batches: StatementBatches) -> np.ndarray:
    """Return numbers of validation statements with words, the first of each wording."""
    order = batches.evaluation(lambda picture, random: batches.blank, 1).plans[:LOOKED_AT]
    rows = [int(plan[0]) for plan in order if len(batches.texts[int(plan[0])]) > 2]
    words: dict[str, int] = {}
    for row in rows:
        words.setdefault(batches.split.statements[row].sentence, row)
    chosen = dict.fromkeys([*words.values(), *rows])
    return np.array(list(chosen)[:STATEMENTS], np.int64)


def headline(statement: Statement, answer: int) -> str:
    """Return what stands above the first image: the statement and what is said of it."""
    return f"{statement.sentence}   —   model: {ANSWERS[answer]}; it is {ANSWERS[statement.label]}"
