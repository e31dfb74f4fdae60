"""Image captioning: a text that says what an image shows, written from left to right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from magneto.data.frequencies import count_numbers, frequency_nats
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.decoding import Picture
from magneto.vision.transforms import Reading
from magneto.vision_language.captioned_task import CaptionedTask
from magneto.vision_language.captioning.batches import CaptionBatches, hide_words
from magneto.vision_language.captioning.cider import cider
from magneto.vision_language.captioning.config import CaptioningDataConfig, ImageCaptionerConfig
from magneto.vision_language.captioning.decoding import CaptionSearch, CaptionWriter
from magneto.vision_language.captioning.left_to_right import caption_hiding
from magneto.vision_language.captioning.model import ImageCaptioner
from magneto.vision_language.captions import CaptionSplit
from magneto.vision_language.whole_images import WholeImage


class ImageCaptioning(CaptionedTask):
    """Images with captions, an `ImageCaptioner`, nats per hidden word."""

    primary_metric = "cider"
    unit = "images"
    model_config: ImageCaptionerConfig
    data_config: CaptioningDataConfig

    def build_model(self) -> ImageCaptioner:
        """Build the model; the encoder of a pre-trained run is in `initial_weights`."""
        return ImageCaptioner(self.sized_config())

    def batches(self, split: CaptionSplit, texts: Sequence[Sequence[np.ndarray]]) -> CaptionBatches:
        """Return what hides words of a split's captions, and makes batches."""
        hiding = caption_hiding(self.tokenizer, self.data_config.mask_ratio)
        tokens = self.model_config.image_tokens
        return CaptionBatches(split, texts, hiding, tokens, self.reading.blank)

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        """Return black images with the longest captions, words of them hidden."""
        texts = self.longest_texts(examples)
        hiding = caption_hiding(self.tokenizer, self.data_config.mask_ratio)
        keys = [(self.seed, number) for number in range(examples)]
        hidden, _ = hide_words(texts, hiding, self.model_config.image_tokens, keys)
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
        return [self.splits.validation.rows[row].captions for row in rows]

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the loss of the words' frequencies, and the CIDEr of the commonest caption."""
        size = self.tokenizer.vocab_size
        train = np.concatenate([text[1:] for texts in self.train.texts for text in texts])
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
        config, random = self.model_config, np.random.default_rng(0)
        transform = WholeImage(Reading(config.image_size, config.channels,
                                       self.data_config.normalisation))  # fmt: skip
        images = torch.from_numpy(np.stack([transform(each, random) for each in pictures]))
        writer = CaptionWriter(model, config, self.tokenizer)
        found = writer.search(images.to(next(model.parameters()).device), how)
        return [self.text(tokens) for tokens in found]


@torch.no_grad()
def figures(task: ImageCaptioning, model: nn.Module) -> Sequence[Figure]:
    """Return some validation images with what the model says of them."""
    from magneto.vision_language.caption_pictures import captions_figure, readable_rows

    split = task.splits.validation
    if not (rows := readable_rows(split)):
        return []
    written = task.caption(model, [split.open(row) for row in rows], CaptionSearch())
    return [captions_figure(split, rows, written)]
