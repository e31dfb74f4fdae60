"""The contrastive loss over a global batch that is cut in micro-batches and over ranks.

Every image is compared with every text of the global batch, not of a micro-batch alone: what is not
its own is a negative. So the loss is no sum over pieces whose parts are independent. It is made one
like this (in the manner of GradCache, arXiv 2101.06983): all pieces are embedded once without a
gradient; then each piece is embedded with one, put in its place among all, and the loss of the
whole is differentiated with respect to that piece. The gradients of all pieces add up to the
gradient of the loss over the global batch.

It is an exception to exactness where a model drops something at random (dropout, stochastic
depth): the embeddings of other pieces are then of another draw.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from magneto.vision_language.model import contrastive_losses


def gather_at(part: Tensor, start: int, total: int) -> Tensor:
    """Return the rows of all ranks, each rank's at its own place; without a gradient.

    Args:
        part: (rows, width) of this rank.
        start: Where they begin among all.
        total: Rows of all ranks together.
    """
    whole = part.new_zeros(total, part.shape[1])
    whole[start : start + len(part)] = part.detach()
    if dist.is_available() and dist.is_initialized() and len(part) < total:
        dist.all_reduce(whole)
    return whole


def piece_loss(
    images: Tensor, texts: Tensor, scale: Tensor, everything: tuple[Tensor, Tensor], start: int
) -> Tensor:
    """Return a piece's share of the loss of the whole, as a sum over its pairs.

    Its value is the losses of the piece's own pairs. Its gradient with respect to the piece's
    embeddings is that of the sum over *all* pairs, where the piece is also a negative; with respect
    to the scale it is that of its own pairs, so that pieces add up.

    Args:
        images: (pairs of the piece, width), with a gradient.
        texts: Likewise.
        scale: A scalar, with a gradient.
        everything: All images and all texts of the global batch, (pairs, width), without one.
        start: Where the piece begins among all.
    """
    stop = start + len(images)
    own = slice(start, stop)
    whole = [
        torch.cat((held[:start], part, held[stop:]))
        for held, part in zip(everything, (images, texts), strict=True)
    ]
    losses = contrastive_losses(whole[0], whole[1], scale.detach())
    fixed = [part.detach() for part in whole]
    value = contrastive_losses(fixed[0], fixed[1], scale)[own].sum()
    total = losses.sum()
    return value + total - total.detach()
