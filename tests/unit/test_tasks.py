"""Tasks learn, mask documents, count what the loop asks for, and say only what they alone know."""

from pathlib import Path

import pytest
import torch

from magneto.language.causal_lm import CausalLanguageModeling
from magneto.language.config import LanguageModelConfig, TextDataConfig
from magneto.recipe import load_recipe
from magneto.tasks import TASKS
from magneto.training.task import Task, strategy_error
from magneto.vision.classification import ImageClassification
from magneto.vision.config import ImageClassificationDataConfig, ImageClassifierConfig
from tests.evaluating import measured, taught

SIZES = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 64}


def language_task(counting: Path, **data) -> CausalLanguageModeling:
    config = TextDataConfig(source=str(counting), tokenizer="bytes", **{"max_length": 48, **data})
    return CausalLanguageModeling(LanguageModelConfig(**SIZES, positions="rotary"), config, 1)


@pytest.mark.parametrize("data", [{"streaming": True}, {"mask_documents": True}], ids=str)
def test_a_language_model_learns(counting: Path, data: dict) -> None:
    task = language_task(counting, **data)
    before, after = (measured(task, taught(task, steps, rate=1e-2)) for steps in (0, 25))
    assert after["loss"] < 0.5 * before["loss"]
    assert after["perplexity"] == pytest.approx(torch.tensor(after["loss"]).exp().item(), rel=1e-4)


def test_bits_per_byte_counts_all_nats_over_all_bytes(counting: Path) -> None:
    task = language_task(counting)
    metrics = measured(task, taught(task, 1))
    assert task.loss(task.build_model(), task.dummy_batch(3)).units == 3 * 48
    firsts = [task.train_stream(3, seed).batch(0)[0]["tokens"] for seed in (1, 1, 2)]
    assert torch.equal(*firsts[:2]) and not torch.equal(*firsts[1:])
    tokens, size = len(task.text.validation), task.text.text_bytes
    assert tokens > size  # one end token a document
    expected = metrics["loss"] / torch.tensor(2.0).log().item() * tokens / size
    assert metrics["bits_per_byte"] == pytest.approx(expected, rel=1e-6)


def test_masked_documents_do_not_meet(counting: Path) -> None:
    task = language_task(counting, mask_documents=True)
    model = task.build_model().eval()
    tokens = torch.tensor([[65, 66, 256, 67, 68, 69]])
    mask = task.attention_mask(tokens)
    alone = model(tokens[:, 3:])
    assert torch.allclose(model(tokens, mask)[:, 3:], alone, atol=1e-5)
    assert mask[0, 2].tolist() == [True] * 3 + [False] * 3


def test_a_vocabulary_too_small_is_refused(counting: Path) -> None:
    config = TextDataConfig(source=str(counting), tokenizer="bytes", max_length=48)
    large, task = (CausalLanguageModeling(LanguageModelConfig(**SIZES, vocab_size=size), config, 1)
                   for size in (300, 100))  # fmt: skip
    assert large.build_model().head.out_features == 300
    with pytest.raises(ValueError, match="is too small for the 260 tokens of the tokenizer"):
        task.prepare()


def test_images_of_other_channels_are_refused() -> None:
    pytest.importorskip("sklearn")
    task = ImageClassification(ImageClassifierConfig(**SIZES), ImageClassificationDataConfig(), 1)
    with pytest.raises(ValueError, match=r"give --model\.channels 1"):
        task.prepare()


# Of what a task may define: methods, and what it says of itself.
MOST_METHODS, MOST_ATTRIBUTES = 16, 6


def test_members_are_few() -> None:
    own = [name for name in vars(Task) if not name.startswith("_")]
    methods = [name for name in own if callable(getattr(Task, name))]
    attributes = {*own, *Task.__annotations__} - set(methods)
    assert len(methods) <= MOST_METHODS, methods
    assert len(attributes) <= MOST_ATTRIBUTES, attributes


def test_shards_are_refused_by_those_that_need_a_whole_model() -> None:
    refused = set()
    for name in TASKS:
        task = load_recipe(f"{name}/tiny").build_task()
        assert not any(strategy_error(task, kind) for kind in ("auto", "none", "ddp")), name
        errors = [strategy_error(task, kind) for kind in ("fsdp", "hybrid")]
        assert all(errors) == any(errors)
        if errors[0]:
            assert (
                "training.distributed cannot be 'fsdp', " in errors[0] and "use 'ddp'" in errors[0]
            )
            refused.add(name)
    assert refused == {"transducer", "segmentation", "image-tokenizer", "image-text-retrieval"}
