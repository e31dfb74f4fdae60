"""The codebook: k-means at first, a moving average then, and the revival of codes out of use."""

import torch
from torch.nn import functional as F

from magneto.vision.tokenizer import Codebook, k_means, nearest

CODES, WIDTH = 8, 4


def codebook(revive_below: float = 0.0, decay: float = 0.9, codes: int = CODES) -> Codebook:
    torch.manual_seed(0)
    made = Codebook(codes, WIDTH, decay, revive_below)
    made.vectors.copy_(made.directions())
    return made


def directions(count: int, seed: int = 1) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, WIDTH, generator=draw), dim=-1)


def alone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def released_rule(vectors: torch.Tensor, rows: torch.Tensor, decay: float) -> torch.Tensor:
    """The rule of BEiT v2's code, code by code."""
    numbers = (rows @ vectors.t()).argmax(-1)
    moved = []
    for code, vector in enumerate(vectors):
        own = rows[numbers == code]
        mean = F.normalize(own.mean(0), dim=0) if len(own) else vector
        moved.append(F.normalize(decay * vector + (1 - decay) * mean, dim=0))
    return torch.stack(moved)


def test_codes_are_the_nearest_and_carry_no_gradient() -> None:
    book, rows = codebook(), directions(12).view(3, 4, WIDTH).requires_grad_()
    numbers, vectors = book(rows)
    similar = rows.detach() @ book.vectors.t()
    assert torch.equal(numbers, similar.argmax(-1)) and numbers.shape == (3, 4)
    assert torch.equal(vectors, book.directions()[numbers])
    assert not vectors.requires_grad


def test_without_revival_it_follows_the_released_rule() -> None:
    book, expected = codebook(), codebook().vectors.clone()
    for step in range(5):
        rows = directions(40, step)
        book(rows)
        book.end_step(alone)
        expected = released_rule(expected, rows, 0.9)
        assert torch.allclose(book.vectors, expected, atol=1e-6)
    assert not book.seen.any()


def test_use_is_a_moving_average_of_shares() -> None:
    book, rows = codebook(), directions(40)
    numbers, _ = book(rows)
    book.end_step(alone)
    shares = numbers.bincount(minlength=CODES) / 40
    assert torch.allclose(book.use, 0.9 / CODES + 0.1 * shares)
    assert torch.isclose(book.use.sum(), torch.ones(()))


def test_micro_batches_and_ranks_change_nothing() -> None:
    """Two micro-batches on each of two ranks, whose sums are added up."""
    whole, ranks = codebook(0.9), [codebook(0.9), codebook(0.9)]
    for step in range(20):
        rows = directions(64, step)
        whole(rows)
        whole.end_step(alone)
        for rank, part in zip(ranks, rows.chunk(2), strict=True):
            for piece in part.chunk(2):
                rank(piece)
        seen = ranks[0].seen + ranks[1].seen
        for rank in ranks:
            rank.end_step(lambda _, seen=seen: seen.clone())
        assert torch.equal(ranks[0].vectors, ranks[1].vectors)
        assert torch.equal(whole.use, ranks[0].use)
        assert torch.allclose(whole.vectors, ranks[0].vectors, atol=1e-5)
    assert whole.revived > 0


def two_clusters(count: int = 64) -> torch.Tensor:
    """Features that lie about two directions, which one code stands for."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.tensor([[1.0, 0.3, 0.0, 0.0], [1.0, -0.3, 0.0, 0.0]]).repeat(count // 2, 1)
    return F.normalize(centres + 0.02 * torch.randn(count, WIDTH, generator=draw), dim=-1)


def lopsided(revive_below: float) -> Codebook:
    """A codebook whose first code stands for all features, and the others for none."""
    book = codebook(revive_below, codes=4)
    book.vectors.copy_(
        F.normalize(
            torch.tensor([[1.0, 0, 0, 0], [-0.1, 1, 0, 0], [-1, 0, 0.1, 0], [-1, 0, 0, 0.1]]),
            dim=-1,
        )
    )
    return book


def use(book: Codebook, rows: torch.Tensor) -> torch.Tensor:
    """Take a step; return the codes before it."""
    numbers, _ = book(rows)
    book.end_step(alone)
    return numbers


def test_a_code_out_of_use_takes_half_of_a_much_used_one() -> None:
    book, rows = lopsided(0.5), two_clusters()
    while not book.revived:
        assert not use(book, rows).any()
    assert book.revived == 1  # one code gives, once
    assert torch.isclose(book.use.sum(), torch.ones(()))
    taker = int(book(rows)[0].max())
    # It stands for one of the two clusters, and has half of the giver's use.
    centres = F.normalize(torch.stack((rows[::2].mean(0), rows[1::2].mean(0))), dim=-1)
    assert (centres @ book.vectors[taker]).max() > 0.999
    assert book.use[taker] == book.use[0]
    numbers = [use(book, rows) for _ in range(30)][-1]
    assert not set(numbers[::2].tolist()) & set(numbers[1::2].tolist())
    assert len(numbers.unique()) == 4  # soon every code is used


def test_a_code_with_one_feature_gives_none() -> None:
    """Its smaller half is empty."""
    book = lopsided(0.5)
    for _ in range(200):
        use(book, two_clusters()[:1])
    assert book.revived == 0


def test_an_empty_step_changes_nothing() -> None:
    book = codebook(0.5)
    before = book.vectors.clone()
    book.end_step(alone)
    assert torch.allclose(book.vectors, before) and book.revived == 0


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


def test_fewer_rows_than_clusters() -> None:
    rows = torch.eye(3)
    found = k_means(rows, 8, 5, 0)
    assert torch.allclose(found.norm(dim=-1), torch.ones(8))
    assert torch.isclose(rows @ found.t(), torch.ones(())).any(-1).all()


def test_pieces_of_rows_change_nothing(monkeypatch) -> None:
    rows = F.normalize(torch.randn(50, 4, generator=torch.Generator().manual_seed(1)), dim=-1)
    whole = nearest(rows, rows[:7])
    monkeypatch.setattr("magneto.vision.tokenizer.CHUNK", 8)
    assert torch.equal(nearest(rows, rows[:7]), whole)
    assert torch.equal(whole[:7], torch.arange(7))
