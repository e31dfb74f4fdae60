"""Samples of images and texts, the encoder that reads them, and what heads read of it."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.nn.embedding import MaskToken
from magneto.vision.config import AugmentationConfig
from magneto.vision.decoding import PixelPicture
from magneto.vision.transforms import InputFormat
from magneto.vision_language.config import (
    ImageTextRetrieverConfig,
    QuestionAnsweringConfig,
    VisionLanguageConfig,
    VisualReasonerConfig,
)
from magneto.vision_language.model import (
    LARGEST_SCALE,
    ImageTextRetriever,
    Pooling,
    QuestionAnswerer,
    VisionLanguageEncoder,
    VisualReasoner,
    contrastive_losses,
    first_of_image,
    first_of_text,
    mask_of_text,
    mean_of_image,
    mean_of_text,
)
from magneto.vision_language.samples import WholeImage, join_samples

FORMAT = InputFormat(8)


def test_the_ends_are_seen_and_augmentation_is_applied() -> None:
    """Black, but for white columns at both ends: a crop of the middle would lose them."""
    random, pixels = np.random.default_rng(0), np.zeros((10, 40, 3), np.uint8)
    pixels[:, :10] = pixels[:, 30:] = 255
    seen = WholeImage(FORMAT)(PixelPicture(pixels), random)
    assert seen.shape == (3, 8, 8)
    assert (seen[:, :, [0, -1]] > 0.9).all() and (seen[:, :, 3:5] < -0.9).all()
    plain = WholeImage(FORMAT, AugmentationConfig())
    np.testing.assert_array_equal(plain(PixelPicture(pixels), random), seen)
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:, :2] = 255
    mirrored = WholeImage(FORMAT, AugmentationConfig(flip=1.0))
    seen = mirrored(PixelPicture(pixels), random)
    assert (seen[:, :, -2:] == 1).all() and (seen[:, :, :6] == -1).all()


SHAPE: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "ffn_width": 24, "image_size": 12,
                         "patch_size": 4, "vocab_size": 20, "max_length": 8}  # fmt: skip


def shaken(**changes: Any) -> VisionLanguageEncoder:
    torch.manual_seed(0)
    config = VisionLanguageConfig(**{**SHAPE, **changes})
    model = VisionLanguageEncoder(config, MaskToken(config.width))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def text(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int64)


def texts(*lengths: int) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.integers(5, 20, length) for length in lengths]


MIXED = join_samples(10, 1, [text(1, 5, 2), text(1, 6, 7, 2)], [text(1, 9, 2)])


def test_each_sample_is_as_if_it_were_alone_and_a_pair_sees_both() -> None:
    model, images = shaken(), torch.randn(3, 3, 12, 12)
    vision, language = model(images, MIXED)
    assert vision.shape == (30, 16) and language.shape == (10, 16)
    alone, _ = model(images[:1], join_samples(10, 1))
    pair = model(images[2:], join_samples(10, 0, [text(1, 6, 7, 2)]))
    words = model(images[:0], join_samples(10, 0, [], [text(1, 9, 2)]))
    assert torch.allclose(alone, vision[:10], atol=1e-5)
    assert torch.allclose(pair[0], vision[20:], atol=1e-5)
    assert torch.allclose(pair[1], language[3:7], atol=1e-5)
    assert words[0].shape == (0, 16) and torch.allclose(words[1], language[7:], atol=1e-5)
    other = join_samples(10, 1, [text(1, 5, 2), text(1, 8, 7, 2)], [text(1, 9, 2)])
    seen, mixed = model(images, other)
    assert torch.allclose(seen[:20], vision[:20], atol=1e-6)
    assert (seen[20:] - vision[20:]).abs().amax(1).min() > 1e-4
    assert not torch.allclose(mixed[3:7], language[3:7]) and torch.equal(mixed[7:], language[7:])


def test_what_is_read_is_a_loop_over_samples() -> None:
    """Of images alone, pairs and texts alone, whose numbers differ; and of no texts."""
    samples = join_samples(5, images=2, paired=texts(3, 7), alone=texts(4))
    vision, language = torch.randn(20, 16), torch.randn(14, 16)
    images, words = vision.split(5), language.split([3, 7, 4])
    expected: dict[Pooling, list[torch.Tensor]] = {
        first_of_image: [image[0] for image in images],
        partial(mean_of_image, 5): [image[1:].mean(0) for image in images],
        first_of_text: [text[0] for text in words],
        mean_of_text: [text.mean(0) for text in words],
        mask_of_text: [text[-2] for text in words],
    }
    for part, rows in expected.items():
        torch.testing.assert_close(part(vision, language, samples), torch.stack(rows))
        assert part(vision[:10], language[:0], join_samples(5, images=2)).shape[1] == 16
    assert mean_of_image(5, vision[:0], language, join_samples(5)).shape == (0, 16)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "config", "heads", "parts"), [
    (QuestionAnswerer, QuestionAnsweringConfig(**SHAPE, answers=3), ["pooler"], [first_of_image]),
    (QuestionAnswerer, QuestionAnsweringConfig(**SHAPE, answers=3, pooling="mask_token"),
     ["pooler"], [mask_of_text]),
    (VisualReasoner, VisualReasonerConfig(**SHAPE), ["head"], [first_of_image, first_of_text]),
    (VisualReasoner, VisualReasonerConfig(**SHAPE, pooling="mask_token"),
     ["head"], [mask_of_text]),
    (ImageTextRetriever, ImageTextRetrieverConfig(**SHAPE),
     ["vision_head", "language_head"], [first_of_image, first_of_text]),
    (ImageTextRetriever, ImageTextRetrieverConfig(**SHAPE, pooling="mean"),
     ["vision_head", "language_head"], [partial(mean_of_image, 10), mean_of_text]),
])  # fmt: skip
def test_heads_read_what_the_pooling_names(
    kind: Any, config: Any, heads: list[str], parts: list[Pooling]
) -> None:
    """As in BEiT-3 unless a recipe says otherwise."""
    model = kind(config).eval()
    together = {"alone" if len(heads) == 2 else "paired": texts(3, 7)}
    samples = join_samples(10, images=2 * (len(heads) - 1), **together)
    images, read = torch.randn(2, 3, 12, 12), list[torch.Tensor]()
    for name in heads:
        model.get_submodule(name).register_forward_pre_hook(lambda _, given: read.append(given[0]))
    model(images, samples)
    streams = model.encoder(images, samples)
    expected = torch.cat([part(*streams, samples) for part in parts], dim=-1)
    torch.testing.assert_close(torch.cat([each.reshape(2, -1) for each in read], -1), expected)


@torch.no_grad()
def test_heads_compute_what_beit3s_compute() -> None:
    """The pooler and two layers on answers; on statements, a norm and two layers."""
    torch.manual_seed(0)
    answering = QuestionAnswerer(QuestionAnsweringConfig(**SHAPE, answers=3))
    reasoning = VisualReasoner(VisualReasonerConfig(**SHAPE))
    for model in (answering.pooler, answering.head, reasoning.head):
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))

    def dense(layer: Any, values: torch.Tensor) -> torch.Tensor:
        return values @ layer.weight.T + layer.bias

    def norm(layer: Any, values: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(values, values.shape[-1:], layer.weight, layer.bias, layer.eps)

    read = torch.randn(5, 16)
    first, second, _ = answering.pooler
    torch.testing.assert_close(answering.pooler(read), dense(second, norm(first, read)).tanh())
    first, second, _, third = answering.head
    expected = dense(third, F.gelu(norm(second, dense(first, read))))
    torch.testing.assert_close(answering.head(read), expected)
    read = torch.randn(5, 64)
    zeroth, first, second, _, third = reasoning.head
    expected = dense(third, F.gelu(norm(second, dense(first, norm(zeroth, read)))))
    torch.testing.assert_close(reasoning.head(read), expected)


@torch.no_grad()
def test_a_text_is_found_alike_alone_and_the_scale_has_a_bound() -> None:
    torch.manual_seed(0)
    model = ImageTextRetriever(ImageTextRetrieverConfig(**SHAPE, pooling="mean")).eval()
    samples, images = texts(3, 7, 4), torch.randn(2, 3, 12, 12)
    found = model(images, join_samples(10, images=2, alone=samples))
    alone = model(images[:0], join_samples(10, alone=samples))
    assert alone[0].shape == (0, 16)
    torch.testing.assert_close(alone[1], found[1])
    torch.testing.assert_close(found[0].norm(dim=-1), torch.ones(2))
    assert alone[2].item() == pytest.approx(1 / 0.07)
    model.scale.logarithm.fill_(99.0)
    assert model.scale().item() == pytest.approx(LARGEST_SCALE)
    model.scale.limit()  # a scale at its bound can fall
    with torch.enable_grad():
        model.scale().backward()
    assert model.scale.logarithm.grad.item() == pytest.approx(LARGEST_SCALE)  # type: ignore[union-attr]


def test_the_contrastive_loss_by_hand() -> None:
    """Half of what a softmax over texts, and one over images, pay for the right one."""
    images, sentences = (F.normalize(torch.randn(3, 8), dim=-1) for _ in range(2))
    found = contrastive_losses(images, sentences, torch.tensor(5.0))
    for i in range(3):
        rows = torch.stack([5 * images[i] @ text for text in sentences])
        columns = torch.stack([5 * image @ sentences[i] for image in images])
        expected = (rows.logsumexp(0) - rows[i] + columns.logsumexp(0) - columns[i]) / 2
        assert found[i].item() == pytest.approx(expected.item(), rel=1e-5)
