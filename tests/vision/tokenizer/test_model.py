"""The tokenizer and its decoder."""

from typing import Any

import pytest
import torch

from magneto.vision.config import ImageTokenizerConfig
from magneto.vision.tokenizer import TokenizerDistillation

SIZES = {
    "width": 16, "layers": 2, "heads": 2, "ffn_width": 32, "image_size": 8, "patch_size": 2,
    "channels": 1, "positions": "learned", "max_length": 17, "codes": 12, "code_width": 4,
    "decoder_depth": 1, "target_width": 5,
}  # fmt: skip


def build(**changes: Any) -> TokenizerDistillation:
    torch.manual_seed(0)
    return TokenizerDistillation(ImageTokenizerConfig(**{**SIZES, **changes}))


@pytest.mark.parametrize("class_token", ["none", "learned"])
def test_an_image_becomes_a_code_per_patch(class_token: str) -> None:
    model, images = build(class_token=class_token), torch.randn(3, 1, 8, 8)
    found = model(images)
    assert found.predictions.shape == (3, 16, 5)
    assert found.codes.shape == found.distances.shape == (3, 16)
    assert torch.equal(model.eval().tokenizer.encode(images), found.codes)
    features = model.tokenizer.features(images)
    assert torch.allclose(features.norm(dim=-1), torch.ones(3, 16))
    vectors = model.tokenizer.codebook.directions()[found.codes]
    assert torch.allclose(found.distances, (features - vectors).square().mean(-1), atol=1e-6)


def test_the_decoder_sees_codes_alone() -> None:
    model, images = build().eval(), torch.randn(2, 1, 8, 8)
    found = model(images)
    vectors = model.tokenizer.codebook.directions()[found.codes]
    assert torch.allclose(model.decoder(vectors), found.predictions, atol=1e-5)


def test_gradients_pass_straight_through() -> None:
    """What the decoder wants of a code's vector, the encoder gets for its feature."""
    model, images = build(), torch.randn(2, 1, 8, 8)
    features = model.tokenizer.features(images).detach().requires_grad_()
    model.tokenizer.features = lambda images: features  # type: ignore[method-assign]
    found = model(images)
    found.predictions.sum().backward()
    vectors = model.tokenizer.codebook.directions()[found.codes].requires_grad_()
    model.decoder(vectors).sum().backward()
    assert features.grad is not None and vectors.grad is not None
    assert features.grad.abs().max() > 0
    assert torch.allclose(features.grad, vectors.grad, atol=1e-5)
    trained = {name for name, _ in model.named_parameters()}
    assert not any("codebook" in name for name in trained)


def test_codes_do_not_depend_on_autocast_in_the_codebook() -> None:
    model, images = build().eval(), torch.randn(2, 1, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        features = model.tokenizer.features(images)
        codes, _ = model.tokenizer.quantise(features)
    assert features.dtype == torch.float32
    assert torch.equal(codes, model.tokenizer.quantise(features)[0])


def test_the_target_has_to_be_known() -> None:
    with pytest.raises(ValueError, match="target_width is not known"):
        build(target_width=None)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"codes": 1}, "codes must be 2 or more, not 1"),
        ({"decay": 1.0}, "decay must be"),
        ({"revive_below": 1.0}, "revive_below must be"),
        ({"max_length": 3}, "max_length must be at least 16"),
    ],
)
def test_impossible_values(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build(**wrong)
