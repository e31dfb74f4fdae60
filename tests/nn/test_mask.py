"""What a mask lets through, against a loop over every pair of positions."""

import pytest
import torch
from torch import Tensor

from magneto.nn.mask import Mask, build_mask, build_memory_mask, four_axes, position_index

BATCH, KEYS = 3, 6


def may_attend(mask: Mask, row: int, query: int, key: int, past: int) -> bool:
    """Return what attention does with a mask: opened rows are shut again by `seeing`."""
    if mask.causal:
        return key <= past + query
    if mask.allowed is None:
        return True

    def at(tensor: Tensor, key: int) -> bool:
        tensor = tensor.expand(BATCH, 1, tensor.shape[2], tensor.shape[3])
        return bool(tensor[row, 0, min(query, tensor.shape[2] - 1), key])

    return at(mask.allowed, key) and (mask.seeing is None or at(mask.seeing, 0))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("past", [0, 2, 5])
@pytest.mark.parametrize("axes", [0, 2, 3])
def test_every_pair_of_positions(causal: bool, past: int, axes: int) -> None:
    torch.manual_seed(past)
    length = KEYS - past
    given = None
    if axes:
        shape = (BATCH, KEYS) if axes == 2 else (BATCH, length, KEYS)
        given = torch.rand(shape) < 0.6
        given[1] = False  # one row of the batch that sees nothing at all
    mask = build_mask(given, torch.zeros(BATCH, length, 4), past, causal)
    for row in range(BATCH):
        for query in range(length):
            for key in range(KEYS):
                told = True if given is None else given[row, key] if axes == 2 else (
                    given[row, query, key])  # fmt: skip
                expected = bool(told) and (not causal or key <= past + query)
                assert may_attend(mask, row, query, key, past) == expected, (row, query, key)
    if mask.allowed is not None:
        assert mask.allowed.any(-1).all(), "the softmax of every row must be finite"


def test_without_a_mask_nothing_is_built() -> None:
    """So that attention may use torch's causal kernel, or none."""
    x = torch.zeros(2, 5, 4)
    assert build_mask(None, x, 0, causal=True) == Mask(causal=True)
    assert build_mask(None, x, 0, causal=False) == Mask()
    assert build_mask(None, x[:, :1], 7, causal=True) == Mask()
    assert build_memory_mask(None) == Mask()


def test_the_memory_of_cross_attention() -> None:
    source = torch.tensor([[True, True, False], [False, False, False]])
    mask = build_memory_mask(source)
    assert mask.allowed is not None and mask.seeing is not None
    assert mask.allowed[:, 0, 0].tolist() == [[True, True, False], [True, True, True]]
    assert mask.seeing.flatten().tolist() == [True, False]


def test_masks_that_are_none_say_what_is_right() -> None:
    with pytest.raises(ValueError, match=r"must be boolean .* convert it with mask.bool\(\)"):
        four_axes(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"\(batch, key length\) or .* not \(2, 1, 3, 3\)"):
        four_axes(torch.ones(2, 1, 3, 3, dtype=torch.bool))


def test_positions_count_from_the_first_real_token() -> None:
    mask = torch.tensor([[False, False, True, True], [True, True, True, False]])
    whole = position_index(mask, torch.zeros(2, 4, 8), 0)
    assert whole.tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
    last = position_index(mask, torch.zeros(2, 1, 8), 3)
    assert last.tolist() == [[1], [3]]
    three_axes = mask[:, None].expand(2, 4, 4)
    assert position_index(three_axes, torch.zeros(2, 4, 8), 0).tolist() == [[0, 1, 2, 3]]
    assert position_index(None, torch.zeros(2, 2, 8), 5).tolist() == [[5, 6]]
