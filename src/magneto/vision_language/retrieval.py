"""Image-text retrieval: finding the captions of an image, and the image of a caption.

The contrastive loss compares every image of the global batch with every text. The contrastive loss
is therefore not a sum over independent micro-batches. As in GradCache (arXiv 2101.06983), each
micro-batch is embedded twice. First, all micro-batches are embedded without gradients. Then one
micro-batch after another is embedded again, with gradients. The new embeddings replace the old ones
in the loss of the global batch. The gradients of all micro-batches add up to the gradient of the
global batch's loss. With dropout or stochastic depth, the two embeddings of an example differ, so
the gradient is only an approximation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from math import comb, log
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from magneto.data.stream import BatchStream, piece_start
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.batches import Finish
from magneto.vision.decoding import Picture
from magneto.vision_language.config import ImageTextRetrieverConfig, RetrievalDataConfig
from magneto.vision_language.finetuning import CaptionedTask
from magneto.vision_language.model import ImageTextRetriever, contrastive_losses
from magneto.vision_language.samples import frame_text, join_samples

RANKS = (1, 5, 10)
# Rows of the similarity matrix that are computed at once.
PIECE = 1024
# Rank of an answer that is not found.
NOT_FOUND = 1 << 62


class WholeBatchStream(BatchStream):
    """Stream of micro-batches with their position in the global batch.

    The entry "start" is the index of a micro-batch's first example in the global batch. The entry
    "total" is the size of the global batch. If the global batch has several micro-batches, the
    first micro-batch of each rank has the entry "pieces", a list of the rank's micro-batches.
    """

    def batch(self, step: int, parts: int = 1, wanted: Sequence[int] = (0,)) -> list[Any]:
        total = len(self.plan(step))
        made = [
            {**piece, "start": piece_start(number, total, parts), "total": total}
            for piece, number in zip(super().batch(step, parts, wanted), wanted, strict=True)
        ]
        return [{**made[0], "pieces": made}, *made[1:]] if parts > 1 else made


class ImageTextRetrieval(CaptionedTask):
    """Image-text retrieval. The contrastive loss is in nats per pair."""

    primary_metric = "mean_recall"
    unit = "pairs"
    whole_model = "the model runs twice in each step"
    model_config: ImageTextRetrieverConfig
    data_config: RetrievalDataConfig
    # Embeddings of all images and texts of a step's global batch, without a gradient.
    _everything: tuple[Tensor, Tensor] | None = None

    def build_model(self) -> ImageTextRetriever:
        return ImageTextRetriever(self.sized_config())

    def finish(self, seed: int) -> Finish:
        captions = self.train_captions

        def add_captions(batch: dict[str, Any], *_: np.ndarray) -> dict[str, Any]:
            return self._apart(batch, [captions[row] for row in batch.pop("rows").tolist()])

        return add_captions

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return a stream of shuffled pairs. A pair is an image and one of the image's captions."""
        made = super().train_stream(batch_size, seed)
        return WholeBatchStream(made.plan, made.make, made.describe)

    def _apart(self, batch: dict[str, Any], texts: Sequence[np.ndarray]) -> dict[str, Any]:
        images = len(batch["images"])
        samples = join_samples(self.model_config.image_tokens, images=images, alone=texts)
        return {**batch, "samples": samples}

    def validation_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add all captions of the images to a validation batch.

        The entry "samples" has the images, then the texts. The entry "owners" gives the row number
        of each text's image in the validation table, (texts,). The entry "first" gives the index
        of each image's first text, (images,).
        """
        rows = batch["rows"].numpy()
        own = [self.validation_tokens[row] for row in rows]
        counts = np.array([*map(len, own)])
        return {
            **self._apart(batch, [text for each in own for text in each]),
            "owners": torch.from_numpy(rows.repeat(counts)),
            "first": torch.from_numpy(counts.cumsum() - counts),
        }

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        batch = super().dummy_batch(examples)
        return {**self._apart(batch, self.longest_texts(examples)), "start": 0, "total": examples}

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Loss:
        """Return the loss, with negatives from the global batch, and log "broken".

        A pair with an unreadable image is replaced by another pair. The logged "broken" is the
        share of replaced pairs.
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

    def end_step(self, model: Any, add_up: Callable[[Tensor], Tensor]) -> None:
        self._everything = None
        model.scale.limit()

    def score(self, model: nn.Module, batch: dict[str, Any]) -> Scores:
        images, texts, scale = model(batch["images"], batch["samples"])
        sums = {
            "loss": contrastive_losses(images, texts[batch["first"]], scale).sum(),
            "count": torch.ones_like(batch["rows"]).sum(),
            "broken": batch["broken"].sum(),
        }
        return Scores(sums, (images, texts, batch["rows"], batch["owners"], batch["broken"]))

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the loss, the recalls in both directions, and the mean recall.

        The recalls cover all evaluated images and texts. The loss uses batches of
        `EVALUATION_BATCH` images, and the first caption of each image. The metric "broken" counts
        the unreadable images, and is absent if there are none. A query counts as failed if the
        query is an unreadable image or a text of an unreadable image.
        """
        images, texts, rows, owners, broken = map(torch.cat, zip(*predictions, strict=True))
        places = torch.full((len(self.splits.validation),), -1)
        places[rows] = torch.arange(len(rows))
        found = recalls(images.float(), texts.float(), places[owners], broken)
        found = {"loss": sums["loss"] / sums["count"], **found}
        return found | ({"broken": sums["broken"]} if sums["broken"] else {})

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Sequence[Picture | str]) -> list[Tensor]:
        """Return the embedding of each input, a unit vector (width,), in the order of the inputs.

        Inputs are images and texts in any order. Texts are truncated to the model's `max_length`.
        """
        texts = [n for n, each in enumerate(inputs) if isinstance(each, str)]
        images = [n for n, each in enumerate(inputs) if not isinstance(each, str)]
        config, device = self.model_config, next(model.parameters()).device
        tokens = self.tokenizer.encode([str(inputs[n]) for n in texts])
        framed = [frame_text(each, self.tokenizer, config.longest_text) for each in tokens]
        pixels = self.black_images(0)
        if images:
            pixels = self.read_pictures([inputs[n] for n in images])  # type: ignore[misc]
        samples = join_samples(config.image_tokens, images=len(images), alone=framed)
        parts = model(pixels.to(device), samples.to(device))[:2]
        return [*torch.cat(parts).cpu()[np.argsort([*images, *texts])]]

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        self.prepare()  # the size of images may depend on the data
        plans = list(islice(self.validation_batches().plans, limit))
        rows = np.concatenate(plans)
        given = self.splits.validation.values("captions")
        captions = Counter(len(given[row]) for row in rows)
        texts = sum(count * images for count, images in captions.items())
        kinds = {"text": chance(texts, captions), "image": chance(len(rows), {1: texts})}
        found = {f"{kind}_recall_at_{rank}": kinds[kind][rank]
                 for kind in kinds for rank in RANKS}  # fmt: skip
        nats = sum(len(plan) * log(len(plan)) for plan in plans) / len(rows)
        return {"loss": nats, **found, "mean_recall": sum(found.values()) / len(found)}


@torch.no_grad()
def figures(task: ImageTextRetrieval, model: nn.Module) -> Sequence[Figure]:
    from magneto.vision_language.figures import searches_figure

    batch, device = task.validation_batches()[0], next(model.parameters()).device
    images, texts, _ = model(batch["images"].to(device), batch["samples"].to(device))
    readable = ~batch["broken"].bool().cpu()
    if not readable.any():
        return []
    firsts = texts[batch["first"]].cpu()[readable]
    rows = batch["rows"].cpu()[readable].tolist()
    return [searches_figure(task.splits.validation, rows, images.cpu()[readable], firsts)]


def recalls(images: Tensor, texts: Tensor, owners: Tensor, broken: Tensor) -> dict[str, float]:
    """Return recall at 1, 5 and 10 in both directions, and the mean of the six recalls.

    At rank 1, the recall of texts for an image is "text_recall_at_1", and the recall of the image
    for a text is "image_recall_at_1". Of equally similar candidates, the wrong ones rank first. A
    model with the same embedding for all inputs therefore has a recall of 0 at rank 1. Embeddings
    must be unit vectors. `owners` is the index of each text's image (texts,). Every image must have
    a text. A query counts as failed if it is a `broken` image or a text of a `broken` image.
    """
    numbers = torch.arange(len(images))
    found = {}
    for kind, places, lost in (
        ("text", best_places(images, texts, numbers, owners), broken),
        ("image", best_places(texts, images, owners, numbers), broken[owners]),
    ):
        for rank in RANKS:
            found[f"{kind}_recall_at_{rank}"] = float(((places < rank) & ~lost).double().mean())
    return {**found, "mean_recall": sum(found.values()) / len(found)}


def best_places(queries: Tensor, answers: Tensor, wanted: Tensor, given: Tensor) -> Tensor:
    """Return the rank (from 0) of the first right answer to each query, (queries,).

    `wanted` has the image index of each query, and `given` has the image index of each answer. An
    answer to a query is right if the query and the answer have the same image index. A right answer
    with an infinite or nan similarity does not count. A wrong answer with a similarity of nan ranks
    first.
    """
    found = []
    for start in range(0, len(queries), PIECE):
        similarity = queries[start : start + PIECE] @ answers.T
        right = wanted[start : start + PIECE, None] == given
        known = right & similarity.isfinite()
        best = similarity.masked_fill(~known, -torch.inf).amax(1, keepdim=True)
        places = (~(similarity < best) & ~right).sum(1)
        found.append(places.masked_fill(~known.any(1), NOT_FOUND))
    return torch.cat(found)


def chance(count: int, right: Mapping[int, int]) -> dict[int, float]:
    """Return the expected recall at each of `RANKS` if `count` answers are ordered at random.

    `right[n]` is the number of queries that have n right answers.
    """
    found, queries = {}, sum(right.values())
    for rank in RANKS:
        places = min(rank, count)
        missed = sum(many * comb(count - own, places) for own, many in right.items())
        found[rank] = 1 - missed / (comb(count, places) * queries)
    return found


def gather_at(part: Tensor, start: int, total: int) -> Tensor:
    """Gather the embeddings of all processes in one tensor (total, width), without a gradient."""
    gathered = part.new_zeros(total, part.shape[1])
    gathered[start : start + len(part)] = part.detach()
    if dist.is_available() and dist.is_initialized() and len(part) < total:
        dist.all_reduce(gathered)
    return gathered


def piece_loss(
    images: Tensor, texts: Tensor, scale: Tensor, everything: tuple[Tensor, Tensor], start: int
) -> Tensor:
    """Return a micro-batch's share of the loss of the global batch.

    A micro-batch's share is the sum of the losses of its own pairs. The embeddings get gradients
    from all pairs, because each embedding is also a negative of other pairs. `scale` gets gradients
    only from the micro-batch's own pairs. Over all micro-batches, values and gradients add up to
    the loss and gradient of the global batch.

    All embeddings of the global batch are in `everything`, without a gradient. `start` is the index
    of the micro-batch's first pair in the global batch.
    """
    stop = start + len(images)
    own = slice(start, stop)
    gathered = [
        torch.cat((held[:start], part, held[stop:]))
        for held, part in zip(everything, (images, texts), strict=True)
    ]
    losses = contrastive_losses(gathered[0], gathered[1], scale.detach())
    fixed = [part.detach() for part in gathered]
    value = contrastive_losses(fixed[0], fixed[1], scale)[own].sum()
    total = losses.sum()
    return value + total - total.detach()
