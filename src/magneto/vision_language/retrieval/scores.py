"""Recall at 1, 5 and 10, from images to texts and from texts to images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

RANKS = (1, 5, 10)
# Rows of the matrix of similarities that are made at a time.
PIECE = 1024
# Behind every place.
NOWHERE = 1 << 62


def recalls(images: Tensor, texts: Tensor, owners: Tensor, broken: Tensor) -> dict[str, float]:
    """Return the share of queries for which a right answer is among the first 1, 5 and 10.

    Where similarities are equal, the answer counts as found after all that are as similar: a model
    that says the same of everything finds nothing, nor does one whose embeddings are no numbers.

    Args:
        images: (images, width), of length 1 each.
        texts: (texts, width), likewise.
        owners: (texts,) the number of each text's image; every image has one text or more.
        broken: (images,) True where an image could not be read: what asks with it, or asks for it,
            finds nothing.

    Returns:
        "text_recall_at_1", the texts of an image, and so on; "image_recall_at_1", the image of a
        text; and "mean_recall", the mean of the six.
    """
    numbers = torch.arange(len(images))
    text_places = [
        best_places(piece @ texts.T, owners[None] == numbers[start : start + PIECE, None])
        for start, piece in pieces(images)
    ]
    image_places = [
        best_places(piece @ images.T, owners[start : start + PIECE, None] == numbers)
        for start, piece in pieces(texts)
    ]
    found = {}
    for kind, places, lost in (
        ("text", torch.cat(text_places), broken),
        ("image", torch.cat(image_places), broken[owners]),
    ):
        for rank in RANKS:
            found[f"{kind}_recall_at_{rank}"] = float(((places < rank) & ~lost).double().mean())
    return {**found, "mean_recall": mean_recall(found)}


def mean_recall(found: Mapping[str, float]) -> float:
    """Return the mean of the recalls of both directions."""
    return sum(found.values()) / len(found)


def pieces(rows: Tensor) -> list[tuple[int, Tensor]]:
    """Cut rows in pieces; return where each begins, and it."""
    return [(start, rows[start : start + PIECE]) for start in range(0, len(rows), PIECE)]


def best_places(similarity: Tensor, right: Tensor) -> Tensor:
    """Return at which place, from 0, each query finds its first right answer.

    A right answer whose similarity is not finite is not found; a wrong one whose similarity is no
    number stands before all.

    Args:
        similarity: (queries, answers).
        right: (queries, answers) boolean; each query has a right answer.

    Returns:
        (queries,) the places; `NOWHERE` for a query that finds none.
    """
    known = right & similarity.isfinite()
    best = similarity.masked_fill(~known, -torch.inf).amax(1, keepdim=True)
    places = (~(similarity < best) & ~right).sum(1)
    return places.masked_fill(~known.any(1), NOWHERE)


def chance(count: int, right: Mapping[int, int]) -> dict[int, float]:
    """Return the recall of a random order.

    Args:
        count: Answers that there are.
        right: How many queries (values) have how many right answers (keys).

    Returns:
        By rank: one less the share of orders in which the first places have no right answer.
    """
    queries = sum(right.values())
    found = {}
    for rank in RANKS:
        missed = 0.0
        for answers, how_many in right.items():
            share = 1.0
            for place in range(min(rank, count)):
                share *= max(count - answers - place, 0) / (count - place)
            missed += how_many * share
        found[rank] = 1 - missed / queries
    return found
