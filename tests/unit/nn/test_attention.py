"""Masks against a loop over every pair of positions; packed documents; weights for pictures.

Whole models in the oracles compare attention itself.
"""

import itertools
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from magneto import PLACEMENTS, Decoder, Encoder, TransformerConfig
from magneto.nn.attention import Mask, build_mask, build_memory_mask, position_index
from magneto.nn.config import Positions
from magneto.nn.multiway import pack
from tests.pairs import in_turn
from tests.unit.nn.grids import shaken, small, small_grid
from tests.unit.nn.test_multiway import multiway


@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_a_window_hides_what_is_far(kind: Any) -> None:
    """With windows of 2 in each of two layers, a change reaches two places and no further."""
    stack = kind(small(windows=(2,))).eval()
    x = torch.randn(1, 9, 32)
    changed = x.clone()
    changed[:, 4] = torch.randn(1, 32)
    moved = (stack(x) - stack(changed)).abs().amax(-1)[0] > 1e-6
    first = 4 if kind is Decoder else 2
    assert moved.nonzero().flatten().tolist() == list(range(first, 7))


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
@pytest.mark.parametrize(
    ("axes", "window"),
    [(0, None), (2, None), (3, None), (0, 1), (2, 1), (0, 4), (2, 4), (3, 2), (2, 9)],
)
def test_every_pair_of_positions(causal: bool, past: int, axes: int, window: int | None) -> None:
    torch.manual_seed(past)
    length = KEYS - past
    given = None
    if axes:
        shape = (BATCH, KEYS) if axes == 2 else (BATCH, length, KEYS)
        given = torch.rand(shape) < 0.6
        given[1] = False  # one row of the batch that sees nothing at all
    mask = build_mask(given, torch.zeros(BATCH, length, 4), past, causal, window)
    for row, query, key in itertools.product(range(BATCH), range(length), range(KEYS)):
        allowed = (
            True if given is None else given[row, key] if axes == 2 else given[row, query, key]
        )
        distance = past + query - key
        near = window is None or (0 <= distance < window if causal else abs(distance) < window)
        expected = bool(allowed) and near and (not causal or distance >= 0)
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


def packed(*lengths: int) -> torch.Tensor:
    """Documents of these lengths in one row: each sees itself alone."""
    number = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    return (number[:, None] == number)[None]


PLACE = torch.arange(6)
COUNTED = {
    "documents": (packed(3, 1, 2)[0], [0, 1, 2, 0, 0, 1]),
    # The fourth sees nothing, and nothing sees it: padding between documents.
    "padding": (packed(3, 1, 2)[0] & (PLACE != 3) & (PLACE != 3)[:, None], [0, 1, 2, 0, 0, 1]),
    "window": ((PLACE[:, None] - PLACE).abs() < 2, [0, 1, 2, 3, 4, 5]),
    "prefix": ((PLACE[:, None] >= PLACE) | (PLACE < 3), [0, 1, 2, 3, 4, 5]),
    "all": (torch.ones(6, 6).bool(), [0, 1, 2, 3, 4, 5]),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", COUNTED)
def test_positions_count_anew_in_each_document_and_through_other_masks(
    name: str, causal: bool
) -> None:
    mask, expected = COUNTED[name]
    for given in (mask, mask.tril()) if causal else (mask,):
        assert position_index(given[None], torch.zeros(1, 6, 8), 0, causal).tolist() == [expected]
    backwards = (PLACE[:, None] <= PLACE)[None]
    assert position_index(backwards, torch.zeros(1, 6, 8), 0).tolist() == [PLACE.tolist()]


@pytest.mark.parametrize("past", range(6))
def test_documents_beside_a_cache_count_as_without(past: int) -> None:
    mask = packed(3, 1, 2)
    found = position_index(mask[:, past:], torch.zeros(1, 6 - past, 8), past, True)
    assert found.tolist() == [[0, 1, 2, 0, 0, 1][past:]]


@pytest.mark.parametrize("positions", get_args(Positions))
@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_a_packed_row_equals_separate_documents(kind: Any, positions: Positions) -> None:
    """Outputs and gradients, for every kind of positions, with a window and without."""
    config = TransformerConfig(
        width=16, layers=2, heads=2, ffn_width=24, positions=positions, max_length=9,
        windows=(3, None),
    )  # fmt: skip
    stack = shaken(kind(config))
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


@pytest.mark.parametrize(
    ("placement", "positions"),
    in_turn(PLACEMENTS, ["none", "rotary", "t5", "transformer_xl", "relative_bias"]),
)
def test_weights_times_values_are_what_attention_gives(placement: str, positions: str) -> None:
    kind = "grid_positions" if positions == "relative_bias" else "positions"
    shape = {"rows": 2, "columns": 2, "key_value_heads": 2, kind: positions}
    model = Encoder(small_grid(placement=placement, **shape)).eval()
    for name, parameter in model.named_parameters():
        if "position" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 5, 32)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    seen = {}
    hook = model.layers[1].self_attention.attention.dot_product.register_forward_hook(
        lambda module, inputs, output: seen.update(value=inputs[2], output=output)
    )
    model(x, mask)
    hook.remove()
    weights = model.attention_weights(x, 1, mask)
    value = seen["value"].repeat_interleave(2, dim=1)
    torch.testing.assert_close(weights @ value, seen["output"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5))
    assert not weights[1, :, :, 3:].any()


def test_nothing_is_left_behind() -> None:
    """No hook, no gradient, no dropout in the weights; a row that sees nothing gives nothing."""
    model = Encoder(small(attention_dropout=0.5))
    x = torch.randn(1, 4, 32, requires_grad=True)
    weights = model.attention_weights(x, 0, torch.zeros(1, 4).bool())
    assert not weights.requires_grad and not weights.any() and model.training
    assert not model.layers[0].self_attention.attention.dot_product._forward_pre_hooks
    torch.testing.assert_close(model.attention_weights(x, 0), model.attention_weights(x, 0))
    with pytest.raises(ValueError, match="no layer 2: layers are 0 to 1"):
        model.attention_weights(x, 2)


def test_words_of_a_pair_look_at_its_image_too() -> None:
    """The softmax of the products of queries and keys of both experts, by hand."""
    model = multiway()
    given = torch.randn(5, 32), torch.randn(3, 32), pack([5], [3])
    shares = model.attention_weights(*given, 1)
    block, (streams,) = model.layers[1].self_attention, model.features(*given, [0])
    experts = zip(block.experts.values(), streams, strict=True)
    heads = torch.cat([expert.attention.project(expert.before(x)) for expert, x in experts])
    query, key, _ = heads.transpose(0, 1).chunk(3)
    expected = (query @ key.transpose(1, 2) * query.shape[-1] ** -0.5).softmax(-1)
    assert torch.allclose(shares[0], expected, atol=1e-5) and shares[0, :, 5:, :5].min() > 0
