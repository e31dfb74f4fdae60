"""Llama and Mistral against transformers' own classes; BitNet's is Sub-LN by other hands."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from magneto.hf.weights import llama  # noqa: E402
from magneto.hf.weights.layout import fill, in_layers, read_state, without_prefix  # noqa: E402
from magneto.language.config import LanguageModelConfig  # noqa: E402
from magneto.language.models import LanguageModel  # noqa: E402
from tests.hf.weights.test_conversion import check, right_padding, shake, tokens  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": 97, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "hidden_size": 32,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 40,
}  # fmt: skip
BASE = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("Llama", {}),
    "Llama, tied, wide heads, GELU": (
        "Llama", {"tie_word_embeddings": True, "head_dim": 12, "hidden_act": "gelu", **BASE},
    ),
    "Mistral": ("Mistral", {"sliding_window": 3}),
    "Mistral, no window": ("Mistral", {"sliding_window": None}),
}  # fmt: skip


def build(kind: str, **changes: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(**SIZES | changes)
    return shake(getattr(transformers, f"{kind}ForCausalLM")(config))


def check_both_ways(theirs: Any, folder: Path) -> LanguageModel:
    """Outputs, gradients, padding and generation are theirs; what is written is theirs again."""
    theirs.save_pretrained(folder)
    ours: Any = hf.load(folder)
    name, ids = theirs.config.model_type, tokens()
    check(name, theirs(ids).logits, ours(ids))
    mask = right_padding(ids)
    real = mask.bool()
    check(f"{name}, padded", theirs(ids, attention_mask=mask).logits[real], ours(ids, real)[real])
    grads = [
        torch.autograd.grad(answer.square().sum(), weight)[0]
        for answer, weight in [
            (theirs(ids).logits, theirs.get_input_embeddings().weight),
            (ours(ids), ours.embedding.table.weight),
        ]
    ]
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-3)
    back = hf.to_transformers(ours, name)
    check(f"{name}, back", theirs(ids).logits, back(ids).logits)
    assert hf.load(back).config == ours.config
    how: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    from magneto.hf.export import wrap

    written = wrap(ours, end=0).generate(ids, **how)  # type: ignore[operator]
    assert torch.equal(written, theirs.generate(ids, **how))
    return ours


@pytest.mark.parametrize("name", MODELS)
def test_transformers_own_class_computes_the_same(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    ours = check_both_ways(build(kind, **changes), tmp_path)
    assert ours.config.row.name == "pre"


@pytest.mark.parametrize(
    "changes", [{}, {"tie_word_embeddings": True, "hidden_act": "silu", **BASE}], ids=str
)
def test_bitnets_own_class_is_sub_ln(changes: dict[str, Any]) -> None:
    """Without the rounding of its released weights: where its norms sit, and how wide they are."""
    theirs = build("BitNet", **changes)
    theirs_config, ids = theirs.config, tokens()
    llama_config = llama.LLAMA.ours(theirs_config)
    ours = LanguageModel(replace(llama_config, placement="sub"))
    inside = {
        "self_attention.attention.inside": "self_attn.attn_sub_norm",
        "feed_forward.mlp.inside": "mlp.ffn_sub_norm",
    }
    pairs = llama.LLAMA.pairs(ours.config)
    pairs += in_layers(inside, "decoder.layers", "layers", ours.config.layers)
    fill(ours, read_state(pairs, without_prefix(theirs.state_dict(), "model."), "^lm_head"))
    mask = right_padding(ids)
    real = mask.bool()
    check("BitNet", theirs(ids).logits, ours(ids))
    padded = theirs(ids, attention_mask=mask).logits
    check("BitNet, padded", padded[real], ours(ids, real)[real])
    grads = [
        torch.autograd.grad(answer.square().sum(), weight)[0]
        for answer, weight in [
            (theirs(ids).logits, theirs.get_input_embeddings().weight),
            (ours(ids), ours.embedding.table.weight),
        ]
    ]
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_there_and_back_is_bit_equal(name: str) -> None:
    theirs = build(name)
    expected = theirs.state_dict()
    found = hf.to_transformers(hf.load(theirs), theirs.config.model_type).state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())


def test_what_has_no_counterpart_is_named() -> None:
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    for kind, changes, words in [
        ("Llama", {"attention_bias": True}, "attention_bias=True has no counterpart"),
        ("Llama", {"mlp_bias": True}, "mlp_bias=True has no counterpart"),
        ("Llama", {"rope_parameters": scaled}, "only rope_type 'default'"),
        ("Llama", {"hidden_act": "tanh"}, "no activation 'tanh'"),
    ]:
        with pytest.raises(ValueError, match=words):
            hf.load(build(kind, **changes))
    rounded = build("Llama")
    rounded.config.quantization_config = {"quant_method": "bitnet"}
    with pytest.raises(ValueError, match="quantization_config has no counterpart"):
        hf.load(rounded)


SMALL: dict[str, Any] = {
    "width": 16, "layers": 2, "heads": 2, "ffn_width": 24, "vocab_size": 40, "norm": "rmsnorm",
    "bias": False, "positions": "rotary", "activation": "swiglu", "embedding_scale": "none",
    "placement": "pre",
}  # fmt: skip


def test_what_the_formats_cannot_hold_is_named() -> None:
    for name, changes, words in [
        ("llama", {"windows": (4,)}, r"windows is \[4, 4\] here, \[None, None\] there"),
        ("mistral", {"windows": (4, None)}, r"windows is \[4, None\] here, \[4, 4\] there"),
        ("llama", {"embedding_dropout": 0.1}, "embedding_dropout is 0.1 here"),
        ("llama", {"activation": "relu"}, "activation"),
        ("llama", {"placement": "sub"}, "placement is 'sub' here, 'pre' there"),
        ("gpt2", {}, "no activation 'swiglu'"),
    ]:
        model = LanguageModel(LanguageModelConfig(**SMALL | changes))
        with pytest.raises(ValueError, match=words):
            hf.to_transformers(model, name)
