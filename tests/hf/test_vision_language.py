"""Our encoder of images and texts as a transformers model: padded texts in, padded features out."""

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from magneto.hf.export import wrap
from magneto.vision_language.config import MaskedDataModelConfig, VisionLanguageConfig
from magneto.vision_language.heads import MaskedDataModel
from magneto.vision_language.model import VisionLanguageEncoder
from magneto.vision_language.samples import join_samples

SIZES: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "ffn_width": 24, "image_size": 8,
                         "patch_size": 4, "vocab_size": 30, "max_length": 9}  # fmt: skip
IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([[1, 7, 8, 2], [1, 9, 2, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
TEXTS = [row[kept.bool()].numpy() for row, kept in zip(IDS, MASK, strict=True)]


def encoder(**changes: Any) -> VisionLanguageEncoder:
    torch.manual_seed(0)
    return VisionLanguageEncoder(VisionLanguageConfig(**{**SIZES, **changes})).eval()


@torch.no_grad()
def test_images_texts_and_pairs() -> None:
    core = encoder()
    model = wrap(core)
    cases = {
        "pairs": (IMAGES, TEXTS, join_samples(5, paired=TEXTS)),
        "images": (IMAGES, None, join_samples(5, images=2)),
        "texts": (None, TEXTS, join_samples(5, alone=TEXTS)),
    }
    for images, texts, samples in cases.values():
        words = {} if texts is None else {"input_ids": IDS, "attention_mask": MASK}
        found = model(pixel_values=images, **words)
        pixels = torch.zeros(0, 3, 8, 8) if images is None else images
        expected = core(pixels, samples.token_ids, samples.token_positions, samples.packing)
        assert (found.image_features is None) == (images is None)
        assert (found.text_features is None) == (texts is None)
        if images is not None:
            assert torch.equal(found.image_features.flatten(0, 1), expected[0])
        if texts is not None:
            assert torch.equal(found.text_features[MASK.bool()], expected[1])
            assert not found.text_features[~MASK.bool()].any()


@torch.no_grad()
def test_padding_on_either_side_is_the_same() -> None:
    model = wrap(encoder())
    moved = model(IMAGES[1:], torch.tensor([[0, 1, 9, 2]]), torch.tensor([[0, 1, 1, 1]]))
    found = model(IMAGES[1:], IDS[1:], MASK[1:])
    assert torch.allclose(moved.text_features[:, 1:], found.text_features[:, :3], atol=1e-6)
    assert torch.allclose(moved.image_features, found.image_features, atol=1e-6)


@torch.no_grad()
def test_hidden_patches_are_not_seen() -> None:
    torch.manual_seed(0)
    model = wrap(MaskedDataModel(MaskedDataModelConfig(**SIZES, codes=6)).eval())
    hidden = torch.zeros(2, 4)
    hidden[:, 0] = 1
    other = IMAGES.clone()
    other[:, :, :4, :4] += 1
    given = {"input_ids": IDS, "attention_mask": MASK, "bool_masked_pos": hidden}
    found, again = (model(pixel_values=images, **given) for images in (IMAGES, other))
    assert torch.equal(found.image_logits, again.image_logits)
    assert (found.image_logits.shape, found.logits.shape) == ((2, 4, 6), (2, 4, 30))
    seen = model(pixel_values=other, input_ids=IDS, attention_mask=MASK)
    assert not torch.allclose(seen.logits, found.logits, atol=1e-4)


def test_what_cannot_be_given() -> None:
    model = wrap(encoder())
    with pytest.raises(ValueError, match="give pixel_values, input_ids, or both"):
        model()
    with pytest.raises(ValueError, match="1 images with 2 texts are no pairs"):
        model(IMAGES[:1], IDS)
    with pytest.raises(ValueError, match="output_hidden_states cannot be given"):
        model(IMAGES, output_hidden_states=True)
    with pytest.raises(ValueError, match="the attention mask is"):
        model(IMAGES, IDS, MASK[:, :2])


def test_gradient_checkpointing_reaches_the_stack() -> None:
    model: Any = wrap(encoder())
    model.gradient_checkpointing_enable()
    assert model.core.transformer.config.checkpoint_activations
    assert model.is_gradient_checkpointing
