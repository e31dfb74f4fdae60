"""Block-wise masks: exact counts, blocks, and the statistics of the published algorithm."""

import numpy as np
import pytest

from magneto.vision.targets import BlockMasking

# Means over 20,000 masks of the published algorithm (BEiT v2's masking generator, with 16 of 196
# patches as its smallest block), by the side of the grid: pairs of hidden neighbours in a row,
# hidden patches without a hidden neighbour, rows with a hidden patch, share of masks that hide the
# corner, and the middle. The errors of these means are below 0.02, 0.005, 0.012, 0.003 and 0.004.
PUBLISHED = {
    14: (62.68, 0.408, 10.88, 0.044, 0.717),
    8: (17.07, 0.090, 6.18, 0.103, 0.641),
    4: (2.712, 0.207, 3.02, 0.238, 0.535),
}
COUNTS = {14: 75, 8: 24, 4: 6}


def masks(side: int, count: int, seed: int = 0) -> np.ndarray:
    masking, random = BlockMasking(side, side, 75 / 196), np.random.default_rng(seed)
    made = np.zeros((count, side * side), bool)
    for row in made:
        row[masking.draw(random)] = True
    return made.reshape(count, side, side)


@pytest.mark.parametrize("side", PUBLISHED)
def test_against_the_published_algorithm(side: int) -> None:
    hidden = masks(side, 1000)
    assert (hidden.sum((1, 2)) == COUNTS[side]).all()
    around = np.pad(hidden, ((0, 0), (1, 1), (1, 1))).astype(int)
    neighbours = (
        around[:, 2:, 1:-1] + around[:, :-2, 1:-1] + around[:, 1:-1, 2:] + around[:, 1:-1, :-2]
    )
    middle = side // 2
    found = {
        "pairs": (hidden[:, :, 1:] & hidden[:, :, :-1]).sum((1, 2)),
        "alone": (hidden & (neighbours == 0)).sum((1, 2)),
        "rows": hidden.any(2).sum(1),
        "corner": hidden[:, 0, 0],
        "middle": hidden[:, middle, middle],
    }
    for (name, values), expected in zip(found.items(), PUBLISHED[side], strict=True):
        error = values.std() / len(values) ** 0.5
        assert abs(values.mean() - expected) < 5 * error + 0.01, name


def test_single_patches_at_random_would_not_pass() -> None:
    random = np.random.default_rng(0)
    scattered = np.stack([random.permutation(196) < 75 for _ in range(200)]).reshape(-1, 14, 14)
    pairs = (scattered[:, :, 1:] & scattered[:, :, :-1]).sum((1, 2)).mean()
    assert pairs < 0.5 * PUBLISHED[14][0]


@pytest.mark.parametrize("side", [2, 3, 5, 16])
@pytest.mark.parametrize("ratio", [0.01, 0.4, 0.75, 0.99])
def test_the_count_is_exact_on_any_grid(side: int, ratio: float) -> None:
    masking, random = BlockMasking(side, side, ratio), np.random.default_rng(0)
    assert masking.count == min(max(1, round(ratio * side**2)), side**2 - 1)
    for _ in range(20):
        drawn = masking.draw(random)
        assert len(drawn) == masking.count == len(set(drawn.tolist()))
        assert (np.diff(drawn) > 0).all() and drawn[0] >= 0 and drawn[-1] < side**2


def test_no_block_is_as_high_or_wide_as_the_grid() -> None:
    masking, random = BlockMasking(14, 14, 0.75), np.random.default_rng(0)
    for _ in range(200):
        hidden = np.zeros((14, 14), bool)
        masking._add_block(hidden, masking.count, random)
        assert hidden.any(0).sum() < 14 and hidden.any(1).sum() < 14
        height, width = hidden.any(1).sum(), hidden.any(0).sum()
        assert hidden.sum() in (0, height * width)
        # Rounded, so a little outside of what is drawn.
        assert not hidden.any() or (hidden.sum() >= 12 and 0.25 < height / width < 4)


def test_the_same_generator_draws_the_same() -> None:
    assert np.array_equal(masks(14, 5, seed=3), masks(14, 5, seed=3))
    assert not np.array_equal(masks(14, 5, seed=3), masks(14, 5, seed=4))
