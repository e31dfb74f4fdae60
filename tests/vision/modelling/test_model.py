"""Masked image models: what is hidden is not seen, guesses are where they should be."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from magneto.recipe import load_recipe
from magneto.vision.config import ImageModelConfig
from magneto.vision.masked_modelling import MaskedImageModel

SIZES = {
    "width": 16, "layers": 3, "heads": 2, "ffn_width": 32, "image_size": 8, "patch_size": 2,
    "channels": 1, "positions": "learned", "max_length": 17, "codes": 12,
}  # fmt: skip
OPTIONS = {
    "plain": {},
    "no class token": {"class_token": "none"},
    "aggregation": {"aggregation_layer": 2},
    "relative bias and LayerScale": {
        "positions": "none", "grid_positions": "shared_relative_bias", "layer_scale": 0.1,
        "aggregation_layer": 1,
    },
}  # fmt: skip


def build(**changes: Any) -> MaskedImageModel:
    torch.manual_seed(0)
    return MaskedImageModel(ImageModelConfig(**{**SIZES, **changes})).eval()


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(3, 1, 8, 8, generator=draw)
    hidden = torch.stack([torch.randperm(16, generator=draw)[:6].sort().values for _ in range(3)])
    return images, hidden, torch.randint(12, (3, 6), generator=draw)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_what_is_hidden_is_not_seen(options: dict[str, Any]) -> None:
    model, (images, hidden, _) = build(**options), batch()
    other = images.clone()
    # Patch 16 rows of four: paint each hidden one.
    for row, places in zip(other, hidden.tolist(), strict=True):
        for place in places:
            y, x = 2 * (place // 4), 2 * (place % 4)
            row[:, y : y + 2, x : x + 2] += 5
    before, after = model.features(images, hidden), model.features(other, hidden)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not torch.allclose(model(other + 1, hidden), model(images, hidden))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_losses_are_of_the_hidden_places(options: dict[str, Any]) -> None:
    model, (images, hidden, codes) = build(**options), batch()
    found = model(images, hidden, codes)
    logits = model(images, hidden)
    assert logits.shape == (3, 6, 12)
    expected = F.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="sum")
    assert torch.allclose(found.loss.total, expected, atol=1e-4) and found.loss.count == 18
    assert len(found.others) == ("aggregation_layer" in options)


def test_guesses_are_of_their_places() -> None:
    """The same as reading every place and picking the hidden ones."""
    model, (images, hidden, _) = build(), batch()
    x = model.class_token(model.embed(images, hidden))
    whole = model.head(model.encoder(x))[:, 1:]
    picked = torch.stack([row[places] for row, places in zip(whole, hidden, strict=True)])
    assert torch.allclose(model(images, hidden), picked, atol=1e-5)
    seen = model.embed(images, hidden)
    assert torch.equal(seen[0, hidden[0]], model.mask_token.vector.expand(6, -1))


def test_a_second_guess_sees_the_top_through_the_class_token_alone() -> None:
    model, (images, hidden, _) = build(aggregation_layer=2), batch()
    x = model.class_token(model.embed(images, hidden))
    middle, last = model.encoder.features(x, (1, 2))
    again = model.aggregation([middle, last])[0]
    other = last.clone()
    other[:, 1:] += 1
    assert torch.equal(model.aggregation([middle, other])[0], again)
    other[:, 0] += torch.arange(16)
    assert not torch.allclose(model.aggregation([middle, other])[0], again)
    index = (hidden + 1)[..., None].expand(-1, -1, 16)
    assert torch.equal(model.features(images, hidden)[1], again.gather(1, index))


def test_every_parameter_learns() -> None:
    model, (images, hidden, codes) = build(**OPTIONS["relative bias and LayerScale"]), batch()
    found = model.train()(images, hidden, codes)
    (found.loss.total + found.others[0].total).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None]
    assert without == []


# The paper's appendix, vision: millions of the backbone, Pre-LN and Sub-LN, and of the head.
@pytest.mark.parametrize(
    ("name", "pre", "sub", "head"),
    [("beit-base", 85.8, 85.9, 6.3), ("beit-large", 303.3, 303.5, 8.4)],
)
def test_the_papers_parameters(name: str, pre: float, sub: float, head: float) -> None:
    for placement, millions in (("pre", pre), ("sub", sub)):
        recipe = load_recipe(f"image-modelling/{name}", {"model.placement": placement})
        with torch.device("meta"):
            model: Any = recipe.build_task().build_model()
        own = sum(p.numel() for p in model.head.parameters())
        rest = sum(p.numel() for p in model.parameters()) - own
        assert round(own / 1e6, 1) == head
        assert rest / 1e6 == pytest.approx(millions, abs=0.051)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"aggregation_layer": 3}, r"below layers \(3\), not 3"),
        ({"aggregation_layer": 1, "class_token": "none"}, "needs class_token 'learned'"),
        ({"codes": 1}, "codes must be 2 or more"),
        ({"codes": None}, "codes are not known"),
    ],
)
def test_impossible_values(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build(**wrong)
