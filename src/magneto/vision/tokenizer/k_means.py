"""k-means of directions: the codebook's first vectors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# Rows whose similarities to all vectors exist at once.
CHUNK = 8192


def nearest(rows: Tensor, vectors: Tensor) -> Tensor:
    """Return the number of the vector that is most similar to each row, by cosine.

    Args:
        rows: (rows, width).
        vectors: (count, width), of length 1.

    Returns:
        (rows,), int64; of equal ones the first.
    """
    return torch.cat([(part @ vectors.t()).argmax(-1) for part in rows.split(CHUNK)])


@torch.no_grad()
def k_means(rows: Tensor, count: int, iterations: int, seed: int) -> Tensor:
    """Cluster directions, beginning with rows drawn at random.

    A cluster that gets no row stays as it is. Where there are fewer rows than clusters, the rest
    are directions drawn at random.

    Args:
        rows: (rows, width), of length 1.
        count: Of clusters.
        iterations: Of assigning rows and taking means.
        seed: Of the draws.

    Returns:
        (count, width), of length 1.
    """
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(rows), generator=draw)[:count].to(rows.device)
    others = torch.randn(count - len(chosen), rows.shape[1], generator=draw).to(rows)
    vectors = torch.cat((rows[chosen], F.normalize(others, dim=-1)))
    for _ in range(iterations):
        sums = torch.zeros_like(vectors).index_add_(0, nearest(rows, vectors), rows)
        met = sums.square().sum(-1, keepdim=True) > 0
        vectors = torch.where(met, F.normalize(sums, dim=-1), vectors)
    return vectors
