"""A codebook of directions that follows what it is given, and keeps its codes in use.

What a step sees is left in a buffer as sums, so that micro-batches and ranks add up; `end_step`
moves the codebook once. No gradient reaches it (arXiv 2208.06366, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
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


class Codebook(nn.Module):
    """`codes` directions of `width` numbers, and how much each is used.

    Args:
        codes: How many.
        width: Of each.
        decay: Of the moving averages of directions and of use.
        revive_below: A code is revived when its use falls below this multiple of 1 / `codes`.
    """

    vectors: Tensor
    use: Tensor
    revived: Tensor
    seen: Tensor

    def __init__(self, codes: int, width: int, decay: float, revive_below: float) -> None:
        super().__init__()
        self.codes, self.width = codes, width
        self.decay, self.least_use = decay, revive_below / codes
        self.register_buffer("vectors", torch.empty(codes, width))
        # Share of all features that each code is given: a moving average.
        self.register_buffer("use", torch.empty(codes))
        # How often a code was revived so far.
        self.register_buffer("revived", torch.empty(()))
        # Of a step: for each half of each code's features, their sum and their number.
        self.register_buffer("seen", torch.empty(2, codes, width + 1), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw directions at random, all used alike."""
        nn.init.normal_(self.vectors)
        nn.init.constant_(self.use, 1 / self.codes)
        nn.init.zeros_(self.revived)
        nn.init.zeros_(self.seen)

    def directions(self) -> Tensor:
        """Return the codes' vectors, (codes, width), of length 1."""
        return F.normalize(self.vectors, dim=-1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Find each feature's code; in training, remember what was seen.

        Args:
            features: (..., width), of length 1.

        Returns:
            Numbers of the codes, (...), and their vectors, (..., width); without gradients.
        """
        with torch.no_grad():
            rows, directions = features.detach().flatten(0, -2), self.directions()
            numbers = nearest(rows, directions)
            vectors = directions[numbers]
            if self.training:
                self._remember(rows, numbers, vectors)
        return numbers.view(features.shape[:-1]), vectors.view(features.shape)

    def _remember(self, rows: Tensor, numbers: Tensor, vectors: Tensor) -> None:
        # A plane through each code cuts its features in halves, so that it can be split: the plane
        # across the direction of the code after it, which is as good as any other.
        across = self.directions().roll(-1, 0)[numbers]
        half = ((rows - vectors) * across).sum(-1) > 0
        counted = torch.cat((rows, torch.ones_like(rows[:, :1])), dim=-1)
        place = numbers + self.codes * half
        self.seen.flatten(0, 1).index_add_(0, place, counted.to(self.seen.dtype))

    @torch.no_grad()
    def end_step(self, add_up: Callable[[Tensor], Tensor]) -> None:
        """Move each code towards the mean of its features, and revive codes out of use.

        The same on all ranks, and however a batch was cut.

        Args:
            add_up: Returns the sum of all ranks' tensors.
        """
        seen = add_up(self.seen)
        sums, counts = seen[..., :-1].sum(0), seen[..., -1].sum(0)
        directions = self.directions()
        moved = torch.lerp(directions, F.normalize(sums, dim=-1), 1 - self.decay)
        met = (counts > 0)[:, None]
        self.vectors.copy_(torch.where(met, F.normalize(moved, dim=-1), directions))
        self.use.lerp_(counts / counts.sum().clamp(min=1), 1 - self.decay)
        self._revive(seen)
        self.seen.zero_()

    def _revive(self, seen: Tensor) -> None:
        """Give each code out of use the smaller half of a much used code's features.

        The codes with the largest smaller halves give first, one each. The two then count as used
        alike, so that the new one has time to be used.
        """
        smaller, half = seen[..., -1].min(0)
        takers = self.use.argsort(stable=True)
        givers = smaller.argsort(descending=True, stable=True)
        enough = (smaller[givers] > 0) & (self.use[givers] >= self.least_use)
        wanted = (self.use[takers] < self.least_use) & enough
        part = F.normalize(seen[half[givers], givers, :-1], dim=-1)
        self.vectors[takers] = torch.where(wanted[:, None], part, self.vectors[takers])
        shared = (self.use[givers] + self.use[takers]) / 2
        self.use[givers] = torch.where(wanted, shared, self.use[givers])
        self.use[takers] = torch.where(wanted, shared, self.use[takers])
        self.revived += wanted.sum()
