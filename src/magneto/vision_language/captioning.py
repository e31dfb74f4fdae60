"""Image captioning: a text that says what an image shows, written from left to right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from magneto.data.stream import EVALUATION_SEED, BatchStream
from magneto.functional.cross_entropy import count_numbers, frequency_nats
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.decoding import Picture
from magneto.vision_language.caption_decoding import (
    CaptionHiding,
    CaptionSearch,
    CaptionWriter,
    caption_hiding,
    hide_words,
)
from magneto.vision_language.cider import cider
from magneto.vision_language.config import CaptioningDataConfig, ImageCaptionerConfig
from magneto.vision_language.finetuning import CaptionedTask
from magneto.vision_language.model import ImageCaptioner


class ImageCaptioning(CaptionedTask):
    """Images with captions, an `ImageCaptioner`, nats per hidden word."""

    primary_metric = "cider"
    unit = "images"
    model_config: ImageCaptionerConfig
    data_config: CaptioningDataConfig

    def build_model(self) -> ImageCaptioner:
        """Build the model; the encoder of a pre-trained run is in `initial_weights`."""
        return ImageCaptioner(self.sized_config())

    @cached_property
    def _hiding(self) -> CaptionHiding:
        return caption_hiding(self.tokenizer, self.data_config.mask_ratio)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return shuffled pairs of an image and one of its captions, words of them hidden.

        A batch has "images"; "samples", pairs that are read from left to right; "words", numbers
        of the words to guess among the language tokens; "targets", what they are; and "broken", how
        many of them are of pairs in the place of others. Words are hidden anew in every epoch.
        """
        tokens, pairs = self.train_tokens, self.pairs
        hiding, image_tokens = self._hiding, self.model_config.image_tokens

        def finish(batch: dict[str, Any], numbers: np.ndarray, draws: np.ndarray) -> dict[str, Any]:
            texts = [tokens[row][own] for row, own in pairs[batch["rows"].numpy()].tolist()]
            keys = [(seed, int(draw), int(number), 1)
                    for number, draw in zip(numbers, draws, strict=True)]  # fmt: skip
            hidden, counts = hide_words(texts, hiding, image_tokens, keys)
            broken = int(counts[batch["broken"].numpy()].sum())
            return {"images": batch["images"], **hidden, "broken": torch.tensor(broken)}

        return self.shuffled_rows(batch_size, seed, finish, pairs[:, 0])

    def validation_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add the first caption of each image, always hidden alike."""
        rows = batch["rows"].tolist()
        texts = [self.validation_tokens[row][0] for row in rows]
        keys = [(EVALUATION_SEED, row) for row in rows]
        hidden, _ = hide_words(texts, self._hiding, self.model_config.image_tokens, keys)
        return {**batch, **hidden}

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        """Return black images with the longest captions, words of them hidden."""
        texts = self.longest_texts(examples)
        keys = [(self.seed, number) for number in range(examples)]
        hidden, _ = hide_words(texts, self._hiding, self.model_config.image_tokens, keys)
        return {"images": self.black_images(examples), **hidden, "broken": torch.tensor(0)}

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Loss:
        """Sum the cross-entropy of the hidden words, smoothed.

        "nll" is without smoothing; "broken" the share of words that are of pairs in the place of
        others whose image could not be read.
        """
        found = model(batch["images"], batch["samples"], batch["words"], batch["targets"])
        return Loss(found.total, found.count, {"nll": found.nll, "broken": batch["broken"]})

    def score(self, model: nn.Module, batch: dict[str, Any]) -> Scores:
        """Sum the losses of hidden words; write a caption of each image, the likeliest words."""
        found = model(batch["images"], batch["samples"], batch["words"], batch["targets"])
        written = CaptionWriter(model, self.model_config, self.tokenizer).greedy(batch["images"])
        sums = {"loss": found.nll, "count": found.count, "broken": batch["broken"].sum()}
        return Scores(sums, (batch["rows"], written, batch["broken"]))

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return "loss" per hidden word, and the mean "cider" of greedy captions (papers: x 100).

        "broken" counts images that could not be read, if there are any; their captions are empty.
        """
        rows, written, broken = map(torch.cat, zip(*predictions, strict=True))
        captions = [
            "" if lost else self.text(tokens)
            for tokens, lost in zip(written.tolist(), broken.tolist(), strict=True)
        ]
        scores = cider(captions, self._references(rows.tolist()))
        found = {"loss": sums["loss"] / sums["count"], "cider": float(np.mean(scores))}
        return found | ({"broken": sums["broken"]} if sums["broken"] else {})

    def text(self, tokens: Sequence[int]) -> str:
        """Return the words of tokens up to the first `</s>`."""
        end = self.tokenizer.end
        stop = tokens.index(end) if end in tokens else len(tokens)
        return self.tokenizer.decode(list(tokens[:stop])).strip()

    def _references(self, rows: Iterable[int]) -> list[Sequence[str]]:
        captions = self.splits.validation.values("captions")
        return [captions[row] for row in rows]

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the loss of the words' frequencies, and the CIDEr of the commonest caption."""
        size = self.tokenizer.vocab_size
        train = np.concatenate([text[1:] for texts in self.train_tokens for text in texts])
        batches = list(islice(self.validation_batches(), limit))
        asked = torch.cat([batch["targets"] for batch in batches]).numpy()
        nats = frequency_nats(count_numbers(train, size), count_numbers(asked, size))
        common = Counter(self.training_texts()).most_common(1)[0][0]
        references = self._references(torch.cat([batch["rows"] for batch in batches]).tolist())
        scores = cider([common] * len(references), references)
        return {"loss": nats / len(asked), "cider": float(np.mean(scores))}

    def caption(self, model: Any, pictures: Sequence[Picture], how: CaptionSearch) -> list[str]:
        """Return a caption of each image, by beam search.

        Args:
            model: With a run's weights, in evaluation mode.
            pictures: That can be decoded.
            how: To search.
        """
        images = self.read_pictures(pictures)
        writer = CaptionWriter(model, self.model_config, self.tokenizer)
        found = writer.search(images.to(next(model.parameters()).device), how)
        return [self.text(tokens) for tokens in found]


@torch.no_grad()
def figures(task: ImageCaptioning, model: nn.Module) -> Sequence[Figure]:
    """Return some validation images with what the model says of them."""
    from magneto.vision_language.figures import captions_figure, readable_rows

    held = task.splits.validation
    if not (rows := readable_rows(held)):
        return []
    pictures = [held.open(row)[0] for row in rows]
    return [captions_figure(held, rows, task.caption(model, pictures, CaptionSearch()))]
