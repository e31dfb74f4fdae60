"""A folded model answers alike, and its norms before products have no scale."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from magneto.language.config import LanguageModelConfig
from magneto.language.model import LanguageModel
from magneto.nn.config import MultiwayConfig
from magneto.nn.fold import folded, norms_with_readers
from magneto.nn.multiway import MultiwayEncoder
from magneto.nn.packing import pack
from magneto.theory.placement import PLACEMENTS
from magneto.translation.config import TranslationConfig
from magneto.translation.model import TranslationModel

SIZES: dict[str, Any] = {"width": 16, "heads": 2, "ffn_width": 32, "layers": 2}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@torch.no_grad()
def drawn(model: nn.Module) -> nn.Module:
    """Draw every scale, shift and bias anew, so that none is 1 or 0."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter) / 2)
    return model.eval()


def language_model(**changes: Any) -> nn.Module:
    sizes = {**SIZES, "vocab_size": 11, "positions": "sinusoidal", **changes}
    return drawn(LanguageModel(LanguageModelConfig(**sizes)))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_row_answers_alike(placement: str) -> None:
    model, tokens = language_model(placement=placement), torch.arange(8).view(2, 4)
    made = folded(model)
    torch.testing.assert_close(made(tokens), model(tokens), **CLOSE)
    assert not list(norms_with_readers(made))


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "rmsnorm"},
        {"bias": False},
        {"unbiased": ("k",)},
        {"unbiased": ("fc2", "out", "q")},
        {"activation": "swiglu", "key_value_heads": 1},
    ],
)
def test_every_kind_of_norm_and_product_does(changes: dict[str, Any]) -> None:
    model, tokens = language_model(placement="sub", **changes), torch.arange(8).view(2, 4)
    torch.testing.assert_close(folded(model)(tokens), model(tokens), **CLOSE)


def test_an_encoder_decoder_does() -> None:
    sizes = {**SIZES, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 11}
    model = drawn(TranslationModel(TranslationConfig(**sizes)))
    given = torch.arange(8).view(2, 4), torch.arange(6).view(2, 3)
    torch.testing.assert_close(folded(model)(*given), model(*given), **CLOSE)


@pytest.mark.parametrize("experts", ["decoupled", "shared_attention"])
def test_a_multiway_encoder_does(experts: Any) -> None:
    model = drawn(MultiwayEncoder(MultiwayConfig(**SIZES, experts=experts)))
    packing = pack([3, 3], [2, 4])
    given = (torch.randn(6, 16), torch.randn(6, 16))
    for one, other in zip(folded(model)(*given, packing), model(*given, packing), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_scales_are_gone_and_others_stay() -> None:
    model = language_model(placement="sub")
    made = folded(model)
    gone = {name for name, _ in model.named_parameters()} - {n for n, _ in made.named_parameters()}
    assert {name.split(".")[-2] for name in gone} == {"before", "inside"}
    assert made.config == replace(model.config, folded_norms=("before", "inside"))
    again = folded(made)
    for one, other in zip(again.parameters(), made.parameters(), strict=True):
        assert torch.equal(one, other)
