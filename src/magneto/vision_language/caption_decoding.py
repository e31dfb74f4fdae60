"""Decoding of captions from left to right, by greedy search or beam search.

Image tokens attend only to image tokens. A word attends to the image, to earlier words and to
itself (BEiT-3, section 3.1). To predict the next word, a `<mask>` is appended to the words so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from magneto.data.tokenizer import Tokenizer
from magneto.fields import configuration
from magneto.nn.config import Beams
from magneto.nn.multiway import Packing, token_numbers
from magneto.vision_language.config import ImageCaptionerConfig
from magneto.vision_language.samples import Samples


def left_to_right(packing: Packing, image_tokens: int) -> Packing:
    """Return `packing` with an attention mask for captions.

    The image does not attend to words. A word attends to the image, to earlier words and to itself.
    """
    place = torch.arange(packing.length, device=packing.vision_place.device)
    query, key = place[:, None], place[None]
    # Padding follows all words, which do not attend to it.
    allowed = (key < image_tokens) | ((query >= image_tokens) & (key <= query))
    return replace(packing, attention_mask=allowed[None])


@configuration
class CaptionSearch:
    """Parameters of a beam search for captions. Defaults are those of BEiT-3's released code."""

    beams: Beams = 3
    """Number of beams. With 1 beam, captions have the words of greedy search, but may end
    earlier."""
    length_penalty: float = 0.6
    """A caption's score is the sum of the token log-probabilities, divided by the caption length to
    the power `length_penalty`."""


@dataclass(frozen=True)
class CaptionWriter:
    """Writes captions with an `ImageCaptioner`, which may be wrapped in DDP or FSDP.

    The model must be in evaluation mode.

    There is no cache: every step encodes the image and all words again.
    """

    model: nn.Module
    config: ImageCaptionerConfig
    tokenizer: Tokenizer

    def greedy(self, images: Tensor) -> Tensor:
        """Return captions by greedy search, without `<s>`, (images, max_length - 1).

        Tokens after the first `</s>` are meaningless.
        """
        written = torch.full((len(images), 1), self.tokenizer.begin, device=images.device)
        for _ in range(self.config.longest_text - 1):
            scores = self.next_words(images, written)
            written = torch.cat((written, scores.argmax(-1, keepdim=True)), dim=1)
        return written[:, 1:]

    def next_words(self, images: Tensor, written: Tensor) -> Tensor:
        """Return the log-probabilities of each caption's next token, (captions, vocabulary)."""
        mask: Any = self.tokenizer.mask
        ends = torch.full_like(written[:, :1], mask)
        count, length = written.shape[0], written.shape[1] + 1
        places = torch.arange(1, count + 1, device=written.device) * length - 1
        samples = samples_of_equal_length(
            torch.cat((written, ends), dim=1), self.config.image_tokens
        )
        logits: Any = self.model(images, samples, places)
        logits = logits.float()
        logits[:, self.forbidden_tokens()] = -torch.inf
        return logits.log_softmax(-1)

    def forbidden_tokens(self) -> list[int]:
        special = {self.tokenizer.begin, self.tokenizer.pad, self.tokenizer.mask}
        return sorted(token for token in special - {self.tokenizer.end} if token is not None)

    @torch.no_grad()
    def search(self, images: Tensor, how: CaptionSearch) -> list[list[int]]:
        return [self._search_one(image[None], how) for image in images]

    def _search_one(self, image: Tensor, how: CaptionSearch) -> list[int]:
        end, most = self.tokenizer.end, self.config.longest_text - 1
        written = torch.full((1, 1), self.tokenizer.begin, device=image.device)
        sums = torch.zeros(1, device=image.device)
        ended: list[tuple[float, list[int]]] = []
        for length in range(1, most + 1):
            scores = self.next_words(image.expand(len(written), -1, -1, -1), written)
            totals = (sums[:, None] + scores).flatten()
            # Each beam can end in one way only, so at least `beams` of these go on.
            best = totals.topk(min(2 * how.beams, len(totals)))
            rows, words = best.indices // scores.shape[1], best.indices % scores.shape[1]
            going = []
            for place, (row, word, total) in enumerate(
                zip(rows.tolist(), words.tolist(), best.values.tolist(), strict=True)
            ):
                # As in BEiT-3's code, a caption of maximum length counts as finished.
                if word == end or length == most:
                    tokens = [*written[row, 1:].tolist(), *([] if word == end else [word])]
                    ended.append((total / length**how.length_penalty, tokens))
                elif len(going) < how.beams:
                    going.append(place)
            ended = sorted(ended, key=lambda pair: -pair[0])[: how.beams]
            if not going or self._is_finished(ended, best.values[going[0]].item(), length, how):
                break
            chosen = torch.tensor(going, device=image.device)
            written = torch.cat((written[rows[chosen]], words[chosen, None]), dim=1)
            sums = best.values[chosen]
        return ended[0][1]

    def _is_finished(
        self, ended: list[tuple[float, list[int]]], best: float, length: int, how: CaptionSearch
    ) -> bool:
        # No unfinished caption can exceed `reachable`, since more tokens only lower the sum.
        longest = max(length + 1, self.config.longest_text - 1)
        reachable = best / (longest if how.length_penalty > 0 else length + 1) ** how.length_penalty
        return len(ended) == how.beams and ended[-1][0] >= reachable


def samples_of_equal_length(tokens: Tensor, image_tokens: int) -> Samples:
    # On the device, unlike `join_samples`: while captions are scored, no step waits for a copy.
    count, length = tokens.shape
    numbers = torch.arange(count, device=tokens.device)
    places = torch.arange(count * (image_tokens + length), device=tokens.device).view(count, -1)
    vision_place, language_place = (
        part.flatten() for part in places.split((image_tokens, length), dim=1)
    )
    packing = Packing(
        vision_place=vision_place,
        language_place=language_place,
        token=token_numbers(vision_place, language_place, places.numel()),
        rows=count,
        length=image_tokens + length,
        vision_alone=0,
        language_paired=count * length,
        attention_mask=None,
    )
    return Samples(
        token_ids=tokens.flatten(),
        token_positions=torch.arange(length, device=tokens.device).repeat(count),
        packing=left_to_right(packing, image_tokens),
        image_starts=numbers * image_tokens,
        text_starts=numbers * length,
    )
