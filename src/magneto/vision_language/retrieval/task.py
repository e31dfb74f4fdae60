"""Image-text retrieval: the caption of an image, and the image of a caption, among many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from magneto.training.task import Figure, Loss, Scores
from magneto.vision_language.caption_config import CaptionDataConfig
from magneto.vision_language.captioned_task import EVALUATION_BATCH, CaptionedTask
from magneto.vision_language.captions import CaptionSplit
from magneto.vision_language.retrieval.batches import RetrievalBatches
from magneto.vision_language.retrieval.config import ImageTextRetrieverConfig
from magneto.vision_language.retrieval.contrastive import (
    contrastive_losses,
    gather_at,
    piece_loss,
)
from magneto.vision_language.retrieval.model import ImageTextRetriever
from magneto.vision_language.retrieval.scores import RANKS, chance, mean_recall, recalls
from magneto.vision_language.samples import join_samples
from magneto.vision_language.whole_images import WholeImage


class ImageTextRetrieval(CaptionedTask):
    """Images with captions, an `ImageTextRetriever`, contrastive nats per pair."""

    primary_metric = "mean_recall"
    unit = "pairs"
    whole_model = "image-text retrieval runs the model once more before a step's backward pass"
    model_config: ImageTextRetrieverConfig
    data_config: CaptionDataConfig

    def __init__(self, model: ImageTextRetrieverConfig, data: CaptionDataConfig, seed: int) -> None:
        super().__init__(model, data, seed)
        # Of one step: all images and texts of the global batch, embedded without a gradient.
        self._everything: tuple[Tensor, Tensor] | None = None

    def build_model(self) -> ImageTextRetriever:
        """Build the model; the encoder of a pre-trained run is in `initial_weights`."""
        return ImageTextRetriever(self.sized_config())

    def batches(
        self, split: CaptionSplit, texts: Sequence[Sequence[np.ndarray]]
    ) -> RetrievalBatches:
        """Return what makes batches of a split, in which each image has all of its captions."""
        return RetrievalBatches(split, texts, self.model_config.image_tokens, self.reading.blank)

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        """Return black images and the longest captions apart; all of a batch."""
        texts = self.longest_texts(examples)
        tokens = self.model_config.image_tokens
        return {
            "images": self.black_images(examples),
            "samples": join_samples(tokens, images=examples, alone=texts),
            "broken": torch.zeros(examples, dtype=torch.bool),
            "start": 0,
            "total": examples,
        }

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Loss:
        """Sum the contrastive loss of the pairs, whose negatives are all of the global batch.

        "broken" is the share of pairs that stand in the place of others whose image could not be
        read.
        """
        everything = self._embed_all(model, batch)
        images, texts, scale = model(batch["images"], batch["samples"])
        if everything is None:
            total = contrastive_losses(images, texts, scale).sum()
        else:
            total = piece_loss(images, texts, scale, everything, batch["start"])
        count = torch.ones_like(batch["broken"], dtype=torch.long).sum()
        return Loss(total, count, {"broken": batch["broken"].sum()})

    def _embed_all(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
        """Return all images and texts of the global batch; None where this piece is all of it.

        They are embedded with the first piece of a step and kept for the others of this rank.
        """
        if batch["total"] == len(batch["images"]):
            return None
        if "pieces" in batch:
            pieces = batch["pieces"]
            with torch.no_grad():
                made = [model(piece["images"], piece["samples"]) for piece in pieces]
            parts = [torch.cat(part) for part in zip(*(pair[:2] for pair in made), strict=True)]
            start, total = pieces[0]["start"], batch["total"]
            self._everything = tuple(gather_at(part, start, total) for part in parts)  # type: ignore[assignment]
        return self._everything

    def end_step(self, model: nn.Module, add_up: Callable[[Tensor], Tensor]) -> None:
        """Forget the embeddings of the step: the weights have changed."""
        self._everything = None

    def score(self, model: nn.Module, batch: dict[str, Any]) -> Scores:
        """Sum the loss of images with their first captions in this batch; keep all embeddings."""
        images, texts, scale = model(batch["images"], batch["samples"])
        sums = {
            "loss": contrastive_losses(images, texts[batch["first"]], scale).sum(),
            "count": torch.ones_like(batch["rows"]).sum(),
            "broken": batch["broken"].sum(),
        }
        return Scores(sums, (images, texts, batch["rows"], batch["owners"], batch["broken"]))

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the recalls in both directions among all that was scored, and their mean.

        "loss" is in batches of `EVALUATION_BATCH` images, each with its first caption; "broken"
        counts images that could not be read, if there are any: no query that asks for one, or asks
        with one, finds anything.
        """
        images, texts, rows, owners, broken = map(torch.cat, zip(*predictions, strict=True))
        places = torch.full((len(self.splits.validation),), -1)
        places[rows] = torch.arange(len(rows))
        found = recalls(images.float(), texts.float(), places[owners], broken)
        found = {"loss": sums["loss"] / sums["count"], **found}
        return found | ({"broken": sums["broken"]} if sums["broken"] else {})

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the recalls of a random order, and the loss of a model that sees no difference."""
        batches = self.validation.evaluation(WholeImage(self.reading), EVALUATION_BATCH)
        plans = list(islice(batches.plans, limit))
        rows = np.concatenate(plans)
        captions = Counter(len(self.validation.texts[row]) for row in rows)
        texts = sum(count * images for count, images in captions.items())
        kinds = {"text": chance(texts, captions), "image": chance(len(rows), {1: texts})}
        found = {f"{kind}_recall_at_{rank}": kinds[kind][rank]
                 for kind in kinds for rank in RANKS}  # fmt: skip
        nats = sum(len(plan) * log(len(plan)) for plan in plans) / len(rows)
        return {"loss": nats, **found, "mean_recall": mean_recall(found)}


@torch.no_grad()
def figures(task: ImageTextRetrieval, model: nn.Module) -> Sequence[Figure]:
    """Return which validation images some of their captions find."""
    from magneto.vision_language.caption_pictures import searches_figure

    batch, device = task.validation_batches()[0], next(model.parameters()).device
    images, texts, _ = model(batch["images"].to(device), batch["samples"].to(device))
    there = ~batch["broken"].bool().cpu()
    if not there.any():
        return []
    firsts = texts[batch["first"]].cpu()[there]
    rows = batch["rows"].cpu()[there].tolist()
    return [searches_figure(task.splits.validation, rows, images.cpu()[there], firsts)]
