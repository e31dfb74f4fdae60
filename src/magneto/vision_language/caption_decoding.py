"""Captions from left to right: what a word sees, and how they are written.

An image's tokens see each other. A word sees the image, the words before it and itself (BEiT-3,
section 3.3). So a caption is written word by word by the model that learnt to fill in hidden ones:
the next word is what it puts in the place of a `<mask>` at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from magneto.data.tokenizer import Tokenizer
from magneto.fields import configuration
from magneto.nn.config import Beams
from magneto.nn.multiway import Packing
from magneto.vision_language.config import ImageCaptionerConfig
from magneto.vision_language.samples import Samples


def left_to_right(packing: Packing, image_tokens: int) -> Packing:
    """Return a packing of pairs in which words see no later words, and images see no words."""
    place = torch.arange(packing.length, device=packing.vision_place.device)
    query, key = place[:, None], place[None]
    # Padding stands behind all words, which do not see it.
    allowed = (key < image_tokens) | ((query >= image_tokens) & (key <= query))
    return replace(packing, attention_mask=allowed[None])


@configuration
class CaptionSearch:
    """How to search for captions; the defaults are those of BEiT-3's released code."""

    beams: Beams = 3
    """Captions kept at each step; 1 takes the likeliest word each time."""
    length_penalty: float = 0.6
    """Power of the length by which summed log-probabilities are divided."""


@dataclass(frozen=True)
class CaptionWriter:
    """Writes captions with an `ImageCaptioner`, maybe wrapped for ranks, in evaluation mode.

    Every step reads the image and the words so far anew: nothing is cached.
    """

    model: nn.Module
    config: ImageCaptionerConfig
    tokenizer: Tokenizer

    def greedy(self, images: Tensor) -> Tensor:
        """Return the likeliest words one after another; nothing waits for the device.

        They are (images, max_length - 1) tokens, `<s>` left out; what follows the first `</s>`
        means nothing.
        """
        written = torch.full((len(images), 1), self.tokenizer.begin, device=images.device)
        for _ in range(self.config.max_length - 1):
            scores = self.next_words(images, written)
            written = torch.cat((written, scores.argmax(-1, keepdim=True)), dim=1)
        return written[:, 1:]

    def next_words(self, images: Tensor, written: Tensor) -> Tensor:
        """Return the log-probabilities of the word after (captions, length) tokens, `<s>` first."""
        mask: Any = self.tokenizer.mask
        ends = torch.full_like(written[:, :1], mask)
        count, length = written.shape[0], written.shape[1] + 1
        places = torch.arange(1, count + 1, device=written.device) * length - 1
        samples = even_samples(torch.cat((written, ends), dim=1), self.config.image_tokens)
        logits: Any = self.model(images, samples, places)
        logits = logits.float()
        logits[:, self.never()] = -torch.inf
        return logits.log_softmax(-1)

    def never(self) -> list[int]:
        """Return tokens that are in no caption; `</s>` ends one."""
        special = {self.tokenizer.begin, self.tokenizer.pad, self.tokenizer.mask}
        return sorted(token for token in special - {self.tokenizer.end} if token is not None)

    @torch.no_grad()
    def search(self, images: Tensor, how: CaptionSearch) -> list[list[int]]:
        """Return the best caption of each image, by beam search, without special tokens."""
        return [self._search_one(image[None], how) for image in images]

    def _search_one(self, image: Tensor, how: CaptionSearch) -> list[int]:
        """Return the best caption of an image, (1, channels, height, width).

        A caption's score is the sum of its words' log-probabilities, `</s>` among them, divided by
        their number to the power of `length_penalty`. At the greatest length what is there counts
        as ended, as in BEiT-3's code.
        """
        end, most = self.tokenizer.end, self.config.max_length - 1
        written = torch.full((1, 1), self.tokenizer.begin, device=image.device)
        sums = torch.zeros(1, device=image.device)
        ended: list[tuple[float, list[int]]] = []
        for length in range(1, most + 1):
            scores = self.next_words(image.expand(len(written), -1, -1, -1), written)
            totals = (sums[:, None] + scores).flatten()
            # Of so many at most `beams` end.
            best = totals.topk(min(2 * how.beams, len(totals)))
            rows, words = best.indices // scores.shape[1], best.indices % scores.shape[1]
            going = []
            for place, (row, word, total) in enumerate(
                zip(rows.tolist(), words.tolist(), best.values.tolist(), strict=True)
            ):
                if word == end or length == most:
                    tokens = [*written[row, 1:].tolist(), *([] if word == end else [word])]
                    ended.append((total / length**how.length_penalty, tokens))
                elif len(going) < how.beams:
                    going.append(place)
            ended = sorted(ended, key=lambda pair: -pair[0])[: how.beams]
            if not going or self._is_settled(ended, best.values[going[0]].item(), length, how):
                break
            chosen = torch.tensor(going, device=image.device)
            written = torch.cat((written[rows[chosen]], words[chosen, None]), dim=1)
            sums = best.values[chosen]
        return ended[0][1]

    def _is_settled(
        self, ended: list[tuple[float, list[int]]], best: float, length: int, how: CaptionSearch
    ) -> bool:
        """Return whether no caption that goes on can be among the best: sums only fall."""
        longest = max(length + 1, self.config.max_length - 1)
        reachable = best / (longest if how.length_penalty > 0 else length + 1) ** how.length_penalty
        return len(ended) == how.beams and ended[-1][0] >= reachable


def even_samples(tokens: Tensor, image_tokens: int) -> Samples:
    """Return texts of one length, (pairs, length), each with an image, made on their device."""
    count, length = tokens.shape
    row = image_tokens + length

    def spread(each: int, step: int, first: int) -> Tensor:
        """Return `each` numbers in a row for every pair, from `first` on, pairs `step` apart."""
        starts = torch.arange(count, device=tokens.device)[:, None] * step + first
        return (starts + torch.arange(each, device=tokens.device)).flatten()

    packing = Packing(
        vision_place=spread(image_tokens, row, 0),
        language_place=spread(length, row, image_tokens),
        rows=count,
        length=row,
        vision_alone=0,
        language_paired=count * length,
        attention_mask=None,
    )
    return Samples(
        token_ids=tokens.flatten(),
        token_positions=spread(length, 0, 0),
        packing=left_to_right(packing, image_tokens),
        image_starts=spread(1, image_tokens, 0),
        text_starts=spread(1, length, 0),
    )
