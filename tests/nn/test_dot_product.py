"""Attention against transformers' own, written out; windows; caches."""

from typing import Any

import pytest
import torch

from magneto import Decoder, Encoder, TransformerConfig
from magneto.nn.cache import KeyValueCache
from magneto.nn.dot_product import DotProductAttention, join
from magneto.nn.mask import Mask, build_mask

SIZES: dict[str, Any] = {"width": 32, "heads": 4, "layers": 3, "ffn_width": 48}


def parts(heads: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 5, 8), (2, heads, 5, 8), (2, heads, 5, 8)]
    query, key, value = (3 * torch.randn(shape, generator=generator) for shape in shapes)
    return query, key, value


def masks() -> dict[str, Mask]:
    x = torch.zeros(2, 5, 1)
    padding = torch.arange(5) < torch.tensor([[5], [3]])
    return {
        "none": Mask(), "causal": build_mask(None, x, 0, True),
        "padding": build_mask(padding, x, 0, False), "both": build_mask(padding, x, 0, True),
        "window": build_mask(padding, x, 0, True, 2),
    }  # fmt: skip


@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("biased", [False, True])
def test_it_computes_what_transformers_writes_out(name: str, biased: bool) -> None:
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    mask, bias = masks()[name], torch.randn(1, 4, 5, 5) if biased else None
    query, key, value = parts()
    found = DotProductAttention(0.0)(query, key, value, mask, bias)
    holder = torch.nn.Module().eval()
    holder.num_key_value_groups = 2
    added = join(mask, torch.zeros(1, 1, 5, 5) if bias is None else bias, query, key)
    expected, _ = modeling.eager_attention_forward(holder, query, key, value, added, 8**-0.5)
    expected = expected.transpose(1, 2)
    if mask.seeing is not None:
        expected = expected * mask.seeing
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("positions", ["rotary", "t5", "none"])
def test_a_cache_changes_nothing(positions: Any) -> None:
    """Windows in turn, token by token and in pieces."""
    config = TransformerConfig(**SIZES, positions=positions, windows=(3, None))
    stack, x = Decoder(config).eval(), torch.randn(2, 9, 32)
    mask = torch.arange(9) >= torch.tensor([[0], [2]])
    whole = stack(x, mask)
    for cuts in ([1] * 9, [4, 1, 4]):
        cache, past, found = KeyValueCache(), 0, []
        for part in x.split(cuts, dim=1):
            past += part.shape[1]
            found.append(stack(part, mask[:, :past], cache=cache))
        assert (torch.cat(found, 1) - whole).abs().max() <= 1e-5


@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_a_window_hides_what_is_far(kind: Any) -> None:
    """With windows of 2 in each of two layers, a change reaches two places and no further."""
    stack = kind(TransformerConfig(**SIZES | {"layers": 2}, windows=(2,))).eval()
    x = torch.randn(1, 9, 32)
    changed = x.clone()
    changed[:, 4] = torch.randn(1, 32)
    moved = (stack(x) - stack(changed)).abs().amax(-1)[0] > 1e-6
    first = 4 if kind is Decoder else 2
    assert moved.nonzero().flatten().tolist() == list(range(first, 7))


def test_a_packed_row_with_windows_equals_separate_documents() -> None:
    config = TransformerConfig(**SIZES, positions="learned", windows=(2, None, 3))
    x, number = torch.randn(1, 9, 32), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1])
    for kind in (Encoder, Decoder):
        stack = kind(config).eval()
        together = stack(x, (number[:, None] == number)[None])
        apart = torch.cat([stack(part) for part in x.split([4, 5], dim=1)], 1)
        assert (together - apart).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"windows": (0,)}, "windows must be 1 or more, not 0"),
        ({"windows": (None, -3)}, "windows must be 1 or more, not -3"),
        ({"embedding_dropout": 1.5}, "embedding_dropout must be at least 0 and below 1, not 1.5"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TransformerConfig(**given)
