"""The models around the stacks: losses in chunks, tied tables, shapes."""

import pytest
import torch

from magneto.language.config import LanguageModelConfig, TextEncoderConfig
from magneto.language.models import LanguageModel, TextEncoder
from magneto.translation.config import TranslationConfig
from magneto.translation.model import TranslationModel
from magneto.vision.classifier import ImageClassifier
from magneto.vision.config import ImageClassifierConfig

SIZES = {"width": 32, "heads": 4, "ffn_width": 48}


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(50, (3, 11), generator=generator)
    targets = tokens.roll(-1, 1)
    targets[0, -4:] = -100
    return tokens, targets


def model(**changes) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(**SIZES, layers=2, vocab_size=50, **changes))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 10, 1000])
def test_chunks_change_neither_loss_nor_gradient(chunk: int, tied: bool) -> None:
    results = []
    for size in (0, chunk):
        language_model = model(loss_chunk=size, tie_embeddings=tied)
        tokens, targets = batch()
        loss = language_model(tokens, targets=targets)
        loss.total.backward()
        results.append((loss, [p.grad for p in language_model.parameters()]))
    (first, gradients), (second, others) = results
    assert first.count == second.count == 29
    assert first.total.item() == pytest.approx(second.total.item(), rel=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(gradients, others, strict=True))


def test_loss_is_torchs() -> None:
    language_model = model()
    tokens, targets = batch()
    expected = torch.nn.functional.cross_entropy(
        language_model(tokens).flatten(0, 1), targets.flatten(), reduction="sum"
    )
    assert language_model(tokens, targets=targets).total.item() == pytest.approx(expected.item())


def test_loss_is_fp32_under_autocast() -> None:
    language_model = model(loss_chunk=7)
    tokens, targets = batch()
    with torch.autocast("cpu", torch.bfloat16):
        loss = language_model(tokens, targets=targets)
    assert loss.total.dtype == torch.float32
    exact = language_model(tokens, targets=targets).total.item()
    assert loss.total.item() == pytest.approx(exact, rel=2e-2)


def test_embeddings_have_unit_variance_as_the_theory_has_it() -> None:
    language_model = LanguageModel(LanguageModelConfig(layers=1, vocab_size=500))
    assert language_model.embedding(torch.arange(500)).std().item() == pytest.approx(1, rel=0.02)


def test_image_classifier() -> None:
    config = ImageClassifierConfig(
        **SIZES, layers=2, image_size=8, patch_size=2, channels=1, classes=10, positions="learned"
    )
    classifier = ImageClassifier(config)
    images = torch.randn(5, 1, 8, 8)
    assert classifier.embedding(images).shape == (5, 16, 32)
    patch = classifier.embedding(images)[:, 5]
    moved = images.clone()
    moved[:, :, :2, :2] = 0
    assert torch.equal(classifier.embedding(moved)[:, 5], patch)
    logits = classifier(images)
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(5))
    assert logits.shape == (5, 10) and loss.item() == pytest.approx(2.3026, abs=0.05)
    with pytest.raises(ValueError, match="must divide image_size"):
        ImageClassifierConfig(**SIZES, image_size=9, patch_size=2)


def test_text_encoder_and_token_types() -> None:
    encoder = TextEncoder(TextEncoderConfig(**SIZES, layers=1, vocab_size=50, token_types=2)).eval()
    tokens = batch()[0]
    assert torch.equal(encoder(tokens), encoder(tokens, token_types=torch.zeros_like(tokens)))
    assert not torch.equal(encoder(tokens), encoder(tokens, token_types=torch.ones_like(tokens)))


def test_translation_shares_its_table_and_learns() -> None:
    torch.manual_seed(0)
    config = TranslationConfig(**SIZES, encoder_layers=2, decoder_layers=2, vocab_size=20)
    translator = TranslationModel(config)
    assert translator.head.weight is translator.embedding.table.weight
    source = torch.randint(1, 20, (16, 6))
    target = torch.nn.functional.pad(source[:, :-1], (1, 0))
    optimizer = torch.optim.AdamW(translator.parameters(), 3e-3)
    losses = []
    for _ in range(30):
        loss = translator(source, target, targets=source)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
        losses.append((loss.total / loss.count).item())
    assert losses[-1] < 0.5 * losses[0]
