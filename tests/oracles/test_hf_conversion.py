"""transformers' own models and torch's encoder as ours: outputs, gradients, and back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from magneto.files import read_json, write_json  # noqa: E402
from magneto.hf.families import LLAMA, fairseq_sinusoids  # noqa: E402
from magneto.hf.layout import (  # noqa: E402
    fill,
    read_state,
    tensor_pairs,
    without_prefix,
)
from magneto.language.config import LanguageModelConfig  # noqa: E402
from magneto.language.models import LanguageModel  # noqa: E402
from tests.oracles import hf_models as small  # noqa: E402
from tests.oracles.hf_models import same_gradients, shaken, theirs  # noqa: E402

ROTARY = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
RELATIVE = {"use_relative_position_bias": False}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("GPT2LMHeadModel", {}),
    ("GPT2LMHeadModel", {"n_inner": 40, "activation_function": "relu"}),
    ("GPT2LMHeadModel", {"tie_word_embeddings": False}),
    ("LlamaForCausalLM", {}),
    ("LlamaForCausalLM",
     {"tie_word_embeddings": True, "head_dim": 12, "hidden_act": "gelu", **ROTARY}),
    ("MistralForCausalLM", {}),
    ("MistralForCausalLM", {"sliding_window": None}),
    ("BertModel", {}),
    ("BertForMaskedLM", {}),
    ("BertForMaskedLM", {"tie_word_embeddings": False}),
    ("BertForSequenceClassification", {}),
    ("BartForConditionalGeneration", {}),
    ("BartForConditionalGeneration", {"scale_embedding": True}),
    ("MarianMTModel", {"scale_embedding": True}),
    ("ViTForImageClassification", {}),
    ("BeitForImageClassification", {}),
    ("BeitForImageClassification", {**RELATIVE, "use_shared_relative_position_bias": True}),
    ("BeitForImageClassification",
     {**RELATIVE, "use_absolute_position_embeddings": True, "layer_scale_init_value": 0.0}),
    ("BeitForImageClassification", {"use_mean_pooling": False, "hidden_act": "relu"}),
    ("Kosmos2TextForCausalLM", {}),
    ("Kosmos2TextForCausalLM", {"tie_word_embeddings": False}),
    ("Kosmos2TextForCausalLM", {"embed_dim": 18}),
]  # fmt: skip
IDS = torch.randint(5, 24, (3, 9), generator=torch.Generator().manual_seed(1))
LEFT, RIGHT = torch.ones_like(IDS), torch.ones_like(IDS)
LEFT[0, :3], RIGHT[1, -4:] = 0, 0
IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def both(name: str, other: Any, ours: Any) -> list[tuple[Tensor, Tensor]]:
    """What both say of the same inputs, padded and not."""
    if "Image" in name:
        return [(other(IMAGES).logits, ours(IMAGES))]
    if hasattr(other.config, "decoder_ffn_dim"):
        target = IDS[:, :5].flip(1)
        padded = other(IDS, attention_mask=RIGHT, decoder_input_ids=target).logits
        return [(padded, ours(IDS, target, RIGHT.bool()))]
    if "Bert" in name:
        types, real = IDS % 2, RIGHT.bool()
        found = ours(IDS, real, token_types=types)
        expected = other(IDS, attention_mask=RIGHT, token_type_ids=types)[0]
        return [(expected, found) if "Sequence" in name else (expected[real], found[real])]
    real, ids = LEFT.bool(), IDS
    given: dict[str, Any] = {"position_ids": (LEFT.cumsum(1) - 1).clamp(min=0)}
    if "Kosmos" in name:  # its positions are counted from padding tokens
        ids, given = IDS.masked_fill(~real, other.config.pad_token_id), {}
    padded = other(ids, attention_mask=LEFT, **given).logits[real]
    return [(other(IDS).logits, ours(IDS)), (padded, ours(ids, real)[real])]


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_the_same_is_computed_and_comes_back(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Outputs within 1e-5, gradients, and there and back bit by bit."""
    other = theirs(name, **changes)
    if "Bart" in name:
        other.final_logits_bias.copy_(torch.randn(1, 24))
    other.save_pretrained(tmp_path)
    ours: Any = hf.load(tmp_path)
    for expected, found in both(name, other, ours):
        difference = (expected - found).abs().max().item()
        print(f"{name} {changes}: {difference:.2e} of {expected.abs().max().item():.1f}")
        assert difference <= 1e-5
    if "Image" in name:
        tensors = [next(p for n, p in other.named_parameters() if "projection.weight" in n),
                   ours.embedding.proj.weight]  # fmt: skip
    else:
        core = getattr(ours, "text_encoder", ours)
        tensors = [other.get_input_embeddings().weight, core.embedding.table.weight]
    same_gradients(both(name, other, ours)[0], tensors, 1e-3)
    back = hf.to_transformers(ours, other.config.model_type)
    assert type(back) is type(other)
    known = {key: t for key, t in other.state_dict().items() if not key.startswith("pooler")}
    assert known.keys() == back.state_dict().keys() or "BertForSequence" in name
    for key, tensor in known.items():
        # BART's positions begin at row 2; what lies before is never read, nor kept.
        rows = slice(2 * ("Bart" in name and key.endswith("embed_positions.weight")), None)
        if key != "cls.predictions.bias":  # its decoder has it; by itself it is not read
            assert torch.equal(tensor[rows], back.state_dict()[key][rows]), key
    assert hf.load(back).config == ours.config


@pytest.mark.parametrize(
    "name", ["GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM", "Kosmos2TextForCausalLM"]
)
def test_generation_is_theirs(name: str) -> None:
    other, ids = theirs(name), IDS[:, :5]
    how: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    ours: Any = hf.wrap(hf.load(other), end=0)
    written = ours.generate(ids, **how)
    assert torch.equal(written, other.generate(ids, **how))


@pytest.mark.parametrize("name", ["BartForConditionalGeneration", "MarianMTModel"])
def test_translations_do_not_end_with_a_token_of_another_vocabulary(name: str) -> None:
    """By default, BART's last token is token 2 where the text reaches the length limit."""
    core, how = hf.load(theirs(name)), {"max_new_tokens": 6, "do_sample": False}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "decoder_start_token_id"), 23)
    back = hf.to_transformers(core, theirs(name).config.model_type, **ends)
    expected = hf.wrap(core, 23).generate(IDS, **how)
    assert expected.shape[1] == 7 and torch.equal(back.generate(IDS, **how), expected)


INSIDE = {
    "self_attention.attention.inside": "self_attn.attn_sub_norm",
    "feed_forward.mlp.inside": "mlp.ffn_sub_norm",
}
AFTER = {
    "self_attention.attention.norm_heads.q.norm": "self_attn.q_norm",
    "self_attention.attention.norm_heads.k.norm": "self_attn.k_norm",
    "self_attention.branch": "post_attention_layernorm",
    "feed_forward.branch": "post_feedforward_layernorm",
}


@pytest.mark.parametrize(
    ("name", "placement", "norms", "changes"),
    [
        ("BitNet", "sub", INSIDE, {}),
        ("BitNet", "sub", INSIDE,
         {"tie_word_embeddings": True, "hidden_act": "silu", **ROTARY}),
        ("Olmo2", "olmo2", AFTER, {}),
        ("Olmo2", "olmo2", AFTER, {"num_key_value_heads": 2, "rms_norm_eps": 1e-2}),
    ],
)  # fmt: skip
def test_other_norms_of_llama_are_a_row_of_the_table(
    name: str, placement: str, norms: dict[str, str], changes: dict[str, Any]
) -> None:
    """Outputs and all gradients; BitNet without the rounding of its released weights."""
    config = getattr(transformers, f"{name}Config")(**small.LLAMA | changes)
    other: Any = shaken(getattr(transformers, f"{name}ForCausalLM")(config))
    ours: Any = LanguageModel(replace(LLAMA.ours(config), placement=placement))
    more = {f"decoder.layers.*.{mine}": f"layers.*.{their}" for mine, their in norms.items()}
    read = {*more.values()}
    llama = {mine: their for mine, their in LLAMA.names.items() if not read & {*their}}
    pairs = tensor_pairs(ours.config, {**llama, **more})

    def as_ours(state: dict[str, Tensor]) -> dict[str, Tensor]:
        return read_state(pairs, without_prefix(state, "model."), "^lm_head")

    fill(ours, as_ours(other.state_dict()))
    for expected, found in both(name, other, ours):
        assert (expected - found).abs().max() <= 1e-5
    for answer in (other(IDS).logits, ours(IDS)):
        answer.square().sum().backward()
    found = dict(ours.named_parameters())
    for key, gradient in as_ours({n: p.grad for n, p in other.named_parameters()}).items():
        torch.testing.assert_close(found[key].grad, gradient, rtol=1e-4, atol=1e-3, msg=key)


def test_kosmos2_whole(tmp_path: Path) -> None:
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "image_size": 8,
        "num_attention_heads": 2, "patch_size": 4,
    }  # fmt: skip
    text = small.THEIRS["Kosmos2TextForCausalLM"]
    config = transformers.Kosmos2Config(text_config=text, vision_config=vision)
    other: Any = shaken(transformers.Kosmos2ForConditionalGeneration(config))
    other.save_pretrained(tmp_path)
    for source in (other, tmp_path):
        assert (other.text_model(IDS).logits - hf.load(source)(IDS)).abs().max() <= 1e-5
    state = load_file(tmp_path / "model.safetensors")
    del state["text_model.model.layers.1.ffn.fc1.weight"]
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"has no text_model\.model\.layers\.1\.ffn\.fc1\.weight"):
        hf.load(tmp_path)


def encoder(norm: nn.Module | None, **changes: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, **changes)
    return nn.TransformerEncoder(layer, 3, norm, enable_nested_tensor=False)


@pytest.mark.parametrize(
    ("norm_first", "function", "bias"),
    [
        (False, "relu", True), (True, "gelu", False), (False, nn.GELU("tanh"), False),
        (True, nn.ReLU(), True),
    ],
    ids=str,
)  # fmt: skip
def test_torch_encoder(norm_first: bool, function: Any, bias: bool) -> None:
    norm = nn.LayerNorm(32, bias=bias) if norm_first else None
    other = shaken(encoder(norm, activation=function, norm_first=norm_first, bias=bias))
    for part in other.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = 1e-2
    ours, real = hf.from_torch(other), RIGHT.bool()  # type: ignore[arg-type]
    x = torch.randn(3, 9, 32, requires_grad=True)
    expected, found = other(x, src_key_padding_mask=~real)[real], ours(x, real)[real]
    assert (expected - found).abs().max() <= 1e-5
    same_gradients((expected, found), (x, x), 1e-3)


def test_what_has_no_counterpart_in_torch_is_named() -> None:
    with pytest.raises(ValueError, match="norm_first=False needs an encoder without"):
        hf.from_torch(encoder(nn.LayerNorm(32)))
    with pytest.raises(ValueError, match="different eps"):
        hf.from_torch(encoder(nn.LayerNorm(32, eps=1e-3), norm_first=True))
    with pytest.raises(ValueError, match=r"activation .* has no counterpart"):
        hf.from_torch(encoder(None, activation=torch.tanh))
    with pytest.raises(ValueError, match="norm_first=True needs a final LayerNorm"):
        hf.from_torch(encoder(nn.RMSNorm(32), norm_first=True, bias=False))  # type: ignore[arg-type]
    heads = nn.MultiheadAttention(32, 8, batch_first=True)
    changes = {"norm_first": True, "activation": nn.ReLU(), "self_attn": heads}
    for name, value in changes.items():
        mixed = encoder(None, activation="gelu")
        setattr(mixed.layers[1], name, value)
        with pytest.raises(ValueError, match="different norm_first, nhead or activation"):
            hf.from_torch(mixed)
    with pytest.raises(ValueError, match="from_torch"):
        hf.load(encoder(None))


def test_what_has_no_counterpart_here_is_named(tmp_path: Path) -> None:
    """Fields are tried one by one in `test_hf_fields`; these are said by their values."""
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    rounded = theirs("LlamaForCausalLM")
    rounded.config.quantization_config = {"quant_method": "bitnet"}
    for model, words in (
        (theirs("LlamaForCausalLM", attention_bias=True), "attention_bias=True is not supported"),
        (theirs("LlamaForCausalLM", rope_parameters=scaled), "only rope_type 'default'"),
        (rounded, "quantization_config is not supported"),
        (nn.Linear(2, 2), "Linear has no config. Give a transformers model"),
    ):
        with pytest.raises(ValueError, match=words):
            hf.load(model)
    with pytest.raises(FileNotFoundError, match="no Hugging Face model"):
        hf.load(tmp_path / "nothing")


def test_a_classifiers_head_has_the_dropout_of_the_layers_unless_it_has_its_own() -> None:
    for own, expected in ((None, 0.3), (0.0, 0.0), (0.2, 0.2)):
        other = theirs("BertForSequenceClassification", hidden_dropout_prob=0.3,
                       classifier_dropout=own)  # fmt: skip
        assert hf.load(other).config.head_dropout == expected  # type: ignore[union-attr]


def test_dropout_rates_are_those_of_the_source() -> None:
    ours = ("dropout", "attention_dropout", "embedding_dropout", "activation_dropout")
    for name, given, rates in (
        ("GPT2LMHeadModel", ("resid_pdrop", "attn_pdrop", "embd_pdrop"), (0.1, 0.2, 0.3, 0.0)),
        ("BertModel", ("hidden_dropout_prob", "attention_probs_dropout_prob"),
         (0.1, 0.2, None, 0.0)),
        ("BartForConditionalGeneration", ("dropout", "attention_dropout", "activation_dropout"),
         (0.1, 0.2, None, 0.3)),
    ):  # fmt: skip
        config: Any = hf.load(
            theirs(name, **dict(zip(given, (0.1, 0.2, 0.3), strict=False)))
        ).config
        assert tuple(getattr(config, each) for each in ours) == rates


def test_damaged_directories_are_refused_by_name(tmp_path: Path) -> None:
    """What transformers says afterwards is as before."""
    transformers.logging.set_verbosity_warning()
    theirs("MarianMTModel").save_pretrained(tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    state, values = load_file(weights), read_json(config)
    key = "model.decoder.layers.0.fc1.weight"
    save_file(state | {key: state[key][1:].clone()}, weights, {"format": "pt"})
    with pytest.raises(
        ValueError, match=rf"{tmp_path}: the shape of {key} is \(23, 16\), but must"
    ):
        hf.load(tmp_path)
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=f"{tmp_path}: SafetensorError"):
        hf.load(tmp_path)
    write_json(config, values | {"vocab_size": 0})
    with pytest.raises(ValueError, match=f"{tmp_path}: AssertionError: Padding_idx"):
        hf.load(tmp_path)
    assert transformers.logging.get_verbosity() == transformers.logging.WARNING


def test_positions_that_kosmos2_computes_are_no_trained_ones() -> None:
    model = LanguageModel(LanguageModelConfig(
        width=16, layers=2, heads=2, ffn_width=24, vocab_size=24, positions="learned",
        embedding_scale="none",
    ))  # fmt: skip
    with pytest.raises(ValueError, match="but was trained"):
        hf.to_transformers(model, "kosmos_2_text_model")
    other = theirs("Kosmos2TextForCausalLM", pad_token_id=3).eval()  # positions begin at 4
    assert torch.allclose(hf.load(other)(IDS), other(IDS).logits, atol=1e-5)
    assert not fairseq_sinusoids(3, 5, 2)[:, -1].any()  # fairseq fills up an odd width


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("ViTModel", small.IMAGE, "has no classifier.bias, read as ViTForImageClassification"),
        (
            "BertForTokenClassification",
            small.BERT,
            "has an unknown tensor classifier.bias, read as BertModel",
        ),
        ("BartForSequenceClassification", small.BART, "tensor classification_head.dense.bias"),
        ("BertForPreTraining", small.BERT, ""),
        ("BartModel", small.BART, ""),
        ("GPT2Model", small.THEIRS["GPT2LMHeadModel"], ""),
    ],
)
def test_heads_that_lack_or_are_others(tmp_path: Path, name: str, values: Any, words: str) -> None:
    """They are named; those of which it is known that they do not matter are left behind."""
    kind = getattr(transformers, name)
    other = kind(kind.config_class(**values))
    other.save_pretrained(tmp_path)
    if words:
        with pytest.raises(ValueError, match=words):
            hf.load(tmp_path)
        return
    found = hf.load(tmp_path).state_dict()
    expected = hf.load(other).state_dict()
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())
    bare = hf.load(other.base_model).state_dict()
    short = {key.removeprefix("text_encoder."): tensor for key, tensor in found.items()}
    assert all(torch.equal(short[key], tensor) for key, tensor in bare.items())
