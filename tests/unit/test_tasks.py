"""The tasks learn, mask documents, and count what the loop asks for."""

import json
from pathlib import Path

import pytest
import torch

from magneto.language.causal_lm import CausalLanguageModeling
from magneto.language.config import LanguageModelConfig, TextDataConfig
from magneto.vision.classification import ImageClassification
from magneto.vision.config import ImageClassificationDataConfig, ImageClassifierConfig
from tests.evaluating import measured, taught

SIZES = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 64}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"text": f"{i} {i + 1} {i + 2} the end"}) for i in range(400)]
    path.write_text("\n".join(lines))
    return path


def language_task(text: Path, **data) -> CausalLanguageModeling:
    config = TextDataConfig(source=str(text), tokenizer="bytes", **{"max_length": 48, **data})
    return CausalLanguageModeling(LanguageModelConfig(**SIZES, positions="rotary"), config, 1)


@pytest.mark.parametrize("data", [{}, {"streaming": True}, {"mask_documents": True}], ids=str)
def test_a_language_model_learns(text: Path, data: dict) -> None:
    task = language_task(text, **data)
    before, after = (measured(task, taught(task, steps)) for steps in (0, 60))
    assert after["loss"] < 0.5 * before["loss"]
    assert after["perplexity"] == pytest.approx(torch.tensor(after["loss"]).exp().item(), rel=1e-4)


def test_bits_per_byte_counts_all_nats_over_all_bytes(text: Path) -> None:
    task = language_task(text)
    metrics = measured(task, taught(task, 1))
    tokens, size = len(task.text.validation.tokens), task.text.validation.text_bytes
    assert tokens > size  # one end token a document
    expected = metrics["loss"] / torch.tensor(2.0).log().item() * tokens / size
    assert metrics["bits_per_byte"] == pytest.approx(expected, rel=1e-6)


def test_masked_documents_do_not_meet(text: Path) -> None:
    task = language_task(text, mask_documents=True)
    model = task.build_model().eval()
    tokens = torch.tensor([[65, 66, 256, 67, 68, 69]])
    mask = task.attention_mask(tokens)
    alone = model(tokens[:, 3:])
    assert torch.allclose(model(tokens, mask)[:, 3:], alone, atol=1e-5)
    assert mask[0, 2].tolist() == [True] * 3 + [False] * 3


def test_a_vocabulary_too_small_is_refused(text: Path) -> None:
    config = TextDataConfig(source=str(text), tokenizer="bytes", max_length=48)
    task = CausalLanguageModeling(LanguageModelConfig(**SIZES, vocab_size=100), config, 1)
    with pytest.raises(ValueError, match="is too small for the 260 tokens of the tokenizer"):
        task.prepare()


def test_images_of_other_channels_are_refused() -> None:
    pytest.importorskip("sklearn")
    task = ImageClassification(ImageClassifierConfig(**SIZES), ImageClassificationDataConfig(), 1)
    with pytest.raises(ValueError, match=r"give --model\.channels 1"):
        task.prepare()
