"""Language models in transformers: caches, padding, packed rows, positions, generation."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from torch.nn import functional as F

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from magneto.data.tokenizer import load_tokenizer, train_bpe  # noqa: E402
from magneto.hf.export import harness_model  # noqa: E402
from magneto.hf.processors import transformers_tokenizer  # noqa: E402
from magneto.language.config import LanguageModelConfig  # noqa: E402
from magneto.language.models import LanguageModel  # noqa: E402
from magneto.nn.config import Positions  # noqa: E402
from tests.unit.hf.kinds import wrapped  # noqa: E402
from tests.unit.nn.grids import shaken  # noqa: E402

TEXT = "A function that returns the number of bytes in a file, or raises an error if it is closed. "
KINDS_OF_POSITIONS = ("sinusoidal", "learned", "rotary", "t5")
IDS = torch.randint(1, 40, (2, 9), generator=torch.Generator().manual_seed(1))
LEFT = torch.ones_like(IDS)
LEFT[0, :4] = 0


def causal(**changes: Any) -> Any:
    """Return a model with untied weights, because tied weights make it repeat tokens."""
    return wrapped("MagnetoForCausalLM", **{"tie_embeddings": False, **changes})


@pytest.mark.parametrize("positions", KINDS_OF_POSITIONS)
def test_generation_is_equal_in_all_modes(positions: str) -> None:
    """Greedy and beam search agree with a growing cache, a static cache, no cache and left
    padding; greedy search also with guesses that shorten the cache."""
    sizes: dict[str, Any] = {"width": 32, "heads": 4, "key_value_heads": 2, "vocab_size": 300}
    model = shaken(causal(positions=positions, **sizes), 0.3)  # so that its continuations vary
    for beams in (1, 3):
        how: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
        how["num_beams"] = beams
        written = model.generate(IDS, attention_mask=LEFT, use_cache=False, **how)
        assert written[:, 9:].unique().numel() > 4
        assert torch.equal(written, model.generate(IDS, attention_mask=LEFT, **how))
        static = model.generate(IDS, attention_mask=LEFT, cache_implementation="static", **how)
        assert torch.equal(written, static)
        alone = model.generate(IDS[:1, 4:], **how)
        assert torch.equal(alone[0, 5:], written[0, 9 : 9 + alone.shape[1] - 5])
    prompt = IDS[:1].repeat(1, 3)
    how |= {"num_beams": 1, "max_new_tokens": 10}
    guessed = model.generate(prompt, prompt_lookup_num_tokens=3, **how)
    assert torch.equal(guessed, model.generate(prompt, **how))
    logits = model(IDS, attention_mask=LEFT).logits[:1, 4:]
    assert (logits - model(IDS[:1, 4:]).logits).abs().max() <= 1e-4


def test_a_static_cache_on_a_gpu_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default transformers would compile, with a new CUDA graph for every token."""
    # Transformers sets this variable where it would compile.
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    wrapped = causal()
    monkeypatch.setattr(type(wrapped), "device", torch.device("cuda"))
    cache = transformers.StaticCache(config=wrapped.config, max_cache_len=12)
    settings = transformers.GenerationConfig()
    assert not wrapped._valid_auto_compile_criteria({"cache": cache}, settings)
    settings.compile_config = transformers.CompileConfig()
    assert wrapped._valid_auto_compile_criteria({"cache": cache}, settings)


def test_logits_to_keep_are_those_of_the_whole() -> None:
    model = causal(positions="rotary", key_value_heads=1)
    whole = model(IDS, attention_mask=LEFT).logits
    for keep, places in ((2, torch.tensor([7, 8])), (torch.tensor([5, 0, 2]),) * 2):
        kept = model(IDS, attention_mask=LEFT, logits_to_keep=keep).logits
        assert (kept - whole[:, places]).abs().max() <= 1e-6
    assert torch.equal(model(IDS, labels=IDS, logits_to_keep=1).loss, model(IDS, labels=IDS).loss)


def test_labels_may_be_shifted_and_none_is_a_loss_of_0() -> None:
    """Other losses are compared with plain torch in tests/oracles/test_hf_trainer.py."""
    model, labels = causal(), IDS.clone()
    labels[1, -3:] = -100
    logits = model(IDS, labels=labels).logits
    assert model(IDS, labels=torch.full_like(labels, -100)).loss.item() == 0
    shifted = F.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    found = model(IDS, labels=IDS, shift_labels=labels).loss
    assert found.item() == pytest.approx(shifted, rel=1e-5)
    with pytest.raises(ValueError, match="shift_labels is not supported"):
        wrapped("MagnetoForMaskedLM")(IDS, labels=IDS, shift_labels=labels)


@pytest.mark.parametrize("positions", get_args(Positions))
def test_packed_texts_have_the_logits_of_separate_texts(positions: str) -> None:
    """Texts are separated by a mask of pairs, or by `position_ids` with or without padding."""
    model = causal(positions=positions)
    texts = [IDS[0, 4:5], IDS[0, :4], IDS[1, :1], IDS[1, 2:5]]
    collator = transformers.DataCollatorWithFlattening(return_tensors="pt")
    batch = collator([{"input_ids": text.tolist()} for text in texts])
    output = model(**batch)
    expected = torch.cat([model(text[None]).logits for text in texts], 1)
    assert (output.logits - expected).abs().max() <= 1e-5
    loss = F.cross_entropy(expected[0, :-1], batch["labels"][0, 1:])
    assert output.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    row, places = batch["input_ids"], batch["position_ids"]
    whole = model(row, attention_mask=torch.ones_like(row), position_ids=places).logits
    assert (whole - expected).abs().max() <= 1e-5
    pairs = torch.block_diag(*(torch.ones(len(text), len(text)) for text in texts))[None]
    assert (model(row, attention_mask=pairs).logits - expected).abs().max() <= 1e-5
    order = torch.tensor([0, 1, 2, 3, 4, 0, 5, 6, 7, 8, 0, 1])
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0]])
    given = {"attention_mask": mask, "position_ids": places[:, order]}
    found = model(row[:, order], **given).logits
    assert (found[:, mask[0].bool()] - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
def test_position_ids_with_a_mask_or_a_cache(positions: str) -> None:
    """With a mask or a cache, `position_ids` only set the positions of tokens."""
    model, mask = causal(positions=positions), torch.ones_like(IDS)
    mask[0, :3] = 0
    own = (mask.cumsum(1) - 1).clamp(min=0)
    expected = model(IDS, attention_mask=mask).logits
    found = model(IDS, attention_mask=mask, position_ids=own)
    assert torch.equal(found.logits[mask.bool()], expected[mask.bool()])
    first = model(IDS[:, :5], attention_mask=mask[:, :5], use_cache=True)
    more = {"cache": first.cache, "position_ids": own[:, 5:]}
    last = model(IDS[:, 5:], attention_mask=mask, **more).logits
    assert (last - expected[:, 5:]).abs().max() <= 1e-5
    apart = model(IDS, attention_mask=torch.ones_like(IDS), position_ids=3 * own[1:])
    assert torch.equal(apart.logits, model(IDS).logits) == (positions == "none")


def test_unsupported_position_ids_are_refused() -> None:
    with pytest.raises(ValueError, match=r"position_ids is \(2, 6\), but must be \(2, 9\)"):
        causal()(IDS, position_ids=torch.zeros(2, 6, dtype=torch.long))
    places = torch.arange(9)[None]
    for positions in ("t5", "alibi"):
        with pytest.raises(ValueError, match=f"with {positions} positions, position_ids cannot"):
            causal(positions=positions)(
                IDS, position_ids=places, attention_mask=torch.ones_like(IDS)
            )


@pytest.mark.parametrize("scale", ["none", "sqrt_width"])
def test_inputs_embeds_equal_tokens(scale: str) -> None:
    model = causal(embedding_scale=scale)
    vectors = model.get_input_embeddings()(IDS)
    assert torch.equal(model(inputs_embeds=vectors).logits, model(IDS).logits)
    how: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    written = model.generate(inputs_embeds=vectors, **how)
    assert torch.equal(written, model.generate(IDS, **how)[:, 9:])
    for given in ({}, {"input_ids": IDS, "inputs_embeds": vectors}):
        with pytest.raises(ValueError, match="give either input_ids or inputs_embeds"):
            model(**given)


def test_prompt_and_prefix_tuning() -> None:
    """peft's learned vectors precede the text, in the input or in the cache."""
    peft = pytest.importorskip("peft")
    model, mask = causal(), torch.ones_like(IDS)
    sizes = {"num_virtual_tokens": 3, "token_dim": 16, "num_layers": 2, "num_attention_heads": 2}

    def trained(config: Any) -> tuple[Any, torch.Tensor]:
        tuned = peft.get_peft_model(model, config)
        output = tuned(input_ids=IDS, attention_mask=mask, labels=IDS)
        output.loss.backward()
        names = {name for name, weight in tuned.named_parameters() if weight.grad is not None}
        assert names == {"prompt_encoder.default.embedding.weight"}
        return tuned, output.logits

    tuned, logits = trained(peft.PromptTuningConfig(task_type="CAUSAL_LM", **sizes))
    vectors = torch.cat([tuned.get_prompt(2), model.get_input_embeddings()(IDS)], 1)
    assert torch.equal(logits, model(inputs_embeds=vectors).logits)
    how: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    written = tuned.generate(input_ids=IDS, attention_mask=mask, use_cache=False, **how)
    assert torch.equal(written[:, 9:], model.generate(inputs_embeds=vectors, **how))
    tuned, logits = trained(peft.PrefixTuningConfig(task_type="CAUSAL_LM", **sizes))
    assert torch.equal(logits, model(IDS, cache=tuned.get_prompt(2)).logits)
    assert not torch.allclose(logits, model(IDS).logits)


def test_generation_ends_with_a_stop_string(tmp_path: Path) -> None:
    """`generate` needs the tokenizer for it, and passes the tokenizer on to the model."""
    train_bpe([TEXT * 3], 300, tmp_path / "tokenizer.json")
    tokenizer = transformers_tokenizer(load_tokenizer(tmp_path), 64)
    model = causal(vocab_size=len(tokenizer))
    given = tokenizer("A function", return_tensors="pt")
    how: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    whole = model.generate(**given, **how)
    stop = tokenizer.decode(whole[0, -5])
    ended = model.generate(**given, stop_strings=[stop], tokenizer=tokenizer, **how)
    assert torch.equal(ended, whole[:, :-4])


def test_the_harness_begins_each_text_with_the_end_token(tmp_path: Path, monkeypatch) -> None:
    """lm-evaluation-harness passes `add_bos_token` on to the tokenizer."""
    monkeypatch.setattr(
        "magneto.hf.export._library", lambda name: SimpleNamespace(HFLM=SimpleNamespace)
    )
    train_bpe([TEXT * 3], 300, tmp_path / "tokenizer.json")
    tokenizer = load_tokenizer(tmp_path)
    model = causal(vocab_size=tokenizer.vocab_size).core
    made = harness_model(model, tokenizer, 64)
    special = {"add_special_tokens": made.add_bos_token}
    assert made.tokenizer.encode(TEXT, **special) == [tokenizer.end, *tokenizer.encode([TEXT])[0]]
    assert made.max_length == 64 and made.pretrained.core is model
    with pytest.raises(ValueError, match=r"needs a run with a tokenizer\.json"):
        harness_model(model, load_tokenizer("bytes"), 64)


def test_generate_and_impossible_sampling(tmp_path: Path) -> None:
    train_bpe([TEXT * 3], 300, tmp_path / "tokenizer.json")
    tokenizer = load_tokenizer(tmp_path)
    sizes: dict[str, Any] = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "dropout": 0.5}
    model = LanguageModel(LanguageModelConfig(**sizes, vocab_size=tokenizer.vocab_size))

    def generated(text: str = "A function", **how: Any) -> list[str]:
        return hf.generate(model, tokenizer, text, hf.Sampling(new_tokens=5, **how))

    sampled = generated(count=2)
    assert sampled == generated(count=2) != generated(count=2, seed=1) and len(sampled) == 2
    assert all(text.startswith("A function") for text in sampled)
    assert len(generated("", beams=3, count=2)) == 2
    before = torch.get_rng_state()
    most: dict[str, Any] = {"top_k": 1}, {"top_p": 1e-6, "top_k": 0}, {"temperature": 1e-5}
    for how in most:  # a single token is probable enough
        assert generated(temperature=0) == generated(**how, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    wrong: dict[str, Any] = {"temperature": -1.0, "top_p": 0.0, "top_k": -1, "new_tokens": 0}
    with pytest.raises(ValueError, match=r"new_tokens(.|\n)*temperature(.|\n)*top_k.*\ntop_p"):
        hf.Sampling(**wrong)
    for values in ({"beams": 2, "count": 3}, {"temperature": 0, "count": 2}, {"temperature": 9e-7}):
        with pytest.raises(ValueError):
            hf.Sampling(**values)  # type: ignore[arg-type]
    prompt = len(tokenizer.encode(["A function"])[0])
    sizes |= {"positions": "learned", "max_length": prompt + 4}
    model = LanguageModel(LanguageModelConfig(**sizes, vocab_size=tokenizer.vocab_size)).eval()
    assert generated()
    for text, advice in (("A function 2", "Lower new_tokens to at most [1-4]"), (TEXT, "Shorten")):
        with pytest.raises(ValueError, match=rf"exceed max_length .*{advice}"):
            generated(text)
