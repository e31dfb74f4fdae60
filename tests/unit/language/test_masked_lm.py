"""Masked language modelling: it learns, resumes exactly, and asks every run the same questions."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from magneto.language.config import MaskedLanguageModelConfig, MaskedTextDataConfig
from magneto.language.masked_lm import MaskedLanguageModeling
from magneto.progress import ProgressBars
from magneto.recipe import load_recipe
from magneto.training.loop import train
from tests.evaluating import measured, reads_while_scoring, taught

SIZES = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 64}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"text": f"{i} {i + 1} {i + 2} the end"}) for i in range(400)]
    path.write_text("\n".join(lines))
    return path


def masked_task(corpus: Path, seed: int = 1, **data) -> MaskedLanguageModeling:
    values = {"max_length": 48, "tokenizer": "bytes", **data}
    config = MaskedTextDataConfig(source=str(corpus), **values)
    model = MaskedLanguageModelConfig(**SIZES, positions="rotary", rotary_base=100.0)
    return MaskedLanguageModeling(model, config, seed)


@pytest.mark.parametrize(
    "data",
    [{}, {"streaming": True}, {"masking": "span", "corruption": "bert", "mask_documents": True}],
    ids=str,
)
def test_it_learns(corpus: Path, data: dict) -> None:
    task = masked_task(corpus, **data)
    metrics = measured(task, taught(task, 100, rate=5e-3))
    frequencies = masked_task(corpus, **{**data, "streaming": False}).baseline()
    assert metrics["loss"] < frequencies["loss"] - 0.3
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    assert 0.2 < metrics["masked_accuracy"] <= 1


def same(first: list, second: list) -> bool:
    return all(torch.equal(a[key], b[key]) for a, b in zip(first, second, strict=True) for key in a)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_batch_depends_on_its_step_and_not_on_cuts(corpus: Path, streaming: bool) -> None:
    def stream():
        return masked_task(corpus, streaming=streaming).train_stream(6, 1)

    whole, cut = stream(), stream()
    for step in range(3):
        [piece] = whole.batch(step)
        parts = cut.batch(step, 4, [0, 1, 2, 3])
        assert same([piece], [{k: torch.cat([p[k] for p in parts]) for k in piece}])
    assert same(whole.batch(3, 2, [1]), stream().batch(3, 2, [1]))


def test_a_window_is_hidden_otherwise_the_next_time(corpus: Path) -> None:
    task = masked_task(corpus)
    count = (len(task.text.train.tokens) - 1) // 47
    stream = task.train_stream(count, 1).batches()
    first, second = (next(stream)[0] for _ in range(2))

    def windows(batch) -> dict[bytes, bytes]:
        filled = batch["tokens"].clone().scatter_(1, batch["positions"], batch["targets"])
        places = batch["positions"].numpy()
        return {row.numpy().tobytes(): at.tobytes() for row, at in zip(filled, places, strict=True)}

    before, after = windows(first), windows(second)
    assert before.keys() == after.keys() and len(before) > 50
    assert sum(before[row] != after[row] for row in before) > 0.9 * len(before)
    assert (first["tokens"][:, 0] == task.text.tokenizer.begin).all()


def test_every_run_is_asked_the_same(corpus: Path) -> None:
    first, second = masked_task(corpus, seed=1), masked_task(corpus, seed=2)
    assert same(list(first.validation_batches()), list(second.validation_batches()))


def test_a_tokenizer_without_mask_is_refused_before_any_work(
    corpus: Path, tmp_path: Path, cache: Path
) -> None:
    from magneto.data.tokenizer import train_bpe

    train_bpe(["some text of no matter"] * 9, 280, tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match="has no mask token"):
        masked_task(corpus, tokenizer=str(tmp_path / "tokenizer.json")).prepare()
    assert not cache.exists()


@pytest.mark.slow
def test_the_tiny_recipe_leaves_the_plateau(tmp_path: Path) -> None:
    recipe = load_recipe("masked-lm/tiny", {"training.device": "cpu"})
    task = recipe.build_task()
    task.prepare()
    report = ProgressBars(quiet=True)
    result = train(task, recipe.training, tmp_path / "run", seed=recipe.seed, report=report)
    # Measured: 1.33 below.
    assert result.metrics["loss"] < task.baseline()["loss"] - 0.8


def test_scoring_reads_nothing_from_the_device(corpus: Path, monkeypatch) -> None:
    assert not reads_while_scoring(masked_task(corpus), monkeypatch)
