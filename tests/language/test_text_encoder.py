"""Tokens to features."""

import torch

from magneto.language.config import TextEncoderConfig
from magneto.language.models import TextEncoder


def encoder(**changes) -> TextEncoder:
    torch.manual_seed(0)
    sizes = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "vocab_size": 60}
    return TextEncoder(TextEncoderConfig(**{**sizes, "positions": "learned", **changes})).eval()


def test_token_types_are_added_and_default_to_the_first() -> None:
    model = encoder(token_types=2)
    tokens = torch.randint(60, (2, 7))
    first, second = torch.zeros_like(tokens), torch.ones_like(tokens)
    assert torch.equal(model(tokens), model(tokens, token_types=first))
    assert not torch.allclose(model(tokens), model(tokens, token_types=second))
    embedded = model.embedding(tokens) + model.token_type(second)
    assert torch.equal(model(tokens, token_types=second), model.encoder(embedded))


def test_without_token_types_nothing_is_added_or_learned() -> None:
    model = encoder()
    tokens = torch.randint(60, (2, 7))
    assert torch.equal(model(tokens), model.encoder(model.embedding(tokens)))
    assert not model.token_type.weight.requires_grad


def test_padding_changes_no_real_token() -> None:
    model = encoder()
    tokens = torch.randint(60, (1, 7))
    mask = torch.tensor([[True] * 5 + [False] * 2])
    assert (model(tokens, mask)[:, :5] - model(tokens[:, :5])).abs().max() <= 1e-5
