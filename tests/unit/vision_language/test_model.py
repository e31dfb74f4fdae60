"""The encoder of images and texts, what heads read of it, and the models."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.config import ConfigError
from magneto.nn.embedding import MaskToken
from magneto.recipe import load_recipe
from magneto.vision_language.config import (
    IMAGES,
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
    interpolate_positions,
    mask_of_text,
    mean_of_image,
    mean_of_text,
)
from magneto.vision_language.samples import join_samples

SHAPE: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "ffn_width": 24, "image_size": 12,
                         "patch_size": 4, "vocab_size": 20, "max_length": 8}  # fmt: skip
CONFIG = VisionLanguageConfig(**SHAPE)
# With how many images each reads a text.
HEADS: dict[str, Any] = {
    "questions": (QuestionAnswerer, QuestionAnsweringConfig, {"answers": 4}, 1),
    "statements": (VisualReasoner, VisualReasonerConfig, {}, IMAGES),
}


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
    seen, said = model(images, other)
    assert torch.allclose(seen[:20], vision[:20], atol=1e-6)
    assert (seen[20:] - vision[20:]).abs().amax(1).min() > 1e-4
    assert not torch.allclose(said[3:7], language[3:7]) and torch.equal(said[7:], language[7:])


def test_embeddings_are_patches_words_and_positions() -> None:
    model, images = shaken(), torch.randn(2, 3, 12, 12)
    vision, language = model.embed(images, join_samples(10, 0, [text(1, 5, 2), text(1, 2)]))
    one, two = model.vision_embedding, model.text_embedding
    patch = F.conv2d(images, one.patches.proj.weight, one.patches.proj.bias, stride=4)
    expected = patch[1, :, 2, 1] + one.positions.weight[1 + 7]
    assert torch.allclose(vision[10 + 1 + 7], expected, atol=1e-5)
    first = one.class_token.vector + one.positions.weight[0]
    assert torch.allclose(vision[[0, 10]], first.expand(2, -1))
    word = two.words.table.weight[5] + two.positions.weight[1]
    assert torch.allclose(language[1], word, atol=1e-5)
    assert torch.equal(language[3], language[0]) and not torch.equal(language[4], language[2])


def test_masked_patches_are_not_seen() -> None:
    model, images = shaken(), torch.randn(1, 3, 12, 12)
    hidden = torch.zeros(1, 9, dtype=torch.bool)
    hidden[0, [0, 4]] = True
    samples = join_samples(10, 1)
    vision, _ = model(images, samples, hidden)
    changed = images.clone()
    changed[..., :4, :4] += 1
    assert torch.equal(model(changed, samples, hidden)[0], vision)
    assert not torch.allclose(model(changed, samples)[0], model(images, samples)[0])
    changed[..., :4, 4:8] += 1
    assert not torch.allclose(model(changed, samples, hidden)[0], vision)


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
    longer = VisionLanguageConfig(**{**SHAPE, "max_length": 9})
    with pytest.raises(ValueError, match=r"--model.max_length 8 or less"):
        interpolate_positions(model.state_dict(), CONFIG, longer)


def test_what_fits_no_model() -> None:
    with pytest.raises(ConfigError) as caught:
        VisionLanguageConfig(image_size=30, patch_size=16, max_length=2, width=10, heads=4)
    assert len(caught.value.lines) == 3 and "must divide image_size" in str(caught.value)


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


def head(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    model, config, more, _ = HEADS[name]
    return model(config(**SHAPE, **more, **changes)).eval()


@pytest.mark.parametrize(
    ("name", "pooling"), [("questions", "mask_token"), ("statements", "first")]
)
def test_a_batch_is_its_samples_and_every_weight_has_a_gradient(name: str, pooling: str) -> None:
    model, said, each = head(name, pooling=pooling), texts(3, 7, 4), HEADS[name][3]
    images = torch.randn(3 * each, 3, 12, 12)
    samples = join_samples(10, paired=[text for text in said for _ in range(each)])
    found = model(images, samples)
    alone = [
        model(some, join_samples(10, paired=[text] * each))
        for some, text in zip(images.split(each), said, strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(alone))
    found.square().sum().backward()
    # Ranks wait for every gradient, also of what the top layer makes of what is not read.
    assert all(weight.grad is not None for weight in model.parameters())


def test_the_reasoner_reads_each_pass() -> None:
    """By hand: each image is encoded with its statement alone; the features are put in a row."""
    model, said = head("statements"), texts(3, 7)
    images, rows = torch.randn(2, 2, 3, 12, 12), []
    for of_one, text in zip(images, said, strict=True):
        row = []
        for image in of_one:
            vision, language = model.encoder(image[None], join_samples(10, paired=[text]))
            row += [vision[0], language[0]]
        rows.append(torch.cat(row))
    pairs = join_samples(10, paired=[text for text in said for _ in range(2)])
    found = model(images.flatten(0, 1), pairs)
    torch.testing.assert_close(found, model.head(torch.stack(rows)))
    assert found.abs().max() > 0.05
    # With the released scale of the head the first answer is even.
    even = head("statements", head_scale=0.001)(images.flatten(0, 1), pairs)
    assert even.shape == (2, 2) and even.abs().max() < 1e-2


@torch.no_grad()
def test_each_head_of_retrieval_reads_its_own_modality() -> None:
    """Of length 1, and the same whatever else is in the batch; the scale has a bound."""
    torch.manual_seed(0)
    model = ImageTextRetriever(ImageTextRetrieverConfig(**SHAPE, pooling="mean")).eval()
    said, images = texts(3, 7, 4), torch.randn(2, 3, 12, 12)
    samples = join_samples(10, images=2, alone=said)
    found, (vision, language) = model(images, samples)[:2], model.encoder(images, samples)
    first = model.vision_head(mean_of_image(10, vision, language, samples))
    second = model.language_head(mean_of_text(vision, language, samples))
    for vectors, expected in zip(found, (first, second), strict=True):
        torch.testing.assert_close(vectors, F.normalize(expected, dim=-1))
    alone = model(images[:0], join_samples(10, alone=said))
    assert alone[0].shape == (0, 16)
    torch.testing.assert_close(alone[1], found[1])
    assert alone[2].item() == pytest.approx(1 / 0.07)
    model.scale.logarithm.fill_(99.0)
    assert model.scale().item() == pytest.approx(LARGEST_SCALE)


def test_the_contrastive_loss_by_hand() -> None:
    """Half of what a softmax over texts, and one over images, pay for the right one."""
    images, said = (F.normalize(torch.randn(3, 8), dim=-1) for _ in range(2))
    found = contrastive_losses(images, said, torch.tensor(5.0))
    for i in range(3):
        rows = torch.stack([5 * images[i] @ text for text in said])
        columns = torch.stack([5 * image @ said[i] for image in images])
        expected = (rows.logsumexp(0) - rows[i] + columns.logsumexp(0) - columns[i]) / 2
        assert found[i].item() == pytest.approx(expected.item(), rel=1e-5)


def test_parameters_of_the_large_recipes() -> None:
    for recipe, placement, millions in (
        ("visual-question-answering/vqa-24l", "sub", 210.9),
        ("visual-reasoning/nlvr2-24l", "pre", 208.6),
        ("image-text-retrieval/coco-24l", "sub", 207.2),
        ("image-captioning/coco-24l", "sub", 241.7),
    ):
        task = load_recipe(recipe, {"model.placement": placement}).build_task()
        with torch.device("meta"):
            model = task.build_model()
        count = sum(p.numel() for p in model.parameters())
        assert round(count / 1e6, 1) == millions, recipe
