"""`magneto export`: Auto classes and pipelines give the results of the run's model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from magneto.cli import main  # noqa: E402
from magneto.config import ConfigError  # noqa: E402
from magneto.recipe import load_recipe  # noqa: E402
from magneto.runs import OpenRun, load_run  # noqa: E402

TRAINING = """--training.steps 2 --training.warmup_steps 1 --training.batch_size 4
--training.tensorboard false --training.device cpu --model.width 32 --model.heads 4
--model.ffn_width 48""".split()  # noqa: SIM905
WORDS = """the cat sat on a mat while two old dogs ran after one red ball near our
blue door""".split()  # noqa: SIM905


def sentence(number: int, words: int = 8) -> str:
    return " ".join(WORDS[(number * 7 + place * (1 + number % 5)) % 18] for place in range(words))


def exported(place: Path, name: str, recipe: str, data: Path, *words: str) -> tuple[OpenRun, Path]:
    run, out = place / name, place / f"{name}-hf"
    train = ["train", recipe, "--data", str(data), "--out", str(run), *TRAINING, *words]
    with torch.enable_grad():
        assert main(train) == 0
    assert main(["export", str(run), str(out)]) == 0
    return load_run(run, "auto", {"training.device": "cpu"}), out


@torch.no_grad()
def test_text_classifier(tmp_path: Path, capsys) -> None:
    """Pairs with token types are assembled as in training, and classes are named."""
    rows = [
        {"text": sentence(n), "other": sentence(n + n % 3), "label": ["no", "yes", "maybe"][n % 3]}
        for n in range(120)
    ]
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = """--model.layers 1 --model.token_types 2 --data.vocab_size 300
    --data.pair_column other --model.pooling mean""".split()  # noqa: SIM905
    opened, out = exported(tmp_path, "pairs", "text-classification/tiny", data, *small)
    assert "AutoModelForSequenceClassification" in capsys.readouterr().out
    task: Any = opened.task
    held = next(iter(task.texts.validation.values()))
    batch = task._batch(task.validation, np.zeros(len(held)), np.arange(4))
    shown = [held[row] for row in range(4)]
    hf.register()
    words = transformers.AutoTokenizer.from_pretrained(out)
    texts, pairs = ([row[name] for row in shown] for name in ("text", "pair"))
    given = words(texts, pairs, padding=True, return_tensors="pt")
    assert torch.equal(given["input_ids"], batch["tokens"]) and "token_type_ids" in given
    assert torch.equal(given["attention_mask"].bool(), batch["mask"])
    alone, first = words(texts[0])["input_ids"], given["input_ids"][0].tolist()
    assert alone == first[: first.index(task.tokenizer.end) + 1]
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    expected = task.outputs(opened.model, batch)
    assert torch.equal(loaded(**given).logits, expected)
    pipe = transformers.pipeline("text-classification", model=str(out), top_k=None)
    found = pipe([{"text": texts[0], "text_pair": pairs[0]}])[0]
    answers = {answer["label"]: answer["score"] for answer in found}
    shares = expected[0].softmax(-1).tolist()
    assert answers == pytest.approx(dict(zip(task.texts.labels, shares, strict=True)), rel=1e-4)


@torch.no_grad()
def test_translation(tmp_path: Path, capsys) -> None:
    for language, shift in (("en", 0), ("de", 5)):
        lines = (sentence(number + shift, 5) for number in range(200))
        (tmp_path / f"text.{language}").write_text("\n".join(lines) + "\n")
    small = """--model.encoder_layers 1 --model.decoder_layers 1 --data.vocab_size 300
    --data.languages null --data.max_length 24 --data.max_tokens 256""".split()  # noqa: SIM905
    opened, out = exported(tmp_path, "translation", "translation/tiny", tmp_path / "text", *small)
    assert "AutoModelForSeq2SeqLM" in capsys.readouterr().out
    task: Any = opened.task
    hf.register()
    words = transformers.AutoTokenizer.from_pretrained(out)
    source = task.vocabulary.encode_source(["the cat sat"], "de")[0]
    given = words("<2de> the cat sat", return_tensors="pt")
    assert given["input_ids"].tolist() == [source]
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    target = torch.tensor([[task.vocabulary.end, *source[1:4]]])
    found = loaded(**given, decoder_input_ids=target).logits
    assert torch.equal(found, opened.model(given["input_ids"], target))
    written = loaded.generate(**given, max_new_tokens=6, do_sample=False, num_beams=2)
    assert written[0, 0] == task.vocabulary.end and written.shape[1] <= 7


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("image-tokenizer", {}, "image-tokenizer has no export"),
        ("visual-question-answering", {"data.input": "question"}, "data.input 'question'"),
    ],
)
def test_other_models_are_refused(
    name: str, changes: dict[str, str], message: str, tmp_path: Path
) -> None:
    recipe = load_recipe(f"{name}/tiny", changes)
    with pytest.raises(ConfigError, match=message) as refused:
        hf.export_model(recipe.task, torch.nn.Linear(1, 1), recipe.data, tmp_path / "out")
    assert len(refused.value.lines) == 1
    assert not (tmp_path / "out").exists()
