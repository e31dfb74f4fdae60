"""What a mask lets through, against a loop over every pair of positions."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from magneto import Decoder, Encoder, TransformerConfig
from magneto.nn.config import Positions
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


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("past", [0, 2, 5])
@pytest.mark.parametrize("window", [1, 2, 4, 9])
@pytest.mark.parametrize("padded", [False, True])
def test_every_pair_of_positions_in_a_window(
    causal: bool, past: int, window: int, padded: bool
) -> None:
    length = KEYS - past
    given = torch.rand(BATCH, KEYS) < 0.6 if padded else None
    mask = build_mask(given, torch.zeros(BATCH, length, 4), past, causal, window)
    for row in range(BATCH):
        for query in range(length):
            for key in range(KEYS):
                distance = past + query - key
                near = 0 <= distance < window if causal else abs(distance) < window
                expected = near and (given is None or bool(given[row, key]))
                assert may_attend(mask, row, query, key, past) == expected, (row, query, key)


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
    # Who looks ahead sees real tokens from padding: the row is one.
    rows = position_index(three_axes, torch.zeros(2, 4, 8), 0).tolist()
    assert rows == [[0, 1, 2, 3], [0, 1, 2, 3]]
    rows = position_index(three_axes, torch.zeros(2, 4, 8), 0, causal=True).tolist()
    assert rows == whole.tolist()
    assert position_index(None, torch.zeros(2, 2, 8), 5).tolist() == [[5, 6]]


def packed(*lengths: int) -> torch.Tensor:
    """Documents of these lengths in one row: each sees itself alone."""
    number = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    return (number[:, None] == number)[None]


@pytest.mark.parametrize("causal", [False, True])
def test_positions_count_anew_in_each_document(causal: bool) -> None:
    x = torch.zeros(1, 6, 8)
    blocks = packed(3, 1, 2)
    expected = [[0, 1, 2, 0, 0, 1]]
    assert position_index(blocks, x, 0, causal).tolist() == expected
    assert position_index(blocks & torch.ones(6, 6).tril().bool(), x, 0, True).tolist() == expected
    # Padding that nothing sees, between documents and after them.
    alone = blocks.clone()
    alone[:, 3], alone[:, :, 3] = False, False
    assert position_index(alone, x, 0, causal).tolist() == expected


def test_a_mask_that_is_no_packing_counts_through() -> None:
    x = torch.zeros(1, 6, 8)
    place = torch.arange(6)
    window = ((place[:, None] - place).abs() < 2)[None]
    prefix = ((place[:, None] >= place) | (place < 3))[None]
    backwards = (place[:, None] <= place)[None]
    for mask in (window, prefix, torch.ones(1, 6, 6).bool()):
        for causal in (False, True):
            assert position_index(mask, x, 0, causal).tolist() == [[0, 1, 2, 3, 4, 5]]
    assert position_index(backwards, x, 0, False).tolist() == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("past", range(6))
def test_documents_beside_a_cache_count_as_without(past: int) -> None:
    mask = packed(3, 1, 2)
    found = position_index(mask[:, past:], torch.zeros(1, 6 - past, 8), past, True)
    assert found.tolist() == [[0, 1, 2, 0, 0, 1][past:]]


@pytest.mark.parametrize("positions", get_args(Positions))
@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_a_packed_row_equals_separate_documents(kind: Any, positions: Positions) -> None:
    """Outputs and gradients, for every kind of positions."""
    torch.manual_seed(0)
    config = TransformerConfig(
        width=16, layers=2, heads=2, ffn_width=24, positions=positions, max_length=9
    )
    stack = kind(config).eval()
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    x, lengths = torch.randn(2, 9, 16), (4, 1, 3)
    mask = torch.zeros(2, 9, 9, dtype=torch.bool)
    mask[:, :8, :8] = packed(*lengths)
    x.requires_grad_()
    together = stack(x, mask)[:, :8]
    parts = [stack(part) for part in x[:, :8].split(lengths, dim=1)]
    assert (together - torch.cat(parts, 1)).abs().max() <= 1e-5
    weight = torch.randn(2, 8, 16)
    gradients = [
        torch.autograd.grad((output * weight).sum(), [x, *stack.parameters()], allow_unused=True)
        for output in (together, torch.cat(parts, 1))
    ]
    for one, other in zip(*gradients, strict=True):
        if one is not None:  # places past the row's end have none
            assert (one - other).abs().max() <= 2e-4


@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_documents_are_found_in_one_graph(kind: Any) -> None:
    torch.compiler.reset()
    config = TransformerConfig(width=16, layers=1, heads=2, ffn_width=24, positions="learned")
    stack, x = kind(config).eval(), torch.randn(1, 6, 16)
    compiled = torch.compile(stack, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, packed(3, 1, 2)), stack(x, packed(3, 1, 2)))
