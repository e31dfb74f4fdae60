"""Models of text: losses in chunks, tied tables, and what padding and kinds of segment change."""

import math

import pytest
import torch

from magneto.functional.cross_entropy import IGNORED
from magneto.language.config import (
    LanguageModelConfig,
    MaskedLanguageModelConfig,
    TextClassifierConfig,
)
from magneto.language.models import (
    ClassificationHead,
    LanguageModel,
    MaskedLanguageModel,
    TextClassifier,
)

SIZES = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "vocab_size": 50}


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(50, (3, 11), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(-1, 1)
    targets[0, -4:] = IGNORED
    return tokens, targets


def test_loss_is_torchs_and_fp32_under_autocast() -> None:
    model = LanguageModel(LanguageModelConfig(**SIZES, loss_chunk=7))
    tokens, targets = batch()
    logits = model(tokens).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum").item()
    assert model(tokens, targets=targets).total.item() == pytest.approx(expected)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(tokens, targets=targets)
    assert loss.total.dtype == torch.float32
    assert loss.total.item() == pytest.approx(expected, rel=2e-2)


POSITIONS = torch.tensor([[0, 4, 8], [1, 2, 0], [3, 0, 0]])
TARGETS = torch.tensor([[5, 6, 7], [8, 9, IGNORED], [1, IGNORED, IGNORED]])


def test_guesses_are_those_of_all_places_and_real_targets_count_once() -> None:
    config = MaskedLanguageModelConfig(**SIZES, positions="learned", loss_chunk=2)
    model, (tokens, _) = MaskedLanguageModel(config).eval(), batch()
    everywhere, at_positions = model(tokens), model(tokens, positions=POSITIONS)
    for row in range(3):
        assert torch.allclose(at_positions[row], everywhere[row, POSITIONS[row]], atol=1e-6)
    loss = model(tokens, positions=POSITIONS, targets=TARGETS)
    real = TARGETS != IGNORED
    expected = -at_positions.log_softmax(-1)[real][torch.arange(6), TARGETS[real]].sum()
    assert loss.count == 6 and loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    nothing = model(tokens, positions=POSITIONS, targets=torch.full_like(TARGETS, IGNORED))
    assert nothing.total == 0 and nothing.count == 0


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_padding_changes_nothing(pooling: str) -> None:
    how = {"token_types": 2, "positions": "rotary", "head_dropout": 0.5, "pooling": pooling}
    model = TextClassifier(TextClassifierConfig(**SIZES, classes=3, **how)).eval()
    tokens = torch.randint(0, 50, (2, 6))
    types = torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    mask = torch.arange(9)[None].repeat(2, 1) < 6
    padded = torch.cat([tokens, torch.full((2, 3), 7)], dim=1)
    longer = torch.cat([types, torch.zeros(2, 3, dtype=torch.long)], dim=1)
    alone = model(tokens, None, types)
    assert torch.allclose(model(padded, mask, longer), alone, atol=1e-5)
    assert not torch.allclose(model(tokens), alone, atol=1e-4)
    assert not torch.equal(model.train()(tokens, None, types), alone)


def test_the_head_reads_the_mean_of_all_features() -> None:
    features = torch.randn(2, 5, 8)
    first, mean = (ClassificationHead(8, 3, 0.0, pooling) for pooling in ("first", "mean"))
    mean.load_state_dict(first.state_dict())
    mask = torch.arange(5)[None] < torch.tensor([[5], [3]])
    by_hand = torch.stack([features[0].mean(0), features[1, :3].mean(0)])
    assert torch.allclose(mean(features, mask), first(by_hand[:, None]), atol=1e-6)
    assert torch.equal(first(features, mask), first(features[:, :1]))


def test_the_head_drops_its_input_and_its_hidden_features() -> None:
    head = ClassificationHead(200, 200, 0.5)
    for layer in (head.dense, head.answer):
        torch.nn.init.eye_(layer.weight)
    found = head(torch.ones(1, 1, 200))
    kept = found != 0
    assert kept.float().mean().item() == pytest.approx(0.25, abs=0.1)
    torch.testing.assert_close(found[kept], torch.full_like(found[kept], 2 * math.tanh(2)))


def test_initial_scales() -> None:
    """Of 1/sqrt(width), but for the output layer of a classifier, which is BERT's."""
    own = {**SIZES, "vocab_size": 500, "token_types": 300}
    alone = {**SIZES, "vocab_size": 500, "tie_embeddings": False}
    classifier = TextClassifier(TextClassifierConfig(**own, classes=99))
    language = LanguageModel(LanguageModelConfig(**alone))
    masked = MaskedLanguageModel(MaskedLanguageModelConfig(**alone))
    tables = [language.embedding.table, classifier.text_encoder.token_type]
    for module in (*tables, language.head, masked.head.vocabulary, masked.head.dense):
        assert module.weight.std().item() == pytest.approx(32**-0.5, rel=0.1)
    assert classifier.head.answer.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not masked.text_encoder.token_type.weight.any()  # which has no kinds of segments
