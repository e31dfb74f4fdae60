"""k-means of directions."""

import torch
from torch.nn import functional as F

from magneto.vision import codebook
from magneto.vision.codebook import k_means, nearest


def test_clusters_far_apart_are_found() -> None:
    draw = torch.Generator().manual_seed(0)
    centres = torch.eye(6)
    rows = F.normalize(centres.repeat(50, 1) + 0.05 * torch.randn(300, 6, generator=draw), dim=-1)
    # From rows drawn at random two may begin in one cluster: from many starts one finds all six.
    best = max(
        (k_means(rows, 6, 10, seed) for seed in range(20)),
        key=lambda found: float((rows @ found.t()).amax(-1).sum()),
    )
    assert (centres @ best.t()).amax(-1).min() > 0.99
    assert torch.allclose(best.norm(dim=-1), torch.ones(6))
    means = torch.stack([rows[nearest(rows, best) == number].mean(0) for number in range(6)])
    assert torch.allclose(F.normalize(means, dim=-1), best, atol=1e-6)


def test_the_same_seed_gives_the_same_clusters() -> None:
    rows = F.normalize(torch.randn(100, 4, generator=torch.Generator().manual_seed(1)), dim=-1)
    assert torch.equal(k_means(rows, 8, 5, 3), k_means(rows, 8, 5, 3))
    assert not torch.equal(k_means(rows, 8, 5, 3), k_means(rows, 8, 5, 4))


def test_fewer_rows_than_clusters() -> None:
    rows = torch.eye(3)
    found = k_means(rows, 8, 5, 0)
    assert torch.allclose(found.norm(dim=-1), torch.ones(8))
    assert torch.isclose(rows @ found.t(), torch.ones(())).any(-1).all()


def test_pieces_of_rows_change_nothing(monkeypatch) -> None:
    rows = F.normalize(torch.randn(50, 4, generator=torch.Generator().manual_seed(1)), dim=-1)
    whole = nearest(rows, rows[:7])
    monkeypatch.setattr(codebook, "CHUNK", 8)
    assert torch.equal(nearest(rows, rows[:7]), whole)
    assert torch.equal(whole[:7], torch.arange(7))
