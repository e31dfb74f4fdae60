"""Every foreign format against every row of the placement table: written, or refused in a line."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

from magneto import PLACEMENTS, Placement, hf  # noqa: E402
from magneto.hf.weights.beit3 import to_beit3  # noqa: E402
from magneto.hf.weights.timm import BEIT, EVA, VIT  # noqa: E402
from magneto.hf.weights.torchscale import load_torchscale, to_torchscale  # noqa: E402
from magneto.language.config import LanguageModelConfig, TextEncoderConfig  # noqa: E402
from magneto.language.models import LanguageModel, TextEncoder  # noqa: E402
from magneto.theory.placement import VARIANTS  # noqa: E402
from magneto.translation.config import TranslationConfig  # noqa: E402
from magneto.translation.model import TranslationModel  # noqa: E402
from magneto.vision.classifier import ImageClassifier  # noqa: E402
from magneto.vision.config import ImageClassifierConfig  # noqa: E402

ROWS: dict[str, Placement] = PLACEMENTS | VARIANTS
TEXT: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "ffn_width": 24, "vocab_size": 40}
SIZES = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
BERT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 20, **SIZES,
}  # fmt: skip
BART = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "max_position_embeddings": 20, "decoder_start_token_id": 0, **SIZES,
}  # fmt: skip


def theirs(name: str) -> nn.Module:
    """Build a small model of transformers."""
    library: Any = transformers
    if name == "kosmos_2_text_model":
        from transformers.models.kosmos2 import modeling_kosmos2

        config = modeling_kosmos2.Kosmos2TextConfig(
            embed_dim=16, layers=2, attention_heads=2, ffn_dim=24, max_position_embeddings=20,
            **{**SIZES, "eos_token_id": 2},
        )  # fmt: skip
        return modeling_kosmos2.Kosmos2TextForCausalLM(config)
    vit = {key: value for key, value in BERT.items() if key in list(BERT)[:4]}
    return {
        "gpt2": lambda: library.GPT2LMHeadModel(
            library.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=20, **SIZES)
        ),
        "bert": lambda: library.BertModel(library.BertConfig(**BERT), add_pooling_layer=False),
        "bert masked": lambda: library.BertForMaskedLM(library.BertConfig(**BERT)),
        "bert classifier": lambda: library.BertForSequenceClassification(
            library.BertConfig(**BERT)
        ),
        "bart": lambda: library.BartForConditionalGeneration(library.BartConfig(**BART)),
        "marian": lambda: library.MarianMTModel(library.MarianConfig(**BART)),
        "vit": lambda: library.ViTForImageClassification(
            library.ViTConfig(image_size=8, patch_size=4, **vit)
        ),
        "beit": lambda: library.BeitForImageClassification(
            library.BeitConfig(image_size=8, patch_size=4, use_mean_pooling=False, **vit)
        ),
    }[name]()


FITTING = {
    "gpt2": {"pre"},
    "bert": {"post"},
    "bert masked": {"post"},
    "bert classifier": {"post"},
    "bart": {"post"},
    "marian": {"post"},
    "vit": {"pre"},
    "beit": {"pre"},
    "kosmos_2_text_model": {"sub"},
}


def check(
    kind: Any,
    config: Any,
    fitting: set[str],
    write: Callable[[nn.Module], Any],
    state: dict[str, Any] | None = None,
    rows: set[str] | None = None,
) -> dict[str, Any]:
    """Write a model of each row, with what a state has; return what came of those that fit."""
    written = {}

    def made(row: str | Placement) -> nn.Module:
        model = kind(replace(config, placement=row))
        model.load_state_dict(state or {}, strict=False)
        return model

    for name, row in ROWS.items():
        if rows is not None and name not in rows:
            continue
        if name in fitting:
            written[name] = write(made(name))
            # Of the same name, but another row.
            row = replace(row, alpha=lambda depth: 2.0)
        with pytest.raises(ValueError) as found:
            write(made(row))
        assert len(str(found.value).splitlines()) == 1, name
        assert f"placement is {'another ' * (name in fitting)}{name!r}" in str(found.value)
    assert written.keys() == fitting
    return written


@pytest.mark.parametrize("name", FITTING)
def test_formats_of_transformers(name: str) -> None:
    ours: Any = hf.load(theirs(name))
    form, state = name.split()[0], ours.state_dict()
    check(type(ours), ours.config, FITTING[name], lambda m: hf.to_transformers(m, form), state)


@pytest.mark.parametrize("kind", [LanguageModel, TextEncoder, TranslationModel])
def test_torchscale(kind: Any) -> None:
    config: Any = {
        LanguageModel: LanguageModelConfig(**TEXT),
        TextEncoder: TextEncoderConfig(**TEXT),
        TranslationModel: TranslationConfig(**TEXT, encoder_layers=1, decoder_layers=2),
    }[kind]
    written = check(kind, config, {"pre", "post", "sub", "deepnorm"}, to_torchscale)
    for name, (state, args) in written.items():
        loaded: Any = load_torchscale(state, args)
        assert loaded.config.row is ROWS[name]


@pytest.mark.parametrize(
    ("write", "fitting"),
    [
        (to_beit3, {"sub"}),
        (VIT.save, {"pre", "sub"}),
        (BEIT.save, {"pre"}),
        (EVA.save, {"pre", "eva02", "sub"}),
    ],
)
def test_weight_files_of_images(write: Callable[[nn.Module], Any], fitting: set[str]) -> None:
    sizes = {key: value for key, value in TEXT.items() if key != "vocab_size"}
    keys = write in (BEIT.save, EVA.save)
    config = ImageClassifierConfig(
        **sizes, image_size=8, patch_size=4, class_token="learned", positions="learned",
        pooling="first" if write is not to_beit3 else "mean_then_norm", max_length=5,
        norm_eps=1e-6, unbiased=("k",) if keys else (),
    )  # fmt: skip
    torch.manual_seed(0)
    rows = {name for name, row in ROWS.items() if row.final == "norm"}
    given = rows if write is to_beit3 else set(ROWS)
    check(ImageClassifier, config, fitting, write, rows=given)
