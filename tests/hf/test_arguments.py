"""What a forward pass is given counts, or is refused by name."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch.nn import functional as F

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from magneto.hf.export import wrap  # noqa: E402
from magneto.language.config import (  # noqa: E402
    LanguageModelConfig,
    MaskedLanguageModelConfig,
    TextClassifierConfig,
)
from magneto.language.models import LanguageModel, MaskedLanguageModel, TextClassifier  # noqa: E402
from magneto.nn.config import Positions  # noqa: E402
from magneto.translation.config import TranslationConfig  # noqa: E402
from magneto.translation.model import TranslationModel  # noqa: E402
from magneto.vision.classifier import ImageClassifier  # noqa: E402
from magneto.vision.config import ImageClassifierConfig  # noqa: E402

STACK: dict[str, Any] = {"width": 16, "layers": 3, "heads": 2, "ffn_width": 24}
TEXT: dict[str, Any] = {**STACK, "vocab_size": 40, "positions": "rotary"}
IDS = torch.randint(1, 40, (2, 7), generator=torch.Generator().manual_seed(1))


def causal(**changes: Any) -> Any:
    torch.manual_seed(0)
    return wrap(LanguageModel(LanguageModelConfig(**(TEXT | changes))), end=0)


def masked(**changes: Any) -> Any:
    return wrap(MaskedLanguageModel(MaskedLanguageModelConfig(**(TEXT | changes))))


def classes(**changes: Any) -> Any:
    return wrap(TextClassifier(TextClassifierConfig(**(TEXT | changes), classes=3)))


def seq2seq(**changes: Any) -> Any:
    torch.manual_seed(0)
    stacks = {"encoder_layers": 1, "decoder_layers": 2}
    return wrap(TranslationModel(TranslationConfig(**(TEXT | stacks | changes))), end=0)


def images(**changes: Any) -> Any:
    config = ImageClassifierConfig(**(STACK | changes), image_size=8, patch_size=4, classes=3)
    return wrap(ImageClassifier(config))


KINDS = [causal, masked, classes, seq2seq, images]


def inputs(make: Any) -> dict[str, torch.Tensor]:
    if make is images:
        return {"pixel_values": torch.zeros(2, 3, 8, 8)}
    return {"input_ids": IDS} | ({"decoder_input_ids": IDS} if make is seq2seq else {})


TAKEN = {(causal, "inputs_embeds"), (causal, "position_ids")}
WORDS = {
    "inputs_embeds": "embeddings are the core's own",
    "position_ids": "positions are counted from attention_mask",
    "head_mask": "no head can be left out",
    "cu_seq_lens_q": "attention_mask",
    "encoder_hidden_states": "no such memory",
}


@pytest.mark.parametrize("make", KINDS)
def test_what_has_no_place_is_refused_by_name(make: Any) -> None:
    model = make()
    for name, words in WORDS.items():
        if (make, name) not in TAKEN:
            with pytest.raises(ValueError, match=f"{name} cannot be given: .*{words}"):
                model(**inputs(make), **{name: torch.zeros(2, 7)})


@pytest.mark.parametrize("make", KINDS)
def test_weights_of_another_type_than_the_residual_stream(make: Any) -> None:
    words = "residual_dtype is float32, its weights are bfloat16: load it with dtype=float32"
    model = make(residual_dtype="float32")
    model(**inputs(make))
    with pytest.raises(ValueError, match=words):
        model.bfloat16()(**inputs(make))
    model = make(residual_dtype="bfloat16")
    with torch.autocast("cpu", torch.bfloat16):
        model(**inputs(make))


@pytest.mark.parametrize("make", KINDS[:4])
def test_a_mask_of_another_shape_is_refused(make: Any) -> None:
    model = make()
    names = ["attention_mask"] + ["decoder_attention_mask"] * (make is seq2seq)
    for shape in ((1, 7), (2, 1), (2, 6), (2, 8), (7,), (2, 1, 7, 7)):
        for name in names:
            with pytest.raises(ValueError, match=r"attention mask is \(.*\), not \(2, 7\)"):
                model(**inputs(make), **{name: torch.ones(shape, dtype=torch.long)})


def test_a_mask_of_pairs() -> None:
    """Two texts in one row that do not see each other are as two rows."""
    model = causal(positions="none")
    apart = torch.zeros(1, 7, 7, dtype=torch.long)
    apart[:, :3, :3] = apart[:, 3:, 3:] = 1
    together = model(IDS[:1], attention_mask=apart).logits
    for part in (slice(0, 3), slice(3, 7)):
        assert (together[:, part] - model(IDS[:1, part]).logits).abs().max() <= 1e-5


@pytest.mark.parametrize("positions", get_args(Positions))
def test_a_packing_collator_equals_separate_documents(positions: str) -> None:
    """transformers' collator joins texts in one row, and tells them apart by position_ids."""
    model = causal(positions=positions)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    texts = [IDS[0, :4], IDS[1, :1], IDS[1, 2:5]]
    collator = transformers.DataCollatorWithFlattening(return_tensors="pt")
    batch = collator([{"input_ids": text.tolist()} for text in texts])
    output = model(**batch)
    expected = torch.cat([model(text[None]).logits for text in texts], 1)
    assert (output.logits - expected).abs().max() <= 1e-5
    labels = batch["labels"][:, 1:]
    loss = F.cross_entropy(expected[0, :-1], labels[0])
    assert output.loss.item() == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("positions", get_args(Positions))
def test_packed_rows_beside_a_mask_of_padding(positions: str) -> None:
    """Some collators give both: texts are told apart all the same, and padding is none of them."""
    model = causal(positions=positions)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    texts = [IDS[0, :3], IDS[1, :1], IDS[1, 2:4]]
    row = torch.cat(texts)[None]
    places = torch.cat([torch.arange(len(text)) for text in texts])[None]
    expected = torch.cat([model(text[None]).logits for text in texts], 1)
    whole = model(row, attention_mask=torch.ones_like(row), position_ids=places)
    assert (whole.logits - expected).abs().max() <= 1e-5
    # Padded at the end, and between the first text and the second.
    padded = torch.cat((row[:, :3], row[:, :1], row[:, 3:], row[:, :2]), 1)
    mask = torch.tensor([[1, 1, 1, 0, 1, 1, 1, 0, 0]])
    at = torch.cat((places[:, :3], places[:, :1], places[:, 3:], places[:, :2]), 1)
    found = model(padded, attention_mask=mask, position_ids=at).logits
    assert (found[:, mask[0].bool()] - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("make", KINDS[:-1])
@pytest.mark.parametrize(
    "how", ["return_position_ids", "return_flash_attn_kwargs", "return_seq_idx"]
)
def test_what_a_packing_collator_gives_is_never_passed_over(make: Any, how: str) -> None:
    """Whatever tells the texts of a row apart is used, or refused by its name."""
    if make is causal and how == "return_position_ids":
        return  # see test_a_packing_collator_equals_separate_documents
    given: dict[str, Any] = {"return_position_ids": False, how: True}
    collator = transformers.DataCollatorWithFlattening(return_tensors="pt", **given)
    batch = collator([{"input_ids": text.tolist()} for text in (IDS[0, :4], IDS[1, :3])])
    batch.pop("labels")
    name = {"return_position_ids": "position_ids", "return_flash_attn_kwargs": "cu_seq_lens_[qk]",
            "return_seq_idx": "seq_idx"}[how]  # fmt: skip
    with pytest.raises(ValueError, match=f"{name} cannot be given"):
        make()(**batch, **({"decoder_input_ids": IDS[:1]} if make is seq2seq else {}))


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
def test_positions_of_the_callers_own(positions: str) -> None:
    """Beside a mask they only say where tokens stand; with a cache likewise."""
    model, mask = causal(positions=positions), torch.ones_like(IDS)
    mask[0, :3] = 0
    own = (mask.cumsum(1) - 1).clamp(min=0)
    expected = model(IDS, attention_mask=mask).logits
    found = model(IDS, attention_mask=mask, position_ids=own)
    assert torch.equal(found.logits[mask.bool()], expected[mask.bool()])
    first = model(IDS[:, :5], attention_mask=mask[:, :5], use_cache=True)
    more = {"past_key_values": first.past_key_values, "position_ids": own[:, 5:]}
    last = model(IDS[:, 5:], attention_mask=mask, **more).logits
    assert (last - expected[:, 5:]).abs().max() <= 1e-5
    apart = model(IDS, attention_mask=torch.ones_like(IDS), position_ids=3 * own[1:])
    assert torch.equal(apart.logits, model(IDS).logits) == (positions == "none")


def test_positions_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"position_ids is \(2, 6\), not \(2, 7\)"):
        causal()(IDS, position_ids=torch.zeros(2, 6, dtype=torch.long))
    places = torch.arange(7)[None]
    for positions in ("t5", "alibi"):
        with pytest.raises(ValueError, match=f"position_ids .* {positions} positions count places"):
            causal(positions=positions)(
                IDS, position_ids=places, attention_mask=torch.ones_like(IDS)
            )


@pytest.mark.parametrize("scale", ["none", "sqrt_width"])
def test_vectors_instead_of_tokens(scale: str) -> None:
    model = causal(embedding_scale=scale)
    vectors = model.get_input_embeddings()(IDS)
    assert torch.equal(model(inputs_embeds=vectors).logits, model(IDS).logits)
    how: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    written = model.generate(inputs_embeds=vectors, **how)
    assert torch.equal(written, model.generate(IDS, **how)[:, 7:])
    for given in ({}, {"input_ids": IDS, "inputs_embeds": vectors}):
        with pytest.raises(ValueError, match="give input_ids or inputs_embeds, and not both"):
            model(**given)


def test_prompt_tuning() -> None:
    """peft puts learned vectors before the text; the text's logits follow from both."""
    peft = pytest.importorskip("peft")
    model = causal()
    how = peft.PromptTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=3, token_dim=16, num_layers=3,
        num_attention_heads=2,
    )  # fmt: skip
    tuned = peft.get_peft_model(model, how)
    output = tuned(input_ids=IDS, attention_mask=torch.ones_like(IDS), labels=IDS)
    output.loss.backward()
    trained = {name for name, weight in tuned.named_parameters() if weight.grad is not None}
    assert trained == {"prompt_encoder.default.embedding.weight"}
    vectors = torch.cat([tuned.get_prompt(2), model.get_input_embeddings()(IDS)], 1)
    assert torch.equal(output.logits, model(inputs_embeds=vectors).logits)


def test_logits_of_chosen_places() -> None:
    model = causal()
    whole, places = model(IDS).logits, torch.tensor([5, 0, 2])
    assert (model(IDS, logits_to_keep=places).logits - whole[:, places]).abs().max() <= 1e-6
    assert (model(IDS, logits_to_keep=2).logits - whole[:, -2:]).abs().max() <= 1e-6


def test_labels_that_are_shifted_already() -> None:
    model, labels = causal(), IDS.flip(1)
    labels[0, 2] = -100
    output = model(IDS, labels=IDS, shift_labels=labels)
    expected = F.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    with pytest.raises(ValueError, match="shift_labels cannot be given"):
        masked()(IDS, labels=IDS, shift_labels=labels)


def test_translations_may_be_as_long_as_positions_go(tmp_path: Path) -> None:
    model = seq2seq(max_length=33, positions="learned")
    model.save_pretrained(tmp_path)
    loaded: Any = hf.MagnetoForSeq2SeqLM.from_pretrained(tmp_path)
    assert loaded.generate(IDS, do_sample=False, eos_token_id=None).shape == (2, 33)


@pytest.mark.parametrize("make", [causal, masked])
def test_layers_that_stay_on_disk(tmp_path: Path, make: Any) -> None:
    pytest.importorskip("accelerate")
    model = make()
    model.save_pretrained(tmp_path)
    held = sum(parameter.numel() * 4 for parameter in model.parameters()) * 3 // 4
    load: Any = type(model).from_pretrained
    folder = tmp_path / "offload"
    loaded = load(tmp_path, device_map="auto", max_memory={"cpu": held}, offload_folder=folder)
    places = loaded.hf_device_map
    assert set(places.values()) == {"cpu", "disk"}
    # No layer is cut in two.
    assert not any(".layers." in name and name.count(".") > 3 for name in places)
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.75])
def test_a_translators_stacks_that_stay_on_disk(tmp_path: Path, share: float) -> None:
    """By a map of one's own, and by those that are found for some memory."""
    pytest.importorskip("accelerate")
    model = seq2seq()
    with torch.no_grad():
        model.core.logits_bias.copy_(torch.randn_like(model.core.logits_bias))
    model.save_pretrained(tmp_path)
    own = dict.fromkeys(("core.embedding", "core.head", "core.logits_bias"), "cpu")
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    places: dict[str, Any] = {"device_map": {**own, "core.transformer": "disk"}}
    if share:
        places = {"device_map": "auto", "max_memory": {"cpu": round(size * share)}}
    load: Any = hf.MagnetoForSeq2SeqLM.from_pretrained
    loaded = load(tmp_path, **places, offload_folder=tmp_path / "offload")
    assert set(loaded.hf_device_map.values()) == ({"disk"} if share == 0.1 else {"cpu", "disk"})
    written = loaded.generate(IDS, max_new_tokens=5, do_sample=False)
    assert torch.equal(written, model.generate(IDS, max_new_tokens=5, do_sample=False))
