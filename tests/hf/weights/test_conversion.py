"""Parity with code that nobody here wrote: same weights, same input, fp32, at most 1e-5 apart."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402

SIZES = {"vocab_size": 97, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
SEQ2SEQ = {
    "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_position_embeddings": 40, "decoder_start_token_id": 0, "forced_eos_token_id": 0,
}  # fmt: skip


def shake(model: nn.Module) -> nn.Module:
    """Give every parameter a value of its own, norms and biases too."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def tokens(rows: int = 3, length: int = 11) -> torch.Tensor:
    return torch.randint(2, 97, (rows, length), generator=torch.Generator().manual_seed(1))


def right_padding(ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(ids)
    mask[1, -4:] = 0
    return mask


def check(name: str, theirs: torch.Tensor, ours: torch.Tensor) -> None:
    difference = (theirs - ours).abs().max().item()
    print(f"{name}: largest difference {difference:.2e} of {theirs.abs().max().item():.2f}")
    assert difference <= 1e-5


def gpt2(**changes) -> nn.Module:
    config = transformers.GPT2Config(
        n_positions=40, n_embd=32, n_layer=3, n_head=4, **{**SIZES, **changes}
    )
    return shake(transformers.GPT2LMHeadModel(config))


@pytest.mark.parametrize("changes", [{}, {"n_inner": 48, "activation_function": "relu"}], ids=str)
def test_gpt2(tmp_path: Path, changes: dict) -> None:
    theirs = gpt2(**changes)
    theirs.save_pretrained(tmp_path)
    ours = hf.load(tmp_path)
    ids = tokens()
    check("GPT-2", theirs(ids).logits, ours(ids))
    left = torch.ones_like(ids)
    left[0, :3] = 0
    positions = (left.cumsum(1) - 1).clamp(min=0)
    padded = theirs(ids, attention_mask=left, position_ids=positions).logits
    real = left.bool()
    check("GPT-2, padded on the left", padded[real], ours(ids, real)[real])


@pytest.mark.parametrize("name", ["embd_pdrop", "resid_pdrop", "attn_pdrop"])
def test_gpt2s_rates_of_dropout(name: str) -> None:
    """Each by itself; in training, the one of embeddings zeroes embeddings alone."""
    rates = dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), 0.0) | {name: 0.9}
    ours = hf.load(gpt2(**rates))
    back = hf.to_transformers(ours, "gpt2").config
    assert {key: getattr(back, key) for key in rates} == rates
    seen = []
    ours.get_submodule("decoder.layers.0").register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    ours.train()(tokens())
    assert (seen[0] == 0).float().mean().item() == pytest.approx(
        0.9 * (name == "embd_pdrop"), abs=0.1
    )


@pytest.mark.parametrize("stack", ["encoder_layerdrop", "decoder_layerdrop"])
def test_layers_that_are_dropped_in_training_are_refused(stack: str) -> None:
    for kind in ("Bart", "Marian"):
        config = getattr(transformers, f"{kind}Config")(**SEQ2SEQ, **SIZES, **{stack: 0.1})
        model = {"Bart": "BartForConditionalGeneration", "Marian": "MarianMTModel"}[kind]
        with pytest.raises(ValueError, match=rf"{stack}=0\.1 has no counterpart"):
            hf.load(getattr(transformers, model)(config))


def test_bert(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=40, **SIZES,
    )  # fmt: skip
    theirs = shake(transformers.BertModel(config))
    theirs.save_pretrained(tmp_path)
    ours = hf.load(tmp_path)
    ids, types = tokens(), tokens() % 2
    mask = right_padding(ids)
    expected = theirs(ids, attention_mask=mask, token_type_ids=types).last_hidden_state
    real = mask.bool()
    check("BERT", expected[real], ours(ids, real, types)[real])
    rates = ours.config.dropout, ours.config.attention_dropout
    assert rates == (config.hidden_dropout_prob, config.attention_probs_dropout_prob)


@pytest.mark.parametrize("tied", [True, False])
def test_bert_for_masked_language_modelling(tmp_path: Path, tied: bool) -> None:
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=40, tie_word_embeddings=tied, **SIZES,
    )  # fmt: skip
    theirs = shake(transformers.BertForMaskedLM(config))
    theirs.save_pretrained(tmp_path)
    ours = hf.load(tmp_path)
    ids, types = tokens(), tokens() % 2
    mask = right_padding(ids)
    expected = theirs(ids, attention_mask=mask, token_type_ids=types).logits
    real = mask.bool()
    check("BERT's masked LM", expected[real], ours(ids, real, token_types=types)[real])


def test_bert_for_sequence_classification(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=40, num_labels=3, **SIZES,
    )  # fmt: skip
    theirs = shake(transformers.BertForSequenceClassification(config))
    theirs.save_pretrained(tmp_path)
    ours = hf.load(tmp_path)
    ids, types = tokens(), tokens() % 2
    mask = right_padding(ids)
    expected = theirs(ids, attention_mask=mask, token_type_ids=types).logits
    check("BERT's classifier", expected, ours(ids, mask.bool(), types))
    assert ours.config.classes == 3 and ours.config.head_dropout == config.hidden_dropout_prob


def vit(**changes) -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
        image_size=24, patch_size=8, num_labels=5, **changes,
    )  # fmt: skip
    return shake(transformers.ViTForImageClassification(config))


def test_vit(tmp_path: Path) -> None:
    theirs = vit()
    theirs.save_pretrained(tmp_path)
    images = torch.randn(3, 3, 24, 24)
    check("ViT", theirs(images).logits, hf.load(tmp_path)(images))


IMAGES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_labels": 5,
          "intermediate_size": 48, "image_size": 24, "patch_size": 8}  # fmt: skip


def beit(**changes) -> nn.Module:
    config = transformers.BeitConfig(**IMAGES, **changes)
    return shake(transformers.BeitForImageClassification(config))


BEIT = (
    {"use_relative_position_bias": True},
    {"use_shared_relative_position_bias": True, "use_mask_token": True},
    {"use_absolute_position_embeddings": True, "layer_scale_init_value": 0.0},
    {"use_relative_position_bias": True, "use_mean_pooling": False, "hidden_act": "relu"},
)


@pytest.mark.parametrize("changes", BEIT, ids=str)
def test_beit(tmp_path: Path, changes: dict) -> None:
    theirs = beit(**changes)
    theirs.save_pretrained(tmp_path)
    images = torch.randn(3, 3, 24, 24)
    ours = hf.load(tmp_path)
    check("BEiT", theirs(images).logits, ours(images))
    features = ours.encoder(ours.class_token(ours.embedding(images)))
    check("BEiT's features", theirs.beit(images).last_hidden_state, features)
    (expected,) = torch.autograd.grad(
        theirs(images).logits.square().sum(),
        theirs.beit.embeddings.patch_embeddings.projection.weight,
    )
    (found,) = torch.autograd.grad(ours(images).square().sum(), ours.embedding.proj.weight)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_what_beit_cannot_hold_is_named() -> None:
    with pytest.raises(ValueError, match="use_shared_relative_position_bias=True has no"):
        hf.load(beit(use_relative_position_bias=True, use_shared_relative_position_bias=True))
    ours = hf.load(vit())
    words = r"beit cannot hold this model: unbiased is \(\) here, \('k',\) there"
    with pytest.raises(ValueError, match=words):
        hf.to_transformers(ours, "beit")


def kosmos2(**changes) -> nn.Module:
    from transformers.models.kosmos2.modeling_kosmos2 import Kosmos2TextForCausalLM

    values = {
        "embed_dim": 32, "layers": 3, "ffn_dim": 48, "attention_heads": 4,
        "max_position_embeddings": 40,
    }  # fmt: skip
    config = transformers.Kosmos2TextConfig(**{**SIZES, **values, **changes})
    return shake(Kosmos2TextForCausalLM(config))


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}, {"embed_dim": 36}])
def test_kosmos2_text_model(tmp_path: Path, changes: dict) -> None:
    """Sub-LN as transformers has it: where the norms sit, and how wide they are."""
    theirs = kosmos2(**changes)
    theirs.save_pretrained(tmp_path)
    ours = hf.load(tmp_path)
    assert ours.config.placement == "sub"
    ids = tokens()
    check("Kosmos-2's text model", theirs(ids).logits, ours(ids))
    left = ids.clone()
    left[0, :3] = 1  # their positions are counted from padding tokens, ours from the mask
    real = left != 1
    padded = theirs(left, attention_mask=real.long()).logits
    check("Kosmos-2, padded on the left", padded[real], ours(left, real)[real])


def test_kosmos2_whole() -> None:
    text = {
        "vocab_size": 97, "embed_dim": 32, "layers": 2, "ffn_dim": 48, "attention_heads": 4,
        "max_position_embeddings": 40,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "image_size": 8,
        "num_attention_heads": 2, "patch_size": 4,
    }  # fmt: skip
    config = transformers.Kosmos2Config(text_config=text, vision_config=vision)
    theirs = shake(transformers.Kosmos2ForConditionalGeneration(config))
    check("Kosmos-2, its text half", theirs.text_model(tokens()).logits, hf.load(theirs)(tokens()))


@pytest.mark.parametrize("scale", [False, True])
def test_bart(tmp_path: Path, scale: bool) -> None:
    config = transformers.BartConfig(scale_embedding=scale, **SIZES, **SEQ2SEQ)
    theirs = shake(transformers.BartForConditionalGeneration(config))
    theirs.final_logits_bias.copy_(torch.randn(1, 97))
    theirs.save_pretrained(tmp_path)
    check_sequence_to_sequence("BART", theirs, hf.load(tmp_path))


@pytest.mark.parametrize("kind", ["Bart", "Marian", "Bert", "GPT2"])
def test_models_with_and_without_a_head(kind: str) -> None:
    """The names of their parameters differ by a prefix."""
    sizes = {
        "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
        "Bert": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    }.get(kind, SEQ2SEQ)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **sizes)
    heads = {"Bart": "ForConditionalGeneration", "Marian": "MTModel", "GPT2": "LMHeadModel"}
    whole = shake(getattr(transformers, kind + heads.get(kind, "ForMaskedLM"))(config))
    a, b = hf.load(whole), hf.load(whole.base_model).state_dict()
    a = getattr(a, "text_encoder", a).state_dict()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_marian() -> None:
    config = transformers.MarianConfig(scale_embedding=True, **SIZES, **SEQ2SEQ)
    model = transformers.MarianMTModel(config)
    tables = [m.embed_positions for m in (model.model.encoder, model.model.decoder)]
    kept = [table.weight.detach().clone() for table in tables]
    shake(model)
    with torch.no_grad():
        for table, value in zip(tables, kept, strict=True):
            table.weight.copy_(value)
    check_sequence_to_sequence("Marian", model, hf.load(model))


def check_sequence_to_sequence(name: str, theirs: nn.Module, ours: nn.Module) -> None:
    source, target = tokens(), tokens(length=7).flip(1)
    mask = right_padding(source)
    expected = theirs(source, attention_mask=mask, decoder_input_ids=target).logits
    check(name, expected, ours(source, target, mask.bool()))


@pytest.mark.parametrize(
    ("norm_first", "function", "bias"),
    [
        (False, "relu", True), (True, "relu", False), (False, "gelu", False), (True, "gelu", True),
        (False, nn.ReLU(), True), (True, nn.ReLU(), False), (False, nn.GELU("tanh"), False),
        (True, nn.GELU("tanh"), True),
    ],
    ids=str,
)  # fmt: skip
def test_torch_encoder(norm_first: bool, function: str | nn.Module, bias: bool) -> None:
    layer = nn.TransformerEncoderLayer(
        32, 4, 48, activation=function, batch_first=True, norm_first=norm_first, bias=bias
    )
    norm = nn.LayerNorm(32, bias=bias) if norm_first else None
    theirs = shake(nn.TransformerEncoder(layer, 3, norm, enable_nested_tensor=False))
    ours = hf.from_torch(theirs)
    x = torch.randn(3, 11, 32)
    real = right_padding(tokens()).bool()
    expected = theirs(x, src_key_padding_mask=~real)
    check("torch's encoder", expected[real], ours(x, real)[real])


def test_what_has_no_counterpart_is_named() -> None:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=1, n_head=4, scale_attn_by_inverse_layer_idx=True, **SIZES
    )
    with pytest.raises(ValueError, match="scale_attn_by_inverse_layer_idx=True"):
        hf.load(transformers.GPT2LMHeadModel(config))
    with pytest.raises(ValueError, match="no activation 'tanh'"):
        hf.load(gpt2(activation_function="tanh"))
    config = transformers.OPTConfig(
        hidden_size=32, ffn_dim=32, num_hidden_layers=1, num_attention_heads=4,
        word_embed_proj_dim=32, **SIZES,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"'opt' model.*gpt2, .* vit, beit, kosmos"):
        hf.load(transformers.OPTForCausalLM(config))
    config = transformers.BartConfig(**SIZES, **{**SEQ2SEQ, "decoder_ffn_dim": 40})
    with pytest.raises(ValueError, match="bart with encoder_ffn_dim=48"):
        hf.load(transformers.BartModel(config))
    with pytest.raises(ValueError, match="Linear is no model of transformers"):
        hf.load(nn.Linear(2, 2))


def test_what_has_no_counterpart_in_torch_is_named() -> None:
    def encoder(norm: nn.Module | None, **changes) -> nn.TransformerEncoder:
        layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, **changes)
        return nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)

    with pytest.raises(ValueError, match="Post-LN has none"):
        hf.from_torch(encoder(nn.LayerNorm(32)))
    with pytest.raises(ValueError, match="unlike eps"):
        hf.from_torch(encoder(nn.LayerNorm(32, eps=1e-3), norm_first=True))
    with pytest.raises(ValueError, match="no counterpart for the activation"):
        hf.from_torch(encoder(None, activation=torch.tanh))
    with pytest.raises(ValueError, match="from_torch"):
        hf.load(encoder(None))


BERT_SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 40, **SIZES,
}  # fmt: skip


def bert(name: str, **options: bool) -> nn.Module:
    config = transformers.BertConfig(**BERT_SIZES)
    return shake(getattr(transformers, name)(config, **options))


def bart() -> nn.Module:
    config = transformers.BartConfig(**SIZES, **SEQ2SEQ)
    return shake(transformers.BartForConditionalGeneration(config))


def marian() -> nn.Module:
    return transformers.MarianMTModel(transformers.MarianConfig(**SIZES, **SEQ2SEQ)).eval()


THEIRS: list[Callable[[], nn.Module]] = [
    gpt2,
    partial(gpt2, tie_word_embeddings=False, n_inner=48),
    partial(bert, "BertModel", add_pooling_layer=False),
    partial(bert, "BertForMaskedLM"),
    partial(bert, "BertForSequenceClassification"),
    bart,
    marian,
    vit,
    kosmos2,
    partial(kosmos2, tie_word_embeddings=False),
    *(partial(beit, **changes) for changes in BEIT if "use_mask_token" not in changes),
]


@pytest.mark.parametrize("make", THEIRS)
def test_there_and_back_is_bit_equal(make: Callable[[], nn.Module]) -> None:
    theirs = make()
    ours = hf.load(theirs)
    back = hf.to_transformers(ours, theirs.config.model_type)
    assert type(back) is type(theirs)
    expected, found = theirs.state_dict(), back.state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        # BART's positions begin at row 2; what lies before is never read, nor kept.
        skip = 2 * (make is bart and name.endswith("embed_positions.weight"))
        rows = slice(skip, None) if skip else ...
        assert torch.equal(tensor[rows], found[name][rows]), name
    again = hf.load(back).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in ours.state_dict().items())


def test_what_the_other_format_cannot_hold_is_named() -> None:
    from magneto.language.config import LanguageModelConfig
    from magneto.language.models import LanguageModel

    values = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "vocab_size": 97}
    values |= {"positions": "learned", "embedding_scale": "none"}

    def model(**changes) -> LanguageModel:
        return LanguageModel(LanguageModelConfig(**(values | changes)))

    assert hf.to_transformers(model(placement="pre"), "gpt2").config.n_embd == 32
    for changes, words in [
        ({"placement": "sub"}, "gpt2 cannot hold this model: placement is 'sub' here, 'pre' there"),
        ({"placement": "pre", "norm": "rmsnorm"}, "norm is 'rmsnorm' here"),
        ({"placement": "pre", "positions": "rotary"}, "positions is 'rotary' here"),
        ({"placement": "pre", "key_value_heads": 2}, "key_value_heads is 2 here, 4 there"),
        ({"placement": "pre", "bias": False}, "bias is False here"),
    ]:
        with pytest.raises(ValueError, match=words):
            hf.to_transformers(model(**changes), "gpt2")
    with pytest.raises(ValueError, match="computes what was trained here"):
        hf.to_transformers(model(embedding_scale="sqrt_width"), "kosmos_2_text_model")
    with pytest.raises(
        ValueError, match="'bert' has no counterpart of a LanguageModel; there is gpt2, kosmos"
    ):
        hf.to_transformers(model(), "bert")


def test_weights_that_do_not_fit_are_named() -> None:
    from magneto.hf.weights.layout import fill, modules, read_state, write_state

    pairs = modules({"qkv": ("q", "k"), "out": "o"})
    whole = {name: torch.ones(2, 2) for name in ("q.weight", "k.weight", "o.weight")}
    assert read_state(pairs, whole)["qkv.weight"].shape == (4, 2)
    with pytest.raises(ValueError, match=r"have q\.weight but not k\.weight"):
        read_state(pairs, {"q.weight": whole["q.weight"]})
    with pytest.raises(ValueError, match="no place here for the tensor 'x' and 1 more"):
        read_state(pairs, whole | {"x": torch.ones(1), "y": torch.ones(1)})
    with pytest.raises(ValueError, match="no place there for our tensor 'x'"):
        write_state(pairs, {"x": torch.ones(1)})
    with pytest.raises(ValueError, match="tensor 'bias' is missing"):
        fill(nn.Linear(2, 2), {"weight": torch.ones(2, 2)})
    with pytest.raises(ValueError, match=r"weight is \(3, 2\), not \(2, 2\)"):
        fill(nn.Linear(2, 2), {"weight": torch.ones(3, 2)})


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no Hugging Face model"):
        hf.load(tmp_path / "nothing")


BERT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("ViTModel", {"num_hidden_layers": 1}, "has no classifier.bias, classifier.weight"),
        ("BertForTokenClassification", BERT, "has classifier.bias, classifier.weight"),
        ("BartForSequenceClassification", SEQ2SEQ | SIZES, "has classification_head.dense.bias"),
    ],
)
def test_heads_that_lack_or_are_others_are_named(
    tmp_path: Path, name: str, values: dict, words: str
) -> None:
    theirs = getattr(transformers, name)
    theirs(theirs.config_class(**values)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=words):
        hf.load(tmp_path)


@pytest.mark.parametrize("name", ["BertModel", "BertForPreTraining", "BartModel", "GPT2Model"])
def test_directories_whose_head_is_known_not_to_matter(tmp_path: Path, name: str) -> None:
    theirs = getattr(transformers, name)
    sizes = {"Bert": BERT, "Bart": SEQ2SEQ, "GPT2": {"n_embd": 32, "n_layer": 1, "n_head": 4}}
    values = next(value for key, value in sizes.items() if name.startswith(key))
    model = theirs(theirs.config_class(**values, **SIZES))
    model.save_pretrained(tmp_path)
    ours = hf.load(tmp_path).state_dict()
    assert all(torch.equal(ours[key], value) for key, value in hf.load(model).state_dict().items())
