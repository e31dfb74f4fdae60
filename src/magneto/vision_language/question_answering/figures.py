"""Pictures of what a model answers: where the words of questions look, and surest mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from magneto.data.tokenizer import Tokenizer
from magneto.training.task import Figure
from magneto.vision.transforms import Reading
from magneto.vision_language.attention_pictures import (
    WordAttention,
    attention_to_patches,
    draw_attention,
    reading_layer,
    words_left_out,
)
from magneto.vision_language.question_answering.batches import QuestionBatches
from magneto.vision_language.question_answering.questions import Question

# Questions that are drawn, each of another wording as far as there are so many.
QUESTIONS = 6
# Validation questions among which they are looked for.
LOOKED_AT = 256


@torch.no_grad()
def question_figures(
    model: Any, batches: QuestionBatches, answers: Sequence[str], tokenizer: Tokenizer,
    reading: Reading,
) -> list[Figure]:  # fmt: skip
    """Return a picture of where the words of some questions look in their images.

    Args:
        model: A `QuestionAnswerer`, in evaluation mode, on its device.
        batches: Of the validation questions.
        answers: To choose from.
        tokenizer: Of the questions.
        reading: The form of their images.
    """
    device = next(model.parameters()).device
    batch = batches.fixed(some_questions(batches))
    images, samples = batch["images"].to(device), batch["samples"].to(device)
    numbers = model(images, samples).argmax(1).tolist()
    layer = reading_layer(model.config)
    maps = attention_to_patches(model.encoder, images, samples, layer)
    first, pieces = model.config.image_tokens, tokenizer.pieces()
    rows, shares = [], []
    for place, (row, number) in enumerate(zip(batch["rows"].tolist(), numbers, strict=True)):
        if batch["broken"][place]:
            continue
        tokens = batches.tokens[row]
        words = [pieces[token].strip() for token in tokens[1:-1]]
        looked = maps[place, first + 1 : first + 1 + len(words)]
        shares.append(looked.sum((1, 2)))
        image = reading.restore(batch["images"][place].numpy())
        heading = headline(batches.split.questions[row], answers[int(number)])
        rows.append(WordAttention(image, heading, words, looked.numpy()))
    if not any(len(row.words) for row in rows):
        return []
    share = float(torch.cat(shares).mean())
    caption = (
        "Validation questions, each beside its image and what the model and the annotators "
        "answer. Then the image as each word looks at it: the less attention a patch gets, all "
        f"heads together, the darker it is (layer {layer + 1} of {model.config.layers} from "
        f"below). {share:.0%} of these words' attention goes to patches, the rest to words and "
        f"the class token.{words_left_out(rows)}"
    )
    return [Figure("attention", "Where a question's words look", caption, draw_attention(rows))]


def some_questions(batches: QuestionBatches) -> Any:
    """Return numbers of validation questions, the first of each wording."""
    order = batches.evaluation(1).plans[:LOOKED_AT]
    rows = [int(plan[0]) for plan in order]
    words: dict[str, int] = {}
    for row in rows:
        if len(batches.tokens[row]) > 2:  # it has words
            words.setdefault(batches.split.questions[row].text, row)
    chosen = [*words.values(), *rows]
    return torch.tensor(list(dict.fromkeys(chosen))[:QUESTIONS]).numpy()


def headline(question: Question, answer: str) -> str:
    """Return a question, the model's answer and the annotators' in a line."""
    known = f"; annotators: {question.majority}" if question.majority else ""
    return f"{question.text}   —   model: {answer}{known}"
