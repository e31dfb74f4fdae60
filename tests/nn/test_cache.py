"""A cache grows by what it is given, layer by layer, and its rows can change places."""

import torch

from magneto import EncoderDecoderCache, KeyValueCache
from magneto.nn.cache import self_attention_cache


def pair(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of two rows and three heads."""
    return torch.randn(2, 3, length, 4), torch.randn(2, 3, length, 4)


def test_it_holds_all_that_came_in_order() -> None:
    cache, parts = KeyValueCache(), [pair(3), pair(1), pair(2)]
    for number, (key, value) in enumerate(parts, 1):
        keys, values = cache.update(key, value, 1)
        assert torch.equal(keys, torch.cat([part[0] for part in parts[:number]], 2))
        assert torch.equal(values, torch.cat([part[1] for part in parts[:number]], 2))
    assert [cache.get_seq_length(layer) for layer in (0, 1, 2)] == [0, 6, 0]


def test_rows_can_change_places_and_double() -> None:
    cache = KeyValueCache()
    key, value = cache.update(*pair(3), 1)  # layer 0 stays empty
    cache.reorder(torch.tensor([1, 1, 0]))
    keys, values = cache.layers[1].keys, cache.layers[1].values
    assert keys is not None and values is not None
    assert torch.equal(keys, key[[1, 1, 0]]) and torch.equal(values, value[[1, 1, 0]])


def test_an_encoder_decoders_cache_has_two_halves() -> None:
    cache = EncoderDecoderCache()
    own, cross = cache.self_attention_cache, cache.cross_attention_cache
    key, _ = own.update(*pair(2), 0)
    source, _ = cross.update(*pair(5), 0)
    assert cache.get_seq_length() == 2
    cache.reorder(torch.tensor([1, 0]))
    assert torch.equal(own.layers[0].keys, key[[1, 0]])
    assert torch.equal(cross.layers[0].keys, source[[1, 0]])
    assert self_attention_cache(cache) is own and self_attention_cache(own) is own
    assert self_attention_cache(None) is None
