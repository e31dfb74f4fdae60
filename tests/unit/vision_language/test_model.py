"""The encoder of images and texts: what it embeds, hides, resizes and shows."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.config import ConfigError
from magneto.nn.init import MaskToken, Nothing
from magneto.training.initial import Writes, why_not_by_module
from magneto.vision_language.config import VisionLanguageConfig
from magneto.vision_language.model import (
    VisionLanguageEncoder,
    interpolate_positions,
)
from magneto.vision_language.samples import Samples, join_samples

SHAPE = {"width": 16, "layers": 2, "heads": 2, "ffn_width": 24, "image_size": 12, "patch_size": 4,
         "vocab_size": 20, "max_length": 8}  # fmt: skip
CONFIG = VisionLanguageConfig(**SHAPE)


def shaken(**changes) -> VisionLanguageEncoder:
    torch.manual_seed(0)
    config = VisionLanguageConfig(**{**SHAPE, **changes})
    model = VisionLanguageEncoder(config, MaskToken(config.width))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def text(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int64)


def run(model: VisionLanguageEncoder, images: torch.Tensor, samples: Samples, hidden=None):
    return model(images, samples.token_ids, samples.token_positions, samples.packing, hidden)


MIXED = join_samples(10, 1, [text(1, 5, 2), text(1, 6, 7, 2)], [text(1, 9, 2)])


def test_each_sample_is_as_if_it_were_alone() -> None:
    model, images = shaken(), torch.randn(3, 3, 12, 12)
    vision, language = run(model, images, MIXED)
    assert vision.shape == (30, 16) and language.shape == (10, 16)
    alone, _ = run(model, images[:1], join_samples(10, 1))
    pair = run(model, images[2:], join_samples(10, 0, [text(1, 6, 7, 2)]))
    words = run(model, images[:0], join_samples(10, 0, [], [text(1, 9, 2)]))
    assert torch.allclose(alone, vision[:10], atol=1e-5)
    assert torch.allclose(pair[0], vision[20:], atol=1e-5)
    assert torch.allclose(pair[1], language[3:7], atol=1e-5)
    assert words[0].shape == (0, 16) and torch.allclose(words[1], language[7:], atol=1e-5)


def test_an_image_and_its_text_see_each_other() -> None:
    model, images = shaken(), torch.randn(3, 3, 12, 12)
    vision, language = run(model, images, MIXED)
    other = join_samples(10, 1, [text(1, 5, 2), text(1, 8, 7, 2)], [text(1, 9, 2)])
    seen, said = run(model, images, other)
    assert torch.allclose(seen[:20], vision[:20], atol=1e-6)
    assert (seen[20:] - vision[20:]).abs().amax(1).min() > 1e-4
    assert not torch.allclose(said[3:7], language[3:7]) and torch.equal(said[7:], language[7:])


def test_embeddings_are_patches_words_and_positions() -> None:
    model, images = shaken(), torch.randn(2, 3, 12, 12)
    samples = join_samples(10, 0, [text(1, 5, 2), text(1, 2)])
    vision, language = model.embed(images, samples.token_ids, samples.token_positions)
    one, two = model.vision_embedding, model.text_embedding
    patch = F.conv2d(images, one.patches.proj.weight, one.patches.proj.bias, stride=4)
    expected = patch[1, :, 2, 1] + one.positions.weight[1 + 7]
    assert torch.allclose(vision[10 + 1 + 7], expected, atol=1e-5)
    first = one.class_token.vector + one.positions.weight[0]
    assert torch.allclose(vision[[0, 10]], first.expand(2, -1))
    word = two.words.table.weight[5] + two.positions.weight[1]
    assert torch.allclose(language[1], word, atol=1e-5)
    assert torch.equal(language[3], language[0]) and not torch.equal(language[4], language[2])


def test_hidden_patches_are_not_seen() -> None:
    model, images = shaken(), torch.randn(1, 3, 12, 12)
    hidden = torch.zeros(1, 9, dtype=torch.bool)
    hidden[0, [0, 4]] = True
    samples = join_samples(10, 1)
    vision, _ = run(model, images, samples, hidden)
    changed = images.clone()
    changed[..., :4, :4] += 1
    assert torch.equal(run(model, changed, samples, hidden)[0], vision)
    assert not torch.allclose(run(model, changed, samples)[0], run(model, images, samples)[0])
    changed[..., :4, 4:8] += 1
    assert not torch.allclose(run(model, changed, samples, hidden)[0], vision)


def test_without_a_mask_token_there_is_no_parameter_for_it() -> None:
    names = dict(VisionLanguageEncoder(CONFIG).named_parameters())
    assert not [name for name in names if "mask" in name]
    assert set(dict(shaken().named_parameters())) - set(names) == {
        "vision_embedding.mask_token.vector"
    }


def test_it_can_be_drawn_module_by_module() -> None:
    with torch.device("meta"), Writes() as building:
        model = VisionLanguageEncoder(CONFIG, MaskToken(16))
    assert why_not_by_module(model, building) == ""


def test_no_norm_on_top() -> None:
    model = shaken(final_norm="none")
    assert all(type(norm) is Nothing for norm in model.transformer.final_norm.values())
    assert len(dict(shaken().named_parameters())) - len(dict(model.named_parameters())) == 4


def test_attention_weights_are_shares_within_a_sample() -> None:
    model, images = shaken(), torch.randn(3, 3, 12, 12)
    given = (images, MIXED.token_ids, MIXED.token_positions, MIXED.packing)
    shares = model.attention_weights(*given)
    assert shares.shape == (4, 2, 14, 14)
    assert torch.allclose(shares.sum(-1), torch.ones(4, 2, 14), atol=1e-5)
    assert (shares[1, :, :, 13:] == 0).all() and (shares[2, :, :14] > 0).all()
    assert torch.equal(shares, model.attention_weights(*given, layer=1))
    assert not torch.allclose(shares, model.attention_weights(*given, layer=0))


def test_positions_for_another_size() -> None:
    model = shaken()
    larger = VisionLanguageConfig(**{**SHAPE, "image_size": 20, "max_length": 5})
    state = interpolate_positions(model.state_dict(), CONFIG, larger)
    table = model.vision_embedding.positions.weight
    found = state["vision_embedding.positions.weight"]
    assert found.shape == (26, 16) and torch.equal(found[0], table[0])
    grid = table[1:].t().reshape(1, 16, 3, 3)
    expected = F.interpolate(grid, (5, 5), mode="bicubic", align_corners=False)
    assert torch.allclose(found[1:], expected[0].flatten(1).t(), atol=1e-6)
    words = state["text_embedding.positions.weight"]
    assert torch.equal(words, model.text_embedding.positions.weight[:5])
    VisionLanguageEncoder(larger, MaskToken(16)).load_state_dict(state)
    same = interpolate_positions(model.state_dict(), CONFIG, CONFIG)
    assert all(torch.equal(same[name], tensor) for name, tensor in model.state_dict().items())
    longer = VisionLanguageConfig(**{**SHAPE, "max_length": 9})
    with pytest.raises(ValueError, match=r"--model.max_length 8 or less"):
        interpolate_positions(model.state_dict(), CONFIG, longer)


def test_what_fits_no_model() -> None:
    with pytest.raises(ConfigError) as caught:
        VisionLanguageConfig(image_size=30, patch_size=16, max_length=2, width=10, heads=4)
    assert len(caught.value.lines) == 3 and "must divide image_size" in str(caught.value)
    with pytest.raises(ValueError, match="vocab_size is not known"):
        VisionLanguageEncoder(VisionLanguageConfig(**{**SHAPE, "vocab_size": None}))
