"""Parity with code that nobody here wrote: same weights, same input, fp32, at most 1e-5 apart."""

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
    a, b = hf.load(whole).state_dict(), hf.load(whole.base_model).state_dict()
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


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("function", ["relu", "gelu", nn.ReLU(), nn.GELU("tanh")], ids=str)
@pytest.mark.parametrize("bias", [True, False])
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
    with pytest.raises(ValueError, match=r"'opt' model.*gpt2, bert, bart, marian"):
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


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no Hugging Face model"):
        hf.load(tmp_path / "nothing")
