"""Configurations for transformers: sizes, placements, problem types and refusals."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from magneto import PLACEMENTS, hf  # noqa: E402
from magneto.commands.convert import read, write  # noqa: E402
from magneto.hf.conversion import load_weight_file, write_weights  # noqa: E402
from magneto.hf.export import wrap  # noqa: E402
from magneto.language.config import LanguageModelConfig, TextClassifierConfig  # noqa: E402
from magneto.language.models import LanguageModel, TextClassifier  # noqa: E402
from magneto.vision.config import ImageClassifierConfig  # noqa: E402
from magneto.vision.models import ImageClassifier  # noqa: E402
from tests.unit.hf.kinds import STACK  # noqa: E402


def test_sizes_are_those_of_the_core() -> None:
    config = hf.MagnetoConfig(**STACK, vocab_size=40, placement="pre", pad_token_id=3)
    assert config.core_config() == LanguageModelConfig(**STACK, vocab_size=40, placement="pre")
    assert config.hidden_size == 16 and config.num_hidden_layers == 2 and config.pad_token_id == 3
    made: Any = transformers.AutoConfig
    hf.register()
    assert made.for_model("magneto", **STACK).core == hf.MagnetoConfig(**STACK).core
    assert hf.MagnetoSeq2SeqConfig(encoder_layers=1, decoder_layers=2).num_hidden_layers == 2
    shared = hf.MagnetoConfig(**{**STACK, "key_value_heads": 1})
    assert [each.num_key_value_heads for each in (config, shared)] == [
        config.num_attention_heads,
        1,
    ]


def test_unknown_sizes_are_refused() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"hidden_size": 32}, "MagnetoConfig has no hidden_size; did you mean width?"),
        ({"widht": 32}, "has no widht; did you mean width?"),
        ({"mixture_of_experts": 8}, "has no mixture_of_experts$"),
        ({"core": {"vocab_size": 40}, "width": 32}, "width must be in the dictionary"),
    )
    for given, words in cases:
        with pytest.raises(ValueError, match=words):
            hf.MagnetoConfig(**given)


def test_a_placement_is_of_the_table_and_no_code_of_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = replace(PLACEMENTS["sub"], feed_forward=("before",))
    model = LanguageModel(LanguageModelConfig(**STACK, vocab_size=40, placement=row))
    values = {**STACK, "vocab_size": 40, "placement": row}
    for make in (lambda: wrap(model), lambda: hf.MagnetoConfig(core=values)):
        with pytest.raises(ValueError, match="'sub' differs from Magneto's placement"):
            make()
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rows_of_a_directory.py").write_text("raise RuntimeError('it ran')")
    path = "rows_of_a_directory:ROW"
    with pytest.raises(ValueError, match=f"placement '{path}' is not one of Magneto's"):
        hf.MagnetoConfig(core={**STACK, "placement": path})
    for row in (*PLACEMENTS.values(), "eva02"):  # saved by name
        for given in ({"core": {**STACK, "placement": row}}, {**STACK, "placement": row}):
            hf.MagnetoConfig(**given).save_pretrained(tmp_path)
            kept = hf.MagnetoConfig.from_pretrained(tmp_path).core_config().placement
            assert kept == getattr(row, "name", row)


def test_an_image_model_can_have_a_new_head(tmp_path: Path) -> None:
    hf.register()
    assert hf.MagnetoForImageClassification(
        hf.MagnetoImageConfig(**STACK, image_size=8, patch_size=4, num_labels=3)
    ).core.head.weight.shape == (3, 16)
    assert hf.MagnetoImageConfig(classes=7).num_labels == 7
    sizes = ImageClassifierConfig(**STACK, image_size=8, patch_size=4, channels=1, classes=10)
    wrap(ImageClassifier(sizes)).save_pretrained(tmp_path)
    load: Any = transformers.AutoModelForImageClassification.from_pretrained
    loaded = load(tmp_path, num_labels=3, ignore_mismatched_sizes=True)
    assert loaded(torch.randn(2, 1, 8, 8)).logits.shape == (2, 3)
    assert 0.0005 < loaded.core.head.weight.std() < 0.002 and not loaded.core.head.bias.any()
    loaded.save_pretrained(tmp_path / "again")
    assert load(tmp_path / "again").config.num_labels == 3
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        load(tmp_path, num_labels=3)


def test_arguments_that_are_given_precede_those_of_a_checkpoint(tmp_path: Path) -> None:
    """A checkpoint has them under "args", or since 2021 under "cfg"; DeepSpeed's has a "module"."""
    state, args = write_weights(LanguageModel(LanguageModelConfig(**STACK, vocab_size=40)),
                                "torchscale")  # fmt: skip
    weights = {f"decoder.{name}": tensor for name, tensor in state.items()}
    for held in ({"model": weights, "args": Namespace(**args)},
                 {"module": weights, "cfg": {"model": args}}):  # fmt: skip
        torch.save(held, tmp_path / "a.pt")
        given = {"decoder_attention_heads": 4}
        heads = [load_weight_file(tmp_path / "a.pt", each).config.heads for each in (None, given)]
        assert heads == [2, 4]


def test_a_conversion_keeps_the_problem_type(tmp_path: Path) -> None:
    """And the head's dropout and pooling; weights become fp32."""
    head: Any = {"head_dropout": 0.3, "pooling": "mean"}
    config = TextClassifierConfig(**STACK, vocab_size=40, classes=2, **head)
    place = tmp_path / "first"
    made = wrap(TextClassifier(config), problem_type="multi_label_classification")
    assert not made.training
    made.bfloat16().save_pretrained(place)
    model, values = read(str(place), place, {})
    assert model.config == config and model.head.answer.weight.dtype == torch.float32
    write(model, None, tmp_path / "second", values)
    load: Any = transformers.AutoConfig.from_pretrained
    assert load(tmp_path / "second").problem_type == "multi_label_classification"
